"""GCRS and GCCS: rules 20 to 23 of sparse tensors, and conversions between all formats with gradients."""

from __future__ import annotations

import copy
import io
import itertools
import pickle
from collections.abc import Iterator

import numpy as np
import pytest
import scipy.sparse
import torch

import lacewing

pytestmark = pytest.mark.filterwarnings("ignore:Sparse")


def sample(
    shape: tuple[int, ...] = (4, 5), sparse_dims: int | None = None, fill: object = None, device: str = "cpu"
) -> lacewing.SparseTensor:
    """About half of the places, in no order, some of them twice."""
    generator = torch.Generator().manual_seed(len(shape))
    count = len(shape) if sparse_dims is None else sparse_dims
    nse = max(1, int(np.prod(shape[:count])) // 2)
    indices = torch.stack([torch.randint(s, (nse,), generator=generator) for s in shape[:count]])
    values = torch.randint(1, 9, (nse, *shape[count:]), generator=generator).double()
    return lacewing.sparse_coo_tensor(indices.to(device), values.to(device), shape, fill)


def splits(dims: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    for order in itertools.permutations(range(dims)):
        for cut in range(1, dims):
            yield order[:cut], order[cut:]


@pytest.mark.parametrize("compressed", ["rows", "columns"])
@pytest.mark.parametrize("dims", [2, 3, 4])
def test_20_every_ordered_split_keeps_the_elements(device: str, dims: int, compressed: str) -> None:
    s = sample((3, 4, 2, 5)[:dims], device=device)

    for rows, cols in splits(dims):
        g = s.to_gcs(rows, cols, compressed)

        assert (g.row_dims, g.col_dims) == (rows, cols)
        assert g.format == ("gcrs" if compressed == "rows" else "gccs")
        assert torch.equal(g.to_dense(), s.to_dense())
        assert torch.equal(g.to_coo().to_dense(), s.to_dense())


def test_21_the_reduced_indices_of_the_five_dims_example() -> None:
    """Rule 21: a0 = i0*d2*d4 + i2*d4 + i4 and a1 = i1*d3 + i3, of shape (d0*d2*d4, d1*d3)."""
    _, d1, d2, d3, d4 = shape = (2, 3, 4, 2, 3)
    s = sample(shape)

    g = s.to_gcs((0, 2, 4), (1, 3))

    i = g.indices()
    rows = torch.repeat_interleave(torch.arange(2 * d2 * d4), g.compressed_indices().diff())
    assert torch.equal(rows, i[0] * d2 * d4 + i[2] * d4 + i[4])
    assert torch.equal(g.plain_indices(), i[1] * d3 + i[3])
    assert torch.equal(i[2], (rows // d4) % d2)
    assert torch.equal(i[0], rows // (d2 * d4))
    assert int(g.plain_indices().max()) < d1 * d3
    again = lacewing.sparse_gcs_tensor(g.compressed_indices(), g.plain_indices(), g.values(), shape, (0, 2, 4), (1, 3))
    assert torch.equal(again.indices(), i)


@pytest.mark.parametrize("fill", [None, 2.5, lacewing.undefined, torch.tensor([1.0, 2.0], dtype=torch.float64)])
def test_20_dense_dims_and_fills_are_kept(fill: object) -> None:
    s = sample((3, 4, 2), 2, fill)
    stand_in = 7.0 if fill is lacewing.undefined else None

    g = s.to_gcs((1,), compressed="columns")

    assert g.fill_kind == s.fill_kind
    assert g.values().shape[1:] == (2,)
    assert torch.equal(g.to_dense(stand_in), s.to_dense(stand_in))
    assert torch.equal(torch.exp(g).to_dense(stand_in), torch.exp(s).to_dense(stand_in))
    assert torch.exp(g).format == "gccs"


@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_csc])
def test_20_in_two_dims_the_arrays_are_those_of_csr_and_csc(layout: torch.layout) -> None:
    s = sample((6, 7))
    by_row = layout == torch.sparse_csr
    expected = s.to_dense().to_sparse(layout=layout)

    g = s.prune().to_gcs(compressed="rows" if by_row else "columns")

    starts, plain = (
        (expected.crow_indices(), expected.col_indices())
        if by_row
        else (expected.ccol_indices(), expected.row_indices())
    )
    assert torch.equal(g.compressed_indices(), starts)
    assert torch.equal(g.plain_indices(), plain)
    assert torch.equal(g.values(), expected.values())


def test_20_fewer_than_two_sparse_dims_stay_coo() -> None:
    assert sample((5,)).to_gcs().format == "coo"
    assert sample((5, 2), 1).to_gcs().format == "coo"


def test_20_the_default_rows_are_the_first_dim_and_the_rest_is_ascending() -> None:
    s = sample((2, 3, 4))

    assert s.to_gcs().row_dims == (0,)
    assert s.to_gcs().col_dims == (1, 2)
    assert s.to_gcs((2,)).col_dims == (0, 1)
    assert s.to_gcs(col_dims=(1,)).row_dims == (0, 2)


@pytest.mark.parametrize(
    ("rows", "cols", "message"),
    [
        ((0, 3), None, r"dim 3 of row_dims \(0, 3\) .* is not one of the 3 sparse dims"),
        ((-1,), None, "dim -1 of row_dims"),
        ((0, 0), None, r"dim 0 is named twice in row_dims \(0, 0\)"),
        ((0, 1, 2), None, "must be a split of the 3 sparse dims, with one in each at least"),
        ((0,), (1,), "must be a split of the 3 sparse dims"),
    ],
)
def test_20_other_splits_are_refused(rows: tuple[int, ...], cols: tuple[int, ...] | None, message: str) -> None:
    with pytest.raises(RuntimeError, match=rf"\[lacewing\.to_gcs\] .*{message}"):
        sample((2, 3, 4)).to_gcs(rows, cols)


def test_20_compressed_must_be_rows_or_columns() -> None:
    with pytest.raises(ValueError, match='compressed must be "rows" or "columns", not "cols"'):
        sample().to_gcs(compressed="cols")


@pytest.mark.parametrize(
    ("starts", "plain", "size", "message"),
    [
        ([0, 1, 3], [0, 1, 2], (2, 3), None),
        ([1, 1, 3], [0, 1, 2], (2, 3), r"compressed_indices\[0\] = 1 must be 0"),
        ([0, 4, 3], [0, 1, 2], (2, 3), r"compressed_indices\[1\] = 4 must lie between"),
        ([0, 1, 2], [0, 1, 2], (2, 3), r"compressed_indices\[2\] = 2 must be the number of entries, 3"),
        ([0, 1], [0, 1, 2], (2, 3), r"compressed_indices must have shape \(3,\), not \(2,\)"),
        ([0, 1, 3], [0, 1, 3], (2, 3), r"plain_indices\[2\] = 3 is out of range: there are 3 columns"),
        ([0, 1, 3], [0, -1, 2], (2, 3), r"plain_indices\[1\] = -1 is out of range"),
        ([0, 1, 3], [0.0, 1.0, 2.0], (2, 3), "plain_indices must be int32 or int64"),
        ([0, 1, 3], [0, 1], (2, 3), r"plain_indices must have shape \(3,\), not \(2,\)"),
        ([0, 1, 3], [0, 1, 2], (6,), "must have two sparse dims at least"),
        ([0, 1, 3], [0, 1, 2], (2, -3), "must have two sparse dims at least"),
    ],
)
def test_11_arrays_of_a_compressed_tensor_are_checked(
    starts: list[int], plain: list[float], size: tuple[int, ...], message: str | None
) -> None:
    if message is None:
        made = lacewing.sparse_gcs_tensor(starts, plain, [1.0, 2.0, 3.0], size)
        assert made.to_dense().tolist() == [[1, 0, 0], [0, 2, 3]]
        return
    with pytest.raises(RuntimeError, match=message):
        lacewing.sparse_gcs_tensor(starts, plain, [1.0, 2.0, 3.0], size)


def test_22_a_reduced_index_beyond_int64_is_refused() -> None:
    """At construction, where a size of 0 hides it from the number of elements too."""
    none = torch.zeros(3, 0, dtype=torch.int64)

    with pytest.raises(RuntimeError, match=r"size \(1099511627776, 1099511627776, 0\) has more elements than int64"):
        lacewing.sparse_coo_tensor(none, torch.zeros(0), (2**40, 2**40, 0))
    with pytest.raises(RuntimeError, match=r"\[lacewing\.sparse_gcs_tensor\] .* has more elements than int64"):
        lacewing.sparse_gcs_tensor([0], [], torch.zeros(0), (0, 2**40, 2**40))


def test_22_row_starts_beyond_the_limit_are_refused_when_they_are_wanted() -> None:
    s = lacewing.sparse_coo_tensor([[3], [5], [7]], [1.0], (10**6, 10**6, 10**3))

    g = s.to_gcs((0, 1))

    assert g.sum() == 1
    with pytest.raises(RuntimeError, match=r"compressed_indices has no sparse form .* above the limit"):
        g.compressed_indices()


@pytest.mark.parametrize("format", ["coo", "gcrs", "gccs"])
def test_23_numel_is_the_product_of_the_shape(format: str) -> None:
    s = sample((3, 4, 2))
    g = s if format == "coo" else s.to_gcs((2, 0), compressed="rows" if format == "gcrs" else "columns")

    assert g.numel() == 24
    assert tuple(g.shape) == (3, 4, 2)


def test_duplicates_and_unsorted_columns_of_given_arrays_are_legal() -> None:
    g = lacewing.sparse_gcs_tensor([0, 3, 4], [2, 0, 2, 1], [1.0, 2.0, 4.0, 8.0], (2, 3))

    assert not g.is_coalesced()
    assert g.to_dense().tolist() == [[2, 0, 5], [0, 8, 0]]
    assert (g * g).to_dense().tolist() == [[4, 0, 25], [0, 64, 0]]
    assert g.coalesce().plain_indices().tolist() == [0, 2, 1]
    assert g.coalesce().format == "gcrs"
    assert g.coalesce().is_coalesced()
    assert torch.equal(g @ torch.eye(3), g.to_dense())


def test_formats_print_their_split() -> None:
    g = sample((2, 3, 4)).to_gcs((2, 0), compressed="columns")

    assert repr(g) == (
        f"<SparseTensor gccs: shape=(2, 3, 4), rows=(2, 0), cols=(1,), nse={g.nse}, dtype=torch.float64, "
        "device=cpu, fill=0>"
    )


def test_transposing_csr_gives_csc_of_the_same_arrays() -> None:
    g = sample((4, 6)).to_gcs()
    starts, plain = g.compressed_indices(), g.plain_indices()

    t = g.T

    assert (t.format, t.row_dims, t.col_dims) == ("gccs", (0,), (1,))
    assert t.compressed_indices().data_ptr() == starts.data_ptr()
    assert t.plain_indices().data_ptr() == plain.data_ptr()
    assert t.values().data_ptr() == g.values().data_ptr()
    assert torch.equal(t.to_dense(), g.to_dense().T)
    assert t.T.format == "gcrs"


def test_2_results_keep_the_format_of_the_first_operand(device: str) -> None:
    coo = sample((4, 6), device=device)
    g = coo.to_gcs((1,))

    for result in (g + coo, g * 2, torch.cat([g, coo]), g[1:, ::2], g.flip(0), g @ coo.T, torch.where(g > 2, g, coo)):
        assert (result.format, result.row_dims) == ("gcrs", (1,))
    assert (coo + g).format == "coo"
    assert g.unsqueeze(0).row_dims == (0,)
    assert g.sum(1).format == "coo"
    assert g[0].format == "coo"


@pytest.mark.parametrize("compressed", ["rows", "columns"])
def test_18_and_19_prune_with_fill_and_the_additive_form_keep_the_format(compressed: str) -> None:
    g = sample((4, 6), fill=5.0).to_gcs((1,), compressed=compressed)

    additive, rest = g.to_additive()
    made = [
        g.prune(),
        g.with_fill(1.0),
        rest,
        lacewing.from_additive(additive, rest),
        g.coalesce(),
        g.to(torch.float32),
    ]

    assert {t.format for t in made} == {g.format}
    assert {t.row_dims for t in made} == {(1,)}
    assert torch.equal(made[0].to_dense(), g.to_dense())
    assert (made[0].values() == 5).sum() == 0
    assert torch.equal(made[3].to_dense(), g.to_dense())
    assert torch.equal(rest.to_dense() + 5, g.to_dense())


def test_in_place_ops_keep_the_format() -> None:
    g = sample((4, 6)).to_gcs((1,))
    expected = g.to_dense() * 2
    expected[0, 0] = 9

    g.mul_(2)
    g[0, 0] = 9.0

    assert g.format == "gcrs"
    assert torch.equal(g.to_dense(), expected)


def test_methods_of_torch_convert_between_the_formats() -> None:
    s = sample((4, 6))

    csr, csc = s.to_sparse_csr(), s.to_sparse_csc()

    assert (csr.format, csc.format, csc.to_sparse().format) == ("gcrs", "gccs", "coo")
    assert s.to_sparse(layout=torch.sparse_csc).format == "gccs"
    assert torch.equal(csr.crow_indices(), csr.compressed_indices())
    assert torch.equal(csc.row_indices(), csc.plain_indices())
    with pytest.raises(RuntimeError, match=r"aten::crow_indices needs a tensor in GCRS"):
        csc.crow_indices()
    with pytest.raises(RuntimeError, match="the tensor is in COO"):
        s.compressed_indices()


CONVERSIONS = {
    "gcrs": lambda s: s.to_gcs(),
    "gccs": lambda s: s.to_gcs(compressed="columns"),
    "back": lambda s: s.to_gcs((1,)).to_coo(),
    "twice": lambda s: s.to_gcs().to_gcs(compressed="columns"),
    "coalesce": lambda s: s.to_gcs().coalesce(),
    "transpose": lambda s: s.to_gcs().T.to_gcs().T,
    "dense": lambda s: lacewing.to_sparse(s.to_gcs().to_dense()).to_gcs(),
    "torch coo": lambda s: lacewing.from_torch(s.to_torch()),
    "torch csr": lambda s: lacewing.from_torch(s.to_torch(torch.sparse_csr)),
    "torch csc": lambda s: lacewing.from_torch(s.to_gcs().to_torch(torch.sparse_csc)),
    "torch bsr": lambda s: lacewing.from_torch(s.to_torch(torch.sparse_bsr, (2, 3))),
    "torch bsc": lambda s: lacewing.from_torch(s.to_torch(torch.sparse_bsc, (2, 3))),
}


@pytest.mark.parametrize("conversion", CONVERSIONS)
def test_17_gradients_reach_the_values_through_conversions(device: str, conversion: str) -> None:
    s = sample((4, 6), device=device)
    values = s.values().clone().requires_grad_()
    x = torch.randn(6, 3, dtype=torch.float64, device=device)
    make = lambda v: lacewing.sparse_coo_tensor(s.indices(), v, s.shape)

    converted = CONVERSIONS[conversion](make(values))

    assert torch.equal(converted.to_dense(), s.to_dense())
    found = torch.autograd.grad((torch.sin(converted) @ x).square().sum(), values)[0]
    expected = torch.autograd.grad((torch.sin(make(values).to_dense()) @ x).square().sum(), values)[0]
    assert torch.allclose(found, expected)


def test_second_derivatives_through_compressed_products() -> None:
    s = sample((4, 6))
    values = s.values().clone().requires_grad_()
    x = torch.randn(6, 2, dtype=torch.float64, requires_grad=True)
    make = lambda v: lacewing.sparse_coo_tensor(s.indices(), v, s.shape).to_gcs((1,), compressed="columns")

    assert torch.autograd.gradgradcheck(lambda v, y: (make(v) @ y).sin(), (values, x))


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc])
def test_torch_layouts_share_memory_both_ways(device: str, layout: torch.layout) -> None:
    theirs = sample((4, 6), device=device).to_dense().to_sparse(layout=layout)

    ours = lacewing.from_torch(theirs)
    back = ours.to_torch(layout)

    assert ours.values().data_ptr() == theirs.values().data_ptr() == back.values().data_ptr()
    assert torch.equal(back.to_dense(), theirs.to_dense())
    if layout == torch.sparse_csr:
        assert (
            ours.compressed_indices().data_ptr() == theirs.crow_indices().data_ptr() == back.crow_indices().data_ptr()
        )
        assert ours.plain_indices().data_ptr() == theirs.col_indices().data_ptr() == back.col_indices().data_ptr()
    elif layout == torch.sparse_coo:
        assert ours.indices().data_ptr() == theirs.indices().data_ptr() == back.indices().data_ptr()


@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc])
def test_batches_and_blocks_of_torch(layout: torch.layout) -> None:
    mask = torch.zeros(4, 6, dtype=torch.bool)
    mask[::2, 1::2] = True
    dense = torch.randn(3, 4, 6, dtype=torch.float64) * mask
    blocked = {"blocksize": (2, 3)} if layout in (torch.sparse_bsr, torch.sparse_bsc) else {}

    ours = lacewing.from_torch(dense.to_sparse(layout=layout, **blocked))

    assert torch.equal(ours.to_dense(), dense)
    assert ours.format == ("gcrs" if layout in (torch.sparse_csr, torch.sparse_bsr) else "gccs")


