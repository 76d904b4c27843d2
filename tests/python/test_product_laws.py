"""Laws that hold for all operands and terms: linearity, adjointness, independence of the order of terms, rotation."""

from __future__ import annotations

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

import lacewing
from lacewing import derive_backward, sparse_product_info, sparse_product_infos, sparse_scale_infos
from products_support import OPS, Fields, Op, assert_close, oracle, random_values

COMMON = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])

ops = st.sampled_from(list(OPS.values()))
sizes = st.integers(0, 4)


@st.composite
def problems(draw: st.DrawFn, max_terms: int = 12):
    """An op, sorted infos with their triples and scale, and operands; any size may be zero."""
    op: Op = draw(ops)
    in1, in2, out = draw(st.integers(0, 5)), draw(st.integers(0, 5)), draw(st.integers(0, 5))
    count = draw(st.integers(0, max_terms)) if in1 and in2 and out else 0
    triples = [tuple(draw(st.integers(0, size - 1)) for size in (in1, in2, out)) for _ in range(count)]
    batch, extents = draw(sizes), {"a": draw(sizes), "b": draw(sizes)}
    roles = draw(st.tuples(st.booleans(), st.booleans(), st.booleans()))
    seed = draw(st.integers(0, 1000))
    return Problem(op, triples, (out, in1, in2), batch, extents, roles, seed)


class Problem:
    """The operands and infos of a drawn problem."""

    def __init__(self, op, triples, rows, batch, extents, roles, seed) -> None:
        self.op, self.triples, self.rows, self.roles, self.seed = op, triples, rows, roles, seed
        lead1, lead2 = ([] if shared else [batch] for shared in roles[:2])
        self.x = random_values([*lead1, rows[1], *(extents[c] for c in op.x)], torch.float64, seed)
        self.y = random_values([*lead2, rows[2], *(extents[c] for c in op.y)], torch.float64, seed + 1)
        self.scale = random_values([len(triples)], torch.float64, seed + 2)

    def columns(self, order: list[int] | None = None) -> list[list[int]]:
        """index1, index2 and index as lists."""
        chosen = self.triples if order is None else [self.triples[t] for t in order]
        return [list(column) for column in zip(*chosen, strict=True)] if chosen else [[], [], []]

    def infos(self):
        return sparse_product_infos(*self.columns(), self.scale, *self.rows)

    def run(self, x: Tensor, y: Tensor, scale: Tensor | None = None, info=None) -> Tensor:
        info = self.infos()[0] if info is None else info
        info = info if scale is None else info.with_scale(scale)
        return self.op.function(x, y, info, out_accumulated=self.roles[2])


@COMMON
@given(problems())
def test_value_equals_the_oracle(p: Problem) -> None:
    terms = [(t, *triple) for t, triple in enumerate(p.triples)]

    z = p.run(p.x, p.y)

    assert_close(z, oracle(p.op, p.x, p.y, p.scale, terms, p.rows[0], p.roles[2]), 1e-12)


@COMMON
@given(problems())
def test_linear_in_the_first_operand(p: Problem) -> None:
    other = torch.randn(p.x.shape, dtype=torch.float64)

    z = p.run(2 * p.x - 3 * other, p.y)

    assert_close(z, 2 * p.run(p.x, p.y) - 3 * p.run(other, p.y), 1e-11)


@COMMON
@given(problems())
def test_linear_in_the_second_operand(p: Problem) -> None:
    other = torch.randn(p.y.shape, dtype=torch.float64)

    z = p.run(p.x, 2 * p.y - 3 * other)

    assert_close(z, 2 * p.run(p.x, p.y) - 3 * p.run(p.x, other), 1e-11)


@COMMON
@given(problems())
def test_linear_in_scale(p: Problem) -> None:
    other = torch.randn(p.scale.shape, dtype=torch.float64)

    z = p.run(p.x, p.y, 2 * p.scale - 3 * other)

    assert_close(z, 2 * p.run(p.x, p.y) - 3 * p.run(p.x, p.y, other), 1e-11)


@COMMON
@given(problems())
def test_gradients_are_adjoint(p: Problem) -> None:
    """<op(x, y, s), g> = <x, grad x> = <y, grad y> = <s, grad s>."""
    x, y, scale = (t.clone().requires_grad_() for t in (p.x, p.y, p.scale))
    z = p.run(x, y, scale)
    upstream = torch.randn(z.shape, dtype=torch.float64)

    gradients = torch.autograd.grad(z, (x, y, scale), upstream)

    want = (z * upstream).sum().detach()
    for tensor, gradient in zip((x, y, scale), gradients, strict=True):
        assert gradient.shape == tensor.shape
        assert_close((tensor.detach() * gradient).sum(), want, 1e-9)


