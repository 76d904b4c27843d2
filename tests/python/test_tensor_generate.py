"""Sparse tensors from few numbers, batches of them, and their pictures."""

from __future__ import annotations

import itertools

import pytest
import torch

import lacewing


@pytest.mark.parametrize(
    ("size", "nse"), [((6, 7), 42), ((6, 7), 20), ((1000, 1000), 500), ((3,), 0), ((10**6,) * 3, 99)]
)
def test_random_tensors_have_distinct_places(device: str, size: tuple[int, ...], nse: int) -> None:
    generator = torch.Generator(device).manual_seed(0)

    s = lacewing.random(size, nse=nse, device=device, generator=generator)

    assert s.nse == nse
    assert tuple(s.shape) == size
    assert s.is_coalesced()
    again = lacewing.random(size, nse=nse, device=device, generator=torch.Generator(device).manual_seed(0))
    assert torch.equal(s.indices(), again.indices())
    assert torch.equal(s.values(), again.values())


def test_random_places_are_spread_evenly() -> None:
    counts = torch.zeros(5, 40)
    for seed in range(400):
        generator = torch.Generator().manual_seed(seed)
        counts += lacewing.random((5, 40), nse=10, sampler=torch.randn, generator=generator).to_dense() != 0

    # 20 of each are expected: five deviations are far.
    assert counts.sum() == 4000
    assert 0 < counts.min() <= counts.max() < 42