@pytest.mark.parametrize("layout", [torch.sparse_bsr, torch.sparse_bsc])
def test_blocks_are_those_of_torch(layout: torch.layout) -> None:
    s = sample((4, 6)).to_gcs()

    found, expected = s.to_torch(layout, (2, 2)), s.to_dense().to_sparse(layout=layout, blocksize=(2, 2))

    assert torch.equal(found.values(), expected.values())
    assert torch.equal(found.to_dense(), expected.to_dense())


def test_torch_layouts_that_do_not_fit_are_refused() -> None:
    with pytest.raises(RuntimeError, match="have the fill 0 and no other"):
        sample(fill=1.0).to_torch()
    with pytest.raises(RuntimeError, match="SparseCsr holds matrices"):
        sample((2, 3, 4)).to_torch(torch.sparse_csr)
    with pytest.raises(
        RuntimeError, match=r"needs a blocksize of two numbers that divide the shape \(4, 5\), not \(3, 2\)"
    ):
        sample().to_torch(torch.sparse_bsr, (3, 2))
    with pytest.raises(RuntimeError, match="not a strided one: use to_sparse"):
        lacewing.from_torch(torch.ones(2, 2))
    with pytest.raises(RuntimeError, match=r"the tensor must be strided, not SparseCsr: use from_torch"):
        lacewing.to_sparse(torch.eye(2).to_sparse_csr())