@COMMON
@given(problems(), st.randoms(use_true_random=False))
def test_order_of_triples_does_not_matter(p: Problem, rng) -> None:
    order = list(range(len(p.triples)))
    rng.shuffle(order)
    info = sparse_product_info(*p.columns(order), p.scale[order], p.rows[0])

    z = p.run(p.x, p.y, info=info)

    assert_close(z, p.run(p.x, p.y), 1e-12)


@COMMON
@given(problems())
def test_rotated_infos_are_each_others_backward_infos(p: Problem) -> None:
    infos = p.infos()

    for step in range(3):
        fwd, *rest = (infos[(step + i) % 3] for i in range(3))
        _, *derived = derive_backward(fwd, p.rows[(step + 1) % 3], p.rows[(step + 2) % 3])

        for given_info, derived_info in zip(rest, derived, strict=True):
            assert sorted(terms(given_info, len(p.triples))) == sorted(terms(derived_info, len(p.triples)))


def terms(info, entries: int) -> list[tuple[int, int, int, int]]:
    """The terms of an info."""
    names = ("index1", "index2", "seg_out", "gather_index", "index_out")
    lists = {name: None if (t := getattr(info, name)) is None else t.tolist() for name in names}
    return Fields(**lists, out_size=info.out_size).terms(entries)[0]


@COMMON
@given(problems())
def test_given_and_derived_backward_infos_give_the_same_gradients(p: Problem) -> None:
    fwd, bwd1, bwd2 = p.infos()
    x, y = p.x.clone().requires_grad_(), p.y.clone().requires_grad_()

    given_grads = torch.autograd.grad(
        p.op.function(x, y, fwd, bwd1, bwd2, out_accumulated=p.roles[2]).square().sum(), (x, y)
    )

    derived_grads = torch.autograd.grad(p.run(x, y).square().sum(), (x, y))
    for one, other in zip(given_grads, derived_grads, strict=True):
        assert_close(one, other, 1e-11)


@st.composite
def matrices(draw: st.DrawFn):
    """A sparse matrix and a leading shape."""
    out, inner = draw(st.integers(0, 6)), draw(st.integers(0, 6))
    count = draw(st.integers(0, 15)) if out and inner else 0
    rows = [draw(st.integers(0, out - 1)) for _ in range(count)]
    columns = [draw(st.integers(0, inner - 1)) for _ in range(count)]
    leading = draw(st.lists(st.integers(0, 3), max_size=3))
    return rows, columns, out, inner, leading, draw(sizes), draw(st.integers(0, 1000))


@COMMON
@given(matrices())
def test_sparse_scale_and_its_transpose_are_adjoint(m) -> None:
    rows, columns, out, inner, leading, channels, seed = m
    scale = random_values([len(rows)], torch.float64, seed)
    fwd, bwd = sparse_scale_infos(rows, columns, scale, out, inner)
    x = random_values([*leading, inner, channels], torch.float64, seed + 1)
    y = random_values([*leading, out, channels], torch.float64, seed + 2)

    left = (lacewing.sparse_scale(x, fwd, bwd) * y).sum()

    assert_close((x * lacewing.sparse_scale(y, bwd, fwd)).sum(), left, 1e-10)


@COMMON
@given(matrices())
def test_sparse_scale_gradients_are_adjoint(m) -> None:
    rows, columns, out, inner, leading, channels, seed = m
    scale = random_values([len(rows)], torch.float64, seed).requires_grad_()
    fwd, _ = sparse_scale_infos(rows, columns, scale, out, inner)
    x = random_values([*leading, inner, channels], torch.float64, seed + 1).requires_grad_()
    z = lacewing.sparse_scale(x, fwd)
    upstream = torch.randn(z.shape, dtype=torch.float64)

    grad_x, grad_scale = torch.autograd.grad(z, (x, scale), upstream)

    want = (z * upstream).sum().detach()
    assert_close((x.detach() * grad_x).sum(), want, 1e-10)
    assert_close((scale.detach() * grad_scale).sum(), want, 1e-10)
