"""Random products of the whole formula, and their oracle: einsum and index_add, term by term in double precision."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import torch
from torch import Tensor

import lacewing

EXTENTS = {"a": 2, "b": 3, "c": 1, "d": 4, "e": 2}


@dataclass
class Role:
    """A role of a random product: letters, rows (None: one row and no dim), batch map, and unequal rows."""

    letters: str
    rows: int | None
    index: list[int] | None
    map: str
    entries: list[int] | None = None
    batch: int | None = None
    layout: lacewing.RowLayout | None = None
    elements: int = 0

    def shape(self, edges: int, extents: dict[str, int]) -> tuple[int, ...]:
        """The shape of its tensor."""
        lead = {"own": (edges,), "shared": (), "list": (self.batch,)}[self.map]
        if self.layout is not None:
            return (*lead, self.elements)
        rows = () if self.rows is None else (self.rows,)
        return (*lead, *rows, *(extents[letter] for letter in self.letters))


@dataclass
class Case:
    """One product: operands, output and what they are made of."""

    roles: list[Role]
    out: Role
    terms: int
    edges: int
    slots: list[int]
    dtype: torch.dtype
    scaled: bool
    extents: dict[str, int] = field(default_factory=lambda: dict(EXTENTS))

    @property
    def form(self) -> str:
        """As users write it."""
        return ",".join(role.letters for role in self.roles) + "->" + self.out.letters

    def plan(self) -> lacewing.ProductPlan:
        """The plan of the product."""
        all_roles = [*self.roles, self.out]
        # What tells a letter's extent: any operand, but without terms none whose rows have a layout.
        told = [role for role in self.roles if self.terms or role.layout is None]
        known = "".join(role.letters for role in told)
        return lacewing.product_plan(
            self.form,
            index=[role.index for role in self.roles],
            out=self.out.index,
            rows=[role.rows for role in self.roles],
            out_rows=self.out.rows,
            slots=self.slots,
            layout=[role.layout for role in all_roles] if any(role.layout for role in all_roles) else None,
            extents={
                letter: self.extents[letter]
                for letter in self.out.letters
                if letter not in known and self.out.layout is None
            },
        )

    def edge_plan(self) -> lacewing.Edges:
        """Its edges."""
        entry = {"own": lambda r: None, "shared": lambda r: "shared", "list": lambda r: r.entries}
        return lacewing.Edges(
            maps=[entry[role.map](role) for role in self.roles],
            out=entry[self.out.map](self.out),
            edges=self.edges,
            batch=[role.batch for role in self.roles],
            out_batch=self.out.batch,
        )

    def operands(self, generator: torch.Generator) -> list[Tensor]:
        """One tensor for each slot, some of them expanded or strided."""
        tensors = []
        for slot in range(max(self.slots) + 1):
            shape = self.roles[self.slots.index(slot)].shape(self.edges, self.extents)
            tensors.append(torch.randn(shape, dtype=self.dtype, generator=generator))
        return tensors

    def scale(self, generator: torch.Generator) -> Tensor | None:
        """The coefficients."""
        return torch.randn(self.terms, dtype=self.dtype, generator=generator) if self.scaled else None


def rows_of(role: Role, term: int) -> int:
    """The row of a role in a term."""
    return role.index[term] if role.index is not None else term if role.rows is not None else 0


def _elements(role: Role, row: int) -> Tensor:
    """Where the elements of a row of a layout lie, in the shape of its letters."""
    place = torch.tensor(role.layout.offset[row])
    for extent, stride in zip(role.layout.extent[row], role.layout.stride[row], strict=True):
        place = place.unsqueeze(-1) + torch.arange(extent) * stride
    return place


def _row(role: Role, tensor: Tensor, term: int, edges: int) -> Tensor:
    """(edges, letters): what a role brings to a term."""
    if role.map == "shared":
        tensor = tensor.expand(edges, *tensor.shape)
    elif role.map == "list":
        tensor = tensor[torch.tensor(role.entries, dtype=torch.long)]
    row = rows_of(role, term)
    if role.layout is not None:
        return tensor[:, _elements(role, row)]
    return tensor if role.rows is None else tensor[:, row]


def oracle(case: Case, operands: list[Tensor], scale: Tensor | None) -> Tensor:
    """The product, written down as it is defined."""
    out = case.out
    each_edge = torch.zeros(
        (
            case.edges,
            *Role(out.letters, out.rows, None, "shared", None, None, out.layout, out.elements).shape(0, case.extents),
        ),
        dtype=operands[0].dtype,
    )
    for term in range(case.terms):
        rows = [_row(role, operands[slot], term, case.edges) for role, slot in zip(case.roles, case.slots, strict=True)]
        letters = ["".join(role.letters) for role in case.roles]
        row = rows_of(out, term)
        for k, letter in enumerate(out.letters):
            if not any(letter in each for each in letters):
                size = case.extents[letter] if out.layout is None else out.layout.extent[row][k]
                rows.append(torch.ones(case.edges, size, dtype=operands[0].dtype))
                letters.append(letter)
        value = torch.einsum(",".join("Z" + each for each in letters) + "->Z" + out.letters, *rows)
        if scale is not None:
            value = value * scale[term]
        if out.layout is not None:
            places = _elements(out, row).reshape(-1)
            each_edge = each_edge.index_add(1, places, value.reshape(case.edges, places.numel()))
        elif out.rows is None:
            each_edge = each_edge + value
        else:
            each_edge = each_edge.index_add(1, torch.tensor([row]), value.unsqueeze(1))
    if out.map == "own":
        return each_edge
    if out.map == "shared":
        return each_edge.sum(0)
    result = torch.zeros(out.batch, *each_edge.shape[1:], dtype=each_edge.dtype)
    return result.index_add(0, torch.tensor(out.entries, dtype=torch.long), each_edge)


def _layout(
    draw: random.Random, letters: str, rows: int, extents: list[dict[str, int]]
) -> tuple[lacewing.RowLayout, int]:
    """Rows of the extents given: contiguous, or with the first letter fastest, and with gaps."""
    offset, extent, stride, place = [], [], [], 0
    for row in range(rows):
        sizes = [extents[row][letter] for letter in letters]
        order = range(len(letters)) if draw.random() < 0.5 else reversed(range(len(letters)))
        strides, step = [0] * len(letters), 1
        for k in order:
            strides[k] = step
            step *= sizes[k]
        place += draw.choice([0, 0, 1])
        offset.append(place)
        extent.append(sizes)
        stride.append(strides)
        place += step
    reach = [
        o + 1 + sum((n - 1) * s for n, s in zip(e, t, strict=True)) if all(e) else 0
        for o, e, t in zip(offset, extent, stride, strict=True)
    ]
    return lacewing.RowLayout(extent, offset, stride), max(reach, default=0)


def random_case(seed: int) -> Case:
    """A product that nobody foresaw."""
    draw = random.Random(seed)
    terms = draw.choice([0, 1, 1, 2, 3, 5, 7])
    edges = draw.choice([0, 1, 2, 3, 4, 5])
    extents = dict(EXTENTS)
    if draw.random() < 0.05:
        extents[draw.choice("abcd")] = 0
    pool = "abcde"[: draw.randint(1, 5)]

    def role(letters: str | None = None) -> Role:
        chosen = [letter for letter in pool if draw.random() < 0.45] if letters is None else list(letters)
        draw.shuffle(chosen)
        rows = draw.choice([None, 1, 2, 3, 4])
        index = None if rows is None else [draw.randrange(rows) for _ in range(terms)]
        if rows is not None and terms <= rows and draw.random() < 0.2:
            index = None
        made = Role("".join(chosen), rows, index, draw.choice(["own", "own", "shared", "list"]))
        if made.map == "list":
            made.batch = draw.choice([1, 2, 4]) if edges else draw.choice([0, 1, 3])
            made.entries = [draw.randrange(made.batch) for _ in range(edges)]
        return made

    roles = [role() for _ in range(draw.choice([1, 2, 2, 3, 3, 4, 5, 6]))]
    slots = list(range(len(roles)))
    if len(roles) > 1 and draw.random() < 0.3:  # the same tensor once more, by other rows
        first, again = sorted(draw.sample(range(len(roles)), 2))
        twin = roles[first]
        index = None if twin.rows is None else [draw.randrange(twin.rows) for _ in range(terms)]
        entries = None if twin.entries is None else [draw.randrange(twin.batch) for _ in range(edges)]
        roles[again] = Role(twin.letters, twin.rows, index, twin.map, entries, twin.batch)
        slots = [slot if k != again else first for k, slot in enumerate(slots)]
        numbers = sorted(set(slots))
        slots = [numbers.index(slot) for slot in slots]
    out = role()
    if all(each.index is None for each in [*roles, out]):  # the rows alone tell how many terms there are
        terms = min((each.rows for each in [*roles, out] if each.rows is not None), default=1)
    case = Case(
        roles,
        out,
        terms,
        edges,
        slots,
        draw.choice([torch.float64] * 4 + [torch.complex128]),
        draw.random() < 0.6,
        extents,
    )
    if len(set(slots)) == len(slots) and draw.random() < 0.35:
        _make_unequal(draw, case)
    return case


def _make_unequal(draw: random.Random, case: Case) -> None:
    """Gives some roles rows of unequal extents, with equal ones wherever a term joins them."""
    carriers = [role for role in [*case.roles, case.out] if role.rows is not None and role.letters]
    chosen = [role for role in carriers if draw.random() < 0.7]
    uniform = {
        letter for role in [*case.roles, case.out] if not any(role is c for c in chosen) for letter in role.letters
    }
    # Rows that a term joins share the extents of a letter: groups by union.
    groups: dict[tuple[int, int, str], int] = {}
    for i, role in enumerate(chosen):
        for row in range(role.rows):
            for letter in role.letters:
                groups[i, row, letter] = len(groups)
    for term in range(case.terms):
        for letter in EXTENTS:
            joined = [(i, rows_of(role, term), letter) for i, role in enumerate(chosen) if letter in role.letters]
            for key in joined[1:]:
                old, new = groups[key], groups[joined[0]]
                groups = {k: new if group == old else group for k, group in groups.items()}
    sizes = {group: draw.choice([1, 2, 3, 0]) for group in sorted(set(groups.values()))}
    for i, role in enumerate(chosen):
        rows = [
            {x: case.extents[x] if x in uniform else sizes[groups[i, row, x]] for x in role.letters}
            for row in range(role.rows)
        ]
        role.layout, role.elements = _layout(draw, role.letters, role.rows, rows)