@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("format", ["csr", "csc"])
def test_scipy_matrices_share_memory_both_ways(format: str, index: type) -> None:
    matrix = scipy.sparse.random(7, 5, 0.4, format=format, rng=np.random.default_rng(0))
    matrix.indices, matrix.indptr = matrix.indices.astype(index), matrix.indptr.astype(index)

    ours = lacewing.from_scipy(matrix)
    back = ours.to_scipy()

    assert back.format == format
    for name in ("data", "indices", "indptr"):
        assert np.shares_memory(getattr(matrix, name), getattr(back, name))
    assert np.array_equal(back.toarray(), matrix.toarray())
    assert np.array_equal(ours.to_dense().numpy(), matrix.toarray())


@pytest.mark.parametrize("format", ["coo", "bsr", "dia", "lil", "dok"])
def test_other_scipy_formats_are_converted(format: str) -> None:
    matrix = scipy.sparse.random(6, 4, 0.4, rng=np.random.default_rng(0)).asformat(format)

    ours = lacewing.from_scipy(matrix)

    assert np.array_equal(ours.to_dense().numpy(), matrix.toarray())
    assert np.array_equal(ours.to_scipy("csc").toarray(), matrix.toarray())


def test_scipy_arrays_of_more_dims() -> None:
    s = sample((2, 3, 4))

    assert np.array_equal(s.to_gcs().to_scipy().toarray(), s.to_dense().numpy())
    assert torch.equal(lacewing.from_scipy(s.to_scipy()).to_dense(), s.to_dense())
    with pytest.raises(ValueError, match="csr holds a matrix, not a tensor of shape"):
        s.to_scipy("csr")
    with pytest.raises(ValueError, match='format must be "coo", "csr" or "csc", not "dia"'):
        s.to_scipy("dia")
    with pytest.raises(ValueError, match="entries must be numbers, not blocks"):
        sample((2, 3), 1).to_scipy()


