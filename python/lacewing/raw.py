"""The raw forms of the products and of sparse scale: fields instead of infos, checked in every call, no gradients."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from ._library import ops
from ._plan import check_flag, check_tensor
from .info import Indices, Values, as_index, as_scale, as_size


class RawProduct(Protocol):
    """The signature of the raw products."""

    __name__: str

    def __call__(
        self,
        input1: Tensor,
        input2: Tensor,
        scale: Values = None,
        index1: Indices = None,
        index2: Indices = None,
        seg_out: Indices = None,
        gather_index: Indices = None,
        index_out: Indices = None,
        out_size: int | None = None,
        out_accumulated: bool = False,
    ) -> Tensor:
        """See ``indexed_mul_scale_gather``."""
        ...


def _beside(input: Tensor, tensors: list[Tensor | None]) -> list[Tensor | None]:
    """Where torch traces an op it wants its tensors on one device; where it runs, the op reads them from any."""
    if not torch.compiler.is_compiling():
        return tensors
    return [None if tensor is None else tensor.to(input.device) for tensor in tensors]


def raw_form(name: str, function: Any) -> RawProduct:
    """The raw form of a product."""
    op = getattr(ops, name)

    def raw(
        input1: Tensor,
        input2: Tensor,
        scale: Values = None,
        index1: Indices = None,
        index2: Indices = None,
        seg_out: Indices = None,
        gather_index: Indices = None,
        index_out: Indices = None,
        out_size: int | None = None,
        out_accumulated: bool = False,
    ) -> Tensor:
        check_tensor(name, "input1", input1)
        check_tensor(name, "input2", input2)
        check_flag(name, "out_accumulated", out_accumulated)
        fields = {"index1": index1, "index2": index2, "seg_out": seg_out}
        fields |= {"gather_index": gather_index, "index_out": index_out}
        tensors = [as_scale(name, scale), *(as_index(name, field, values) for field, values in fields.items())]
        size = as_size(name, "out_size", out_size)
        result: Tensor = op(input1, input2, *_beside(input1, tensors), size, out_accumulated)
        return result

    raw.__name__ = raw.__qualname__ = name
    raw.__doc__ = f"""``{function.__name__}`` from the fields of a SparseProductInfo; not differentiable.

    The fields are checked and grouped in every call: build an info once where the same terms are used again.
    """
    return raw


def indexed_scale_segment(
    input: Tensor,
    scale: Values,
    index: Indices,
    seg_out: Indices,
    out_size: int | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """``sparse_scale`` from its fields; not differentiable.

    ``out``, where given, is overwritten, never added to; it must have the output's shape and dtype and share no memory
    with the input. ``seg_out`` must have out_size + 1 entries.
    """
    name = "indexed_scale_segment"
    check_tensor(name, "input", input)
    tensors = [as_scale(name, scale), as_index(name, "index", index), as_index(name, "seg_out", seg_out)]
    arguments = (input, *_beside(input, tensors), as_size(name, "out_size", out_size), None)
    if out is None:
        result: Tensor = ops.indexed_scale_segment(*arguments)
        return result
    check_tensor(name, "out", out)
    ops.indexed_scale_segment_out(*arguments, out)
    return out