def test_random_takes_a_density_dense_dims_and_a_fill() -> None:
    s = lacewing.random((10, 10, 3), 0.25, sparse_dims=2, fill_value=2.0, dtype=torch.float64, requires_grad=True)

    assert s.values().shape == (25, 3)
    assert s.requires_grad
    assert (s.to_dense() == 2).sum() == 75 * 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "give one of density and nse"),
        ({"density": 0.5, "nse": 3}, "give one of density and nse"),
        ({"density": 1.5}, "density must lie between 0 and 1, not 1.5"),
        ({"nse": 13}, "nse must lie between 0 and the 12 places, not 13"),
        ({"nse": 1, "sparse_dims": 3}, "sparse_dims must lie between 0 and 2, not 3"),
    ],
)
def test_random_refuses_what_cannot_be(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lacewing.random((3, 4), **arguments)


@pytest.mark.parametrize("columns", [None, 2, 6])
def test_eye_is_that_of_torch(device: str, columns: int | None) -> None:
    expected = torch.eye(4, 4 if columns is None else columns, dtype=torch.int32, device=device)

    assert torch.equal(lacewing.eye(4, columns, dtype=torch.int32, device=device).to_dense(), expected)


def test_diags_with_gradients() -> None:
    main = torch.randn(4, dtype=torch.float64, requires_grad=True)
    upper = torch.randn(3, dtype=torch.float64, requires_grad=True)
    lower = torch.randn((), dtype=torch.float64, requires_grad=True)
    expected = torch.diag(main) + torch.diag(upper, 1) + torch.diag(lower.expand(2), -2)
    weight = torch.randn(4, 4, dtype=torch.float64)

    s = lacewing.diags([main, upper, lower], [0, 1, -2], (4, 4))

    assert torch.equal(s.to_dense(), expected)
    leaves = (main, upper, lower)
    for found, wanted in zip(
        torch.autograd.grad((s @ weight).sin().sum(), leaves),
        torch.autograd.grad((expected @ weight).sin().sum(), leaves),
        strict=True,
    ):
        assert torch.allclose(found, wanted)


def test_diags_find_their_size_and_are_checked() -> None:
    assert lacewing.diags([1.0, 2.0], -1).to_dense().tolist() == [[0, 0, 0], [1, 0, 0], [0, 2, 0]]
    assert tuple(lacewing.diags([[1.0, 2.0], [3.0]], [1, 0], (2, 3)).shape) == (2, 3)
    with pytest.raises(ValueError, match="1 diagonals need as many offsets, not 2"):
        lacewing.diags([[1.0]], [0, 1])
    with pytest.raises(
        RuntimeError, match=r"diagonal 0 has 3 elements, but offset 1 of a matrix of shape \(3, 3\) has 2"
    ):
        lacewing.diags([[1.0, 2.0, 3.0]], [1], (3, 3))
    with pytest.raises(RuntimeError, match=r"diagonal 0 must be a vector, not of shape \(1, 1\)"):
        lacewing.diags([[[1.0]]], [0])


@pytest.mark.parametrize("format", ["coo", "gcrs"])
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_batches_stay_sparse(format: str, dim: int) -> None:
    parts = [lacewing.random((4, 5), nse=6, generator=torch.Generator().manual_seed(k)) for k in range(3)]
    parts = parts if format == "coo" else [p.to_gcs() for p in parts]

    with lacewing.densify_policy("raise", 0):
        batch = torch.stack(parts, dim)

    assert batch.format == format
    assert torch.equal(batch.to_dense(), torch.stack([p.to_dense() for p in parts], dim))
    assert all(torch.equal(a.to_dense(), b.to_dense()) for a, b in zip(batch.unbind(dim), parts, strict=True))


@pytest.mark.parametrize("shape", [(5,), (5, 6), (3, 4, 5), (0, 3)])
@pytest.mark.parametrize("format", ["coo", "gccs"])
def test_spy_draws_the_entries(shape: tuple[int, ...], format: str) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("agg")
    s = lacewing.random(shape, 0.5)
    s = s if format == "coo" else s.to_gcs(compressed="columns")

    axes = s.spy(cmap="viridis")

    assert len(axes.collections[0].get_offsets()) == s.nse
    assert axes.get_title() == f"{shape}, {s.nse} entries"
    pyplot.close(axes.figure)


def test_spy_draws_blocks_as_a_column() -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("agg")

    axes = lacewing.random((4, 3), nse=2, sparse_dims=1).spy()

    assert axes.collections[0].get_offsets()[:, 0].tolist() == [0, 0]
    pyplot.close(axes.figure)
    with pytest.raises(ValueError, match="the tensor has no sparse dim"):
        lacewing.random((4,), nse=1, sparse_dims=0).spy()


def test_spy_counts_many_entries() -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("agg")
    s = lacewing.random((10**6, 10**5), nse=100_001)

    axes = lacewing.spy(s, pixels=16)

    assert axes.images[0].get_array().shape == (16, 16)
    assert axes.images[0].get_array().sum() == s.nse
    pyplot.close(axes.figure)


@pytest.mark.parametrize("shape", [(2, 3, 4), (3, 1, 2), (1, 1), (5,), (), (2, 2, 2)])
def test_5_and_7_every_contiguous_order_is_found(shape: tuple[int, ...]) -> None:
    for order in itertools.permutations(range(len(shape))):
        made = torch.empty([shape[d] for d in order]).permute([order.index(d) for d in range(len(shape))])

        found = lacewing.contiguous_order(made.shape, made.stride())

        assert found is not None
        assert made.permute(found).is_contiguous()
    c_order = lacewing.contiguous_order(shape, torch.empty(shape).stride())
    assert c_order == tuple(range(len(shape)))


@pytest.mark.parametrize(
    ("shape", "strides", "expected"),
    [
        ((2, 3), (4, 1), None),  # a gap
        ((2, 3), (1, 1), None),  # overlapping
        ((2, 3), (0, 1), None),  # repeated
        ((2, 3), (2, 2), None),  # the seed's test would take it
        ((0, 3), (7, 7), (0, 1)),
        ((2, 1, 3), (1, 99, 2), (2, 1, 0)),
    ],
)
def test_7_other_strides_are_contiguous_in_no_order(
    shape: tuple[int, ...], strides: tuple[int, ...], expected: tuple[int, ...] | None
) -> None:
    assert lacewing.contiguous_order(shape, strides) == expected


def test_6_an_element_lies_at_the_sum_of_its_strides() -> None:
    values = torch.arange(20)[3:]

    a = lacewing.strided((1, 5), values, (4, 3))

    assert a[2, 1] == 3 + 2 + 5
    with pytest.raises(RuntimeError, match="a shape \\(2,\\) needs as many strides"):
        lacewing.contiguous_order((2,), (1, 1))


@pytest.mark.parametrize(
    "give",
    [
        lambda bad: lacewing.diags([[1.0]], [bad]),
        lambda bad: lacewing.diags([[1.0]], [0], [bad, 2]),
        lambda bad: lacewing.contiguous_order([bad], [1]),
        lambda bad: lacewing.contiguous_order([1], [bad]),
    ],
)
def test_sizes_are_integers(give) -> None:
    with pytest.raises(TypeError, match=r"\[lacewing.(diags|contiguous_order)\] \w+ must be a sequence of integers"):
        give("x")


def test_random_entries_are_counted_by_int64() -> None:
    with pytest.raises(ValueError, match=r"\[lacewing.random\] \(entries,\) .* has a number that int64 cannot hold"):
        lacewing.random((2**62, 2**62), density=1.0)
