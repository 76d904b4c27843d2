"""torch's opcheck of the registered ops of sparse tensors.

opcheck copies its arguments by their memory, which a sparse tensor has none of: it is for the ops that take strided
tensors. What makes a sparse tensor breaks the graph of torch.compile (docs/tensors.md), so that its two checks that
trace are left out. Of the other ops the schema's promise is looked at here: they leave their arguments as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

import lacewing

pytest.importorskip("expecttest", reason="torch's opcheck needs the package expecttest")

INDICES = [[0, 2, 1, 0], [3, 0, 1, 3]]


def parts(device: str) -> tuple[Tensor, Tensor]:
    values = torch.tensor([1.0, -2.0, 3.0, 0.5], dtype=torch.float64, device=device)
    return torch.tensor(INDICES, device=device), values


def sparse(device: str) -> Tensor:
    indices, values = parts(device)
    return lacewing.ops.make_sparse_tensor(indices, values, [3, 4], 0, None)


def dense(device: str) -> Tensor:
    return lacewing.ops.tensor_to_dense(sparse(device), None)


def compressed(device: str) -> tuple[Any, ...]:
    g = lacewing.ops.tensor_to_gcs(sparse(device), None, None, False)
    arrays = lacewing.ops.tensor_compressed_indices(g), lacewing.ops.tensor_plain_indices(g)
    return (*arrays, lacewing.ops.tensor_values(g), [3, 4], None, None, False, 0, None)


ARGUMENTS: dict[str, Callable[[str], tuple[Any, ...]]] = {
    "make_sparse_tensor": lambda d: (*parts(d), [3, 4], 0, None),
    "make_gcs_tensor": compressed,
    "tensor_from_dense": lambda d: (dense(d), None, 0, None),
    "tensor_to_dense": lambda d: (sparse(d), None),
    "tensor_with_fill": lambda d: (sparse(d), 0, torch.ones((), dtype=torch.float64, device=d)),
    "tensor_with_values": lambda d: (sparse(d), torch.ones(4, 2, device=d)),
    "tensor_indices": lambda d: (sparse(d),),
    "tensor_values": lambda d: (sparse(d),),
    "tensor_fill_kind": lambda d: (sparse(d),),
    "tensor_fill": lambda d: (sparse(d),),
    "tensor_nse": lambda d: (sparse(d),),
    "tensor_sparse_dim": lambda d: (sparse(d),),
    "tensor_coalesce": lambda d: (sparse(d),),
    "tensor_is_coalesced": lambda d: (sparse(d),),
    "tensor_slice": lambda d: (sparse(d), [0, 1], [2, 4], [1, 2]),
    "tensor_prune": lambda d: (sparse(d),),
    "tensor_to_additive": lambda d: (sparse(d),),
    "tensor_from_additive": lambda d: (torch.ones((), dtype=torch.float64, device=d), sparse(d)),
    "tensor_to_gcs": lambda d: (sparse(d), [1], None, True),
    "tensor_to_coo": lambda d: (sparse(d),),
    "tensor_format": lambda d: (sparse(d),),
    "tensor_row_dims": lambda d: (sparse(d),),
    "tensor_col_dims": lambda d: (sparse(d),),
    "tensor_to_torch": lambda d: (sparse(d), torch.sparse_coo, None),
    "tensor_from_torch": lambda d: (torch.eye(3, device=d).to_sparse_csr(),),
    "sparse_diags": lambda d: ([torch.ones(3, device=d), torch.ones(2, device=d)], [0, 1], [3, 3]),
    "is_sparse_tensor": lambda d: (dense(d),),
}


STRIDED = ("make_sparse_tensor", "make_gcs_tensor", "tensor_from_dense", "tensor_from_torch", "sparse_diags")


@pytest.mark.parametrize("name", STRIDED)
def test_opcheck(name: str, device: str) -> None:
    op = getattr(torch.ops.lacewing, name).default
    arguments = tree_map_only(
        Tensor, lambda t: t.requires_grad_() if t.dtype.is_floating_point else t, ARGUMENTS[name](device)
    )

    torch.library.opcheck(op, arguments, test_utils=("test_schema", "test_autograd_registration"))


def test_opcheck_of_strided(device: str) -> None:
    values = torch.arange(12.0, device=device)[::2].requires_grad_()

    torch.library.opcheck(torch.ops.lacewing.strided.default, ([2, 1], values, [2, 3]))


@pytest.mark.parametrize("name", [name for name in ARGUMENTS if name not in STRIDED])
def test_arguments_stay_as_they_are(name: str, device: str) -> None:
    arguments = ARGUMENTS[name](device)
    tensors = [t for t in arguments if isinstance(t, Tensor)]

    getattr(torch.ops.lacewing, name)(*arguments)

    for found, fresh in zip(tensors, (t for t in ARGUMENTS[name](device) if isinstance(t, Tensor)), strict=True):
        assert [torch.equal(x, y) for x, y in zip(components(found), components(fresh), strict=True)].count(False) == 0


def components(t: Tensor) -> list[Tensor]:
    if not lacewing.ops.is_sparse_tensor(t):
        return [t]
    return [lacewing.ops.tensor_indices(t), lacewing.ops.tensor_values(t), lacewing.ops.tensor_fill(t)]
