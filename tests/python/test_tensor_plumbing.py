"""What stands between torch and the rules of sparse tensors: lists, containers, tangents, ended transforms."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as fw
from torch import Tensor

import lacewing


def eye(device: str, n: int = 3) -> lacewing.SparseTensor:
    return lacewing.to_sparse(torch.eye(n, device=device))


def dense(t: Any) -> Tensor:
    return t.to_dense() if isinstance(t, lacewing.SparseTensor) else t


def test_ops_in_place_on_lists_reach_every_tensor(device: str) -> None:
    s, d = eye(device), torch.ones(3, 3, device=device)
    torch._foreach_mul_([d, s], 5.0)
    assert s.to_dense().equal(5 * torch.eye(3, device=device))
    assert d.equal(torch.full((3, 3), 5.0, device=device))
    torch._foreach_copy_([s], [eye(device) * 2])
    assert s.to_dense().equal(2 * torch.eye(3, device=device))
    torch._foreach_zero_([s])
    assert s.to_dense().count_nonzero() == 0


def test_ops_on_lists_keep_tensors_sparse(device: str) -> None:
    s = eye(device)
    doubled, shifted = torch._foreach_mul([s, s], 2.0)[0], torch._foreach_add([s], 1.0)[0]
    assert isinstance(doubled, lacewing.SparseTensor)
    assert dense(doubled).equal(2 * torch.eye(3, device=device))
    assert dense(shifted).equal(torch.eye(3, device=device) + 1)


def test_lists_that_cannot_be_written_are_refused(device: str) -> None:
    out = [lacewing.to_sparse(torch.zeros(n, 3, device=device)) for n in (1, 2)]
    with pytest.raises(RuntimeError, match="split_with_sizes_copy writes to a list with sparse tensors in it"):
        torch.split_with_sizes_copy(torch.eye(3, device=device), [1, 2], out=out)
    leaf = lacewing.sparse_coo_tensor([[0], [0]], torch.ones(1, device=device, requires_grad=True), (2, 2))
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        torch._foreach_exp_([leaf])


class Batch(list):  # type: ignore[type-arg]
    """A list of a class of its own."""


class Pair(tuple):  # type: ignore[type-arg]
    """A tuple of a class of its own."""


@pytest.mark.parametrize("container", [list, tuple, Batch, Pair])
def test_sequences_of_any_class(container: Any, device: str) -> None:
    s = eye(device)
    wanted = torch.cat([torch.eye(3, device=device)] * 2)
    assert dense(torch.cat(container([s, s]))).equal(wanted)
    assert dense(torch.vstack(container([s, s]))).equal(wanted)


REDUCTIONS = {
    "amax": lambda t: t.amax(),
    "amax of rows": lambda t: t.amax(1),
    "amin": lambda t: t.amin(),
    "max": lambda t: t.max(),
    "min of columns": lambda t: t.min(0).values,
    "prod": lambda t: t.prod(),
    "prod of rows": lambda t: t.prod(1),
    "largest norm": lambda t: torch.linalg.vector_norm(t, float("inf"), dim=1),
    "logsumexp": lambda t: t.logsumexp(1),
}


@pytest.mark.parametrize("how", REDUCTIONS)
@pytest.mark.parametrize("dual_fill", [False, True])
def test_tangents_of_reductions(how: str, dual_fill: bool, device: str) -> None:
    with fw.dual_level():
        values = fw.make_dual(torch.tensor([1.0, 2.0], device=device), torch.tensor([1.0, 3.0], device=device))
        fill = torch.tensor(1.0, device=device)
        fill = fw.make_dual(fill, torch.tensor(2.0, device=device)) if dual_fill else fill
        s = lacewing.sparse_coo_tensor(torch.tensor([[0, 1], [0, 1]], device=device), values, (2, 3), fill_value=fill)
        found = fw.unpack_dual(dense(REDUCTIONS[how](s))).tangent
        wanted = fw.unpack_dual(REDUCTIONS[how](s.to_dense())).tangent
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("how", ["logsumexp", "amax", "std", "norm"])
def test_a_transform_that_has_ended_leaves_its_tensors(how: str, device: str) -> None:
    x = torch.randn(3, 3, device=device, generator=torch.Generator(device).manual_seed(0))

    def gradient(s: Tensor) -> Tensor:
        out, vjp = torch.func.vjp(lambda x: getattr(s * x, how)(dim=1), x)
        return vjp(torch.ones_like(out))[0]

    found = gradient(eye(device))
    if "DeferredInit" in str(torch._C._dispatch_keys(found)):  # as docs/tensors.md says, without the Python class
        found = lacewing.SparseTensor(found).to_dense()
    torch.testing.assert_close(found, gradient(torch.eye(3, device=device)))


@pytest.mark.parametrize("index", [-7, 2])
def test_indices_of_torch_are_looked_at(index: int, device: str) -> None:
    given = torch.sparse_coo_tensor(
        torch.tensor([[index], [0]], device=device), torch.ones(1, device=device), (2, 2), check_invariants=False
    )
    with pytest.raises(RuntimeError, match=rf"indices\[0, 0\] = {index} is out of range for size \(2, 2\)"):
        lacewing.from_torch(given)
    with pytest.raises(RuntimeError, match="is out of range"):
        eye(device, 2) @ given


def test_torch_is_not_believed_that_entries_are_coalesced() -> None:
    indices, values = torch.tensor([[1, 0, 1], [0, 0, 0]]), torch.tensor([2.0, 3.0, 2.0])
    given = torch.sparse_coo_tensor(indices, values, (2, 2), is_coalesced=True, check_invariants=False)
    s = lacewing.from_torch(given)
    assert (s * s).sum() == 25


def test_sizes_that_multiply_beyond_int64(device: str) -> None:
    def one(size: int) -> lacewing.SparseTensor:
        return lacewing.sparse_coo_tensor(torch.tensor([[5]], device=device), torch.ones(1, device=device), (size,))

    with pytest.raises(RuntimeError, match=r"\[lacewing.kron\] size .* has more elements than int64 can count"):
        torch.kron(one(3 << 31), one(3 << 31))
    for count in (4, 5):
        with pytest.raises(RuntimeError, match=r"\[lacewing.repeat\] size .* has more elements than int64 can count"):
            one(1 << 62).repeat(count)
    with pytest.raises(RuntimeError, match="has more elements than int64 can count"):
        one(1 << 40).repeat(1 << 30, 1)


@pytest.mark.parametrize(
    ("text", "dtype"), [("300", torch.uint8), ("-1", torch.uint8), ("3000000000", torch.int32), ("-1", torch.uint64)]
)
def test_integers_of_files_that_do_not_fit(text: str, dtype: torch.dtype, tmp_path: Path) -> None:
    tns, mtx = tmp_path / "a.tns", tmp_path / "a.mtx"
    tns.write_text(f"1 1 7\n1 2 {text}\n")
    mtx.write_text(f"%%MatrixMarket matrix coordinate integer general\n1 2 2\n1 1 7\n1 2 {text}\n")
    with pytest.raises(RuntimeError, match=rf"line 2: the value {text} does not fit into"):
        lacewing.read_tns(tns, dtype=dtype)
    with pytest.raises(ValueError, match="it has values that do not fit into"):
        lacewing.read_mtx(mtx, dtype=dtype)
    assert lacewing.read_tns(tns, dtype=torch.int64).values().tolist() == [7, int(text)]
    assert lacewing.read_mtx(mtx, dtype=torch.int64).values().tolist() == [7, int(text)]


def test_integers_at_the_ends_of_a_type(tmp_path: Path) -> None:
    path = tmp_path / "a.tns"
    for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64):
        ends = [torch.iinfo(dtype).min, torch.iinfo(dtype).max]
        path.write_text(f"1 {ends[0]}\n2 {ends[1]}\n")
        assert lacewing.read_tns(path, dtype=dtype).values().tolist() == ends


def test_saved_tensors_load_to_meta() -> None:
    for s in (eye("cpu"), eye("cpu").to_gcs()):
        file = io.BytesIO()
        torch.save(s, file)
        file.seek(0)
        loaded = torch.load(file, map_location="meta")
        assert loaded.device.type == "meta"
        assert loaded.shape == s.shape


def test_arguments_that_are_no_numbers(device: str) -> None:
    values = torch.ones(1, device=device)
    with pytest.raises(TypeError, match="indices are no array of numbers, but NoneType"):
        lacewing.sparse_coo_tensor(None, values)
    with pytest.raises(TypeError, match="are no array of numbers, but object"):
        lacewing.sparse_coo_tensor([[0]], values, (2,), fill_value=object())
    with pytest.raises(TypeError, match=r"sparse_dims must be an integer, not 1\.5"):
        lacewing.to_sparse(torch.eye(2), 1.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a sparse matrix or array of SciPy is needed, not ndarray"):
        lacewing.from_scipy(torch.eye(2).numpy())
    with pytest.raises(TypeError, match="limit must be a number of bytes, not 'x'"):
        lacewing.set_densify_policy("raise", "x")  # type: ignore[arg-type]
