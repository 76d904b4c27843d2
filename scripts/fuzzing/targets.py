"""What is fuzzed. A target makes one call of a kind, or a few that follow from each other."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import lacewing
from lacewing import conv, etp

from .draw import Draw

# The channels of the operands of each product.
CHANNELS = {
    "mul": ([3], [3]),
    "outer": ([2], [3]),
    "inner": ([3], [3]),
    "vecmat": ([2], [2, 3]),
    "vecsca": ([3], []),
    "scavec": ([], [3]),
    "mat_t_vec": ([2, 3], [2]),
}


def use(result: Any) -> None:
    """Looks at every number of a result: what was read or written past its end shows itself."""
    if isinstance(result, torch.Tensor):
        if result.device.type == "cpu" and result.numel() < 10**6:
            repr(result)
            (result.values() if lacewing.is_sparse_tensor(result) else result).detach().clone()
    elif isinstance(result, (tuple, list)):
        for part in result:
            use(part)


def _info(d: Draw, first: int, second: int) -> Any:
    terms, out = d.upto(7), d.size()
    make = d.pick((lacewing.sparse_product_info, lacewing.sparse_product_infos))
    arguments = [d.optional(d.indices(terms, rows), 0.1) for rows in (first, second, out)]
    scale = d.optional(d.values([terms]))
    sizes = {"out_size": d.or_strange(d.optional(out))}
    if make is lacewing.sparse_product_infos:
        sizes |= {"in1_size": d.or_strange(d.optional(first)), "in2_size": d.or_strange(d.optional(second))}
    return make(*arguments, scale, **sizes)


def infos(d: Draw) -> None:
    first, second = d.size(), d.size()
    made = _info(d, first, second)
    fwd = made[0] if isinstance(made, tuple) else made
    if d.chance(0.3):
        use(lacewing.derive_backward(fwd, d.or_strange(first), d.or_strange(d.size())))
    name, batch = d.pick(list(CHANNELS)), [d.upto(3)]
    x, y = ([*(batch if d.chance(0.7) else []), rows] for rows in (first, second))
    product = getattr(lacewing, "sparse_" + name)
    z = product(d.values(x + CHANNELS[name][0]), d.values(y + CHANNELS[name][1]), fwd, out_accumulated=d.chance(0.3))
    use(z)
    if z.requires_grad:
        z.abs().sum().backward()


def hand_made_infos(d: Draw) -> None:
    terms, segments = d.upto(6), d.upto(4)
    ends = sorted(d.upto(terms) for _ in range(max(0, segments - 1)))
    seg = [0, *ends, terms] if not d.odd(0.2) else d.sample(range(-1, 9), segments)
    fields = {
        "scale": d.optional(d.values([terms])),
        "index1": d.optional(d.indices(terms, 3)),
        "index2": d.optional(d.indices(terms, 3)),
        "seg_out": d.optional(d.or_strange(seg)),
        "gather_index": d.optional(d.indices(terms, max(terms, 1)), 0.6),
        "index_out": d.optional(d.indices(segments, 5), 0.6),
        "out_size": d.optional(d.size()),
    }
    if d.chance(0.5):
        info = lacewing.SparseProductInfo(**fields)
        use(lacewing.sparse_mul(d.values([2, 3, 2]), d.values([2, 3, 2]), info))
    else:
        fields = {
            "scale": fields["scale"],
            "index": fields["index1"],
            "seg_out": fields["seg_out"],
            "out_size": fields["out_size"],
        }
        use(lacewing.sparse_scale(d.values([2, 3, 2]), lacewing.SparseScaleInfo(**fields)))


LETTERS = "abuvz"


def _form(d: Draw) -> str:
    if d.odd(0.2):
        return "".join(d.sample(" ,->abAB1." + LETTERS, d.upto(9)))
    operands = ["".join(sorted(set(d.sample(LETTERS, d.upto(2))))) for _ in range(1 + d.upto(2))]
    letters = sorted(set("".join(operands)))
    kept = "".join(letter for letter in letters if d.chance(0.6))
    return ",".join(operands) + "->" + kept + (d.pick(LETTERS) if d.odd(0.1) else "")


def formulas(d: Draw) -> None:
    form = d.or_strange(_form(d), 0.02)
    parts = form.split("->")[0].split(",") if isinstance(form, str) else [""]
    rows, out_rows, terms = [1 + d.upto(3) for _ in parts], d.size(), d.upto(8)
    plan = lacewing.product_plan(
        form,
        index=d.or_strange([d.optional(d.indices(terms, r), 0.1) for r in rows]),
        out=d.optional(d.indices(terms, out_rows), 0.1),
        rows=d.or_strange(d.optional(d.or_strange(rows))),
        out_rows=d.or_strange(d.optional(out_rows)),
        scale=d.optional(d.values([terms]), 0.6),
    )
    batch = d.upto(4)
    operands = [d.values([batch, r, *[3] * len(p)]) for r, p in zip(rows, parts, strict=False)]
    edges = None
    if d.chance(0.5):
        count, into = d.upto(5), d.size()
        maps = [d.optional(d.indices(count, batch)) for _ in parts]
        edges = lacewing.Edges(
            maps=d.or_strange(maps),
            out=d.optional(d.indices(count, into)),
            batch=d.or_strange([d.optional(batch) for _ in parts]),
            out_batch=d.or_strange(d.optional(into)),
        )
    use(plan.explain(operands, edges))
    use(lacewing.product(plan, operands, edges))


def _is_table(rows: list[Any]) -> bool:
    """Whether rows are lists of integers of one length."""
    return all(isinstance(row, list) and len(row) == len(rows[0]) and all(type(n) is int for n in row) for row in rows)


def _tensor(d: Draw) -> Tensor:
    sparse_dims, nse = 1 + d.upto(2), d.upto(6)
    sizes = [d.size() for _ in range(sparse_dims)]
    if d.chance(0.5):
        rows = [d.indices(nse, n) for n in sizes]
        lists = [row.tolist() if isinstance(row, torch.Tensor) and not row.is_meta else row for row in rows]
        given = d.altered(torch.tensor(lists)) if d.chance(0.7) and _is_table(lists) else d.pick((rows, lists))
        shape = [*sizes, *d.sizes(1, 3)]
        fill = {"fill_value": d.pick((0, 1.5, [], float("nan"), lacewing.undefined))} if d.chance(0.2) else {}
        return lacewing.sparse_coo_tensor(
            given, d.values([nse, *shape[sparse_dims:]]), d.optional(d.or_strange(shape)), **fill
        )
    rows = max(0, min(sizes[0], 8))
    compressed = sorted(d.upto(nse) for _ in range(rows - 1)) if rows > 1 else []
    bounds = d.or_strange(torch.tensor([0, *compressed, nse]))
    if isinstance(bounds, torch.Tensor) and d.odd(0.3):
        bounds[d.upto(len(bounds) - 1)] = d.pick((*d.sample(range(-1, 9), 2), 2**62, -1))
    columns = d.size()
    return lacewing.sparse_gcs_tensor(
        bounds, d.indices(nse, columns), d.values([nse]), d.or_strange([sizes[0], columns])
    )


def tensors(d: Draw) -> None:
    s = _tensor(d)
    ways: list[Callable[[], Any]] = [
        lambda: s.coalesce(),
        lambda: s.to_dense(),
        lambda: s.to_gcs(d.or_strange([d.upto(3) - 1 for _ in range(d.upto(3))]), None),
        lambda: s.with_fill(d.or_strange(d.number())),
        lambda: s.with_values(d.values([d.upto(6)])),
        lambda: s[
            tuple(d.sample((0, -1, 7, None, ..., slice(1, None), slice(None, None, 2), [0, 1], [9]), 1 + d.upto(2)))
        ],
        lambda: s.sum(d.upto(3) - 1),
        lambda: s @ d.values([d.upto(6), 2]),
        lambda: s + _tensor(d),
        lambda: s * d.values([d.upto(6)]),
        lambda: s.reshape(d.sizes()),
        lambda: s.softmax(d.upto(2)),
        lambda: s.to_torch(d.pick((torch.sparse_coo, torch.sparse_csr, torch.sparse_bsr, torch.strided))),
    ]
    use(s)
    use(d.pick(ways)())


def generators(d: Draw) -> None:
    ways: list[Callable[[], Any]] = [
        lambda: lacewing.eye(d.or_strange(d.size()), d.or_strange(d.optional(d.size()))),
        lambda: lacewing.random(d.or_strange(d.sizes()), nse=d.or_strange(d.size())),
        lambda: lacewing.random(d.or_strange(d.sizes()), density=d.or_strange(d.number())),
        lambda: lacewing.diags(
            [d.values([d.upto(5)]) for _ in range(d.upto(3))],
            d.or_strange(d.sizes()),
            d.or_strange(d.optional(d.sizes(2))),
        ),
        lambda: lacewing.strided(d.or_strange(d.sizes()), d.values([d.upto(8)]), d.or_strange(d.sizes())),
        lambda: lacewing.contiguous_order(d.or_strange(d.sizes()), d.or_strange(d.sizes())),
        lambda: lacewing.to_sparse(d.values(d.sizes()), d.or_strange(d.optional(d.size()))),
    ]
    use(d.pick(ways)())


def patterns(d: Draw) -> None:
    rows, columns, nnz = d.size(), d.size(), d.upto(6)
    shape = d.or_strange((d.or_strange(rows), columns))
    bounds = [0, *sorted(d.upto(nnz) for _ in range(max(0, min(rows, 6) - 1))), nnz]
    ways: list[Callable[[], Any]] = [
        lambda: etp.SparsePattern.coo(d.indices(nnz, rows), d.indices(nnz, columns), shape),
        lambda: etp.SparsePattern.csr(d.or_strange(bounds), d.indices(nnz, columns), shape),
        lambda: etp.SparsePattern.csc(d.or_strange(bounds), d.indices(nnz, columns), shape),
        lambda: etp.small_world(
            d.or_strange(d.size(30)), d.or_strange(d.size(4)), d.or_strange(d.number()), seed=d.upto(9)
        ),
    ]
    pattern = d.pick(ways)()
    if isinstance(pattern, etp.SparsePattern):
        use(pattern.matmul(d.values([2, min(rows, 8)]), d.values([pattern.nse])))
        use(pattern.sampled_outer(d.values([2, min(rows, 8)]), d.values([2, min(columns, 8)])))


def convolutions(d: Draw) -> None:
    axes, voxels = 1 + d.upto(3), d.upto(9)
    distinct = list({(0, *d.sample(range(5), axes)) for _ in range(voxels)})
    voxels = len(distinct)
    coordinates = d.or_strange(d.altered(torch.tensor(distinct).reshape(voxels, axes + 1).int()))
    if isinstance(coordinates, torch.Tensor) and coordinates.numel() and not coordinates.is_meta and d.odd(0.2):
        coordinates = coordinates.clone()
        coordinates.view(-1)[d.upto(coordinates.numel() - 1)] = d.pick((-1, 2**20, 2**31 - 1, -(2**31)))
    axis = lambda: d.or_strange(d.pick((1, 2, 3, d.size(), d.sizes(4))))
    if d.chance(0.3):
        use(conv.unique_voxels(coordinates))
        use(conv.quantize(d.values([voxels, axes]), d.or_strange(d.number()), d.or_strange(0)))
        return
    plan = conv.ConvolutionPlan.build(
        coordinates, axis(), **({"stride": axis(), "dilation": axis()} if d.chance(0.5) else {})
    )
    channels = 1 + d.upto(3)
    use(conv.sparse_conv(d.values([voxels, channels]), d.values([plan.taps, 1, channels, 2]), plan))
    use(conv.pool(d.values([voxels, channels]), plan, d.or_strange(d.pick(("sum", "avg", "max")))))


MTX = """%%MatrixMarket matrix coordinate real general
% a comment
3 4 3
1 1 1.5
2 4 -2e3
3 2 nan
"""
TNS = "1 2 3 1.5\n4 1 1 -2\n2 2 2 1e-3\n"


def _damaged(d: Draw, content: bytes) -> bytes:
    """With bytes or words changed, left out or repeated."""
    for _ in range(1 + d.upto(3)):
        at, length = d.upto(len(content)), d.upto(6)
        words = (
            b"",
            b"\n",
            b" ",
            b"-1",
            b"0",
            b"9999999999999999999999",
            b"4294967296",
            b"\xff\x00",
            b"nan",
            b"1e999",
            b"symmetric",
        )
        new = d.pick((*words, content[at : at + length] * 2, bytes(d.sample(range(256), length))))
        content = content[:at] + new + content[at + length :]
    return content


def _npz(d: Draw) -> bytes:
    """As SciPy writes it, with arrays of any contents."""
    rows, columns, nnz = d.upto(5), d.upto(5), d.upto(6)
    numbers = lambda count, most: np.array(
        [d.pick(EDGE) if d.odd(0.1) else d.upto(most) for _ in range(count)],
        d.pick((np.int32, np.int64, np.float64) if d.odd(0.2) else (np.int32,)),
    )
    EDGE = (-1, 2**31 - 1)
    format = d.pick((b"csr", b"csc", b"coo", b"bsr", b"dia", b"dok", b""))
    arrays: dict[str, Any] = {
        "format": np.array(format),
        "shape": np.array([d.size(8), d.size(8)] if d.odd(0.5) else [rows, columns]),
        "data": np.array(d.sample((1.0, 2.0), nnz))
        if format not in (b"bsr", b"dia")
        else np.ones((nnz, 1 + d.upto(2), 1 + d.upto(2))[: 3 if format == b"bsr" else 2]),
        "indptr": np.sort(numbers(rows + 1, nnz)),
        "indices": numbers(nnz, columns),
        "row": numbers(nnz, rows),
        "col": numbers(nnz, columns),
        "offsets": numbers(nnz, 3),
    }
    for name in list(arrays):
        if d.odd(0.1):
            del arrays[name]
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def files(d: Draw) -> None:
    kind = d.pick(("mtx", "tns", "npz"))
    content = {"mtx": lambda: MTX.encode(), "tns": lambda: TNS.encode(), "npz": lambda: _npz(d)}[kind]()
    if d.odd(0.3 if kind == "npz" else 2.0):
        content = _damaged(d, content)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"file.{kind}"
        path.write_bytes(content)
        read = {"mtx": lacewing.read_mtx, "tns": lacewing.read_tns, "npz": lacewing.load_npz}[kind]
        read = etp.read_mtx if kind == "mtx" and d.chance(0.3) else read
        use(read(path))


TARGETS: dict[str, Callable[[Draw], None]] = {
    f.__name__: f for f in (infos, hand_made_infos, formulas, tensors, generators, patterns, convolutions, files)
}