@pytest.mark.parametrize("fill", [None, 2.5, lacewing.undefined, torch.tensor([1.0, 2.0], dtype=torch.float64)])
@pytest.mark.parametrize("format", ["coo", "gcrs", "gccs"])
def test_every_format_and_fill_is_saved_and_copied(format: str, fill: object) -> None:
    s = sample((3, 4, 2), 2, fill)
    s = s if format == "coo" else s.to_gcs((1,), compressed="rows" if format == "gcrs" else "columns")
    s.requires_grad_()
    file = io.BytesIO()
    torch.save({"weight": s}, file)
    file.seek(0)

    copies = [copy.deepcopy(s), pickle.loads(pickle.dumps(s)), torch.load(file)["weight"], s.detach()]

    for other in copies:
        assert (other.format, other.row_dims, other.fill_kind) == (s.format, s.row_dims, s.fill_kind)
        assert torch.equal(other.values(), s.values())
        assert torch.equal(other.indices(), s.indices())
        if s.fill_kind != "undefined":
            assert torch.equal(other.fill_value, s.fill_value)
    assert [c.requires_grad for c in copies] == [True, True, True, False]


def test_a_data_loader_passes_sparse_tensors_between_processes() -> None:
    data = [sample((4, 5)).to_gcs(), sample((4, 5))]

    loaded = list(torch.utils.data.DataLoader(data, batch_size=None, num_workers=1))

    assert [s.format for s in loaded] == ["gcrs", "coo"]
    assert all(torch.equal(a.to_dense(), b.to_dense()) for a, b in zip(loaded, data, strict=True))
