"""The raw forms of the products and of sparse scale: fields instead of infos, checked in every call, no gradients."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from ._plan import check_tensor
from .info import Indices, SparseProductInfo, SparseScaleInfo, Values
from .scale import sparse_scale


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


def _refuse_grad(name: str, instead: str, **tensors: object) -> None:
    for argument, tensor in tensors.items():
        if isinstance(tensor, Tensor) and tensor.requires_grad:
            raise ValueError(
                f"[lacewing.{name}] {argument} requires grad, but this op has no gradient: use {instead}, or detach it"
            )


def raw_form(name: str, function: Any) -> RawProduct:
    """The raw form of a product."""
    instead = f"lacewing.{function.__name__}"

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
        _refuse_grad(name, instead, input1=input1, input2=input2, scale=scale)
        info = SparseProductInfo(scale, index1, index2, seg_out, gather_index, index_out, out_size).to(input1.device)
        result: Tensor = function(input1, input2, info, out_accumulated=out_accumulated)
        return result

    raw.__name__ = raw.__qualname__ = name
    raw.__doc__ = f"""``{function.__name__}`` from the fields of a SparseProductInfo; not differentiable.

    The fields are checked and grouped in every call: build an info once where the same terms are used again.
    """
    return raw


def _overlap(a: Tensor, b: Tensor) -> bool:
    """Whether the spans of memory that two tensors reach meet."""
    if a.numel() == 0 or b.numel() == 0 or a.device != b.device:
        return False
    (a_begin, a_end), (b_begin, b_end) = _span(a), _span(b)
    return a_begin < b_end and b_begin < a_end


def _span(tensor: Tensor) -> tuple[int, int]:
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()


def indexed_scale_segment(
    input: Tensor,
    scale: Values,
    index: Indices,
    seg: Indices,
    out_size: int | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """``sparse_scale`` from its fields; not differentiable.

    ``out``, where given, is overwritten, never added to; it must have the output's shape and dtype and share no memory
    with the input. ``seg`` must have out_size + 1 entries.
    """
    name = "indexed_scale_segment"
    check_tensor(name, "input", input)
    if out is not None:
        check_tensor(name, "out", out)
    _refuse_grad(name, "lacewing.sparse_scale", input=input, scale=scale, out=out)
    info = SparseScaleInfo(scale, index, seg, out_size).to(input.device)
    terms = info._plan.meta[1] if info._plan.entries is not None else input.shape[-2] if input.dim() >= 2 else 0
    segments = terms if seg is None else len(seg) - 1
    if out_size is not None and segments < out_size:
        raise ValueError(f"[lacewing.{name}] seg has {segments} segments but out_size is {out_size}")
    if out is None:
        return sparse_scale(input, info)
    expected = (*input.shape[:-2], segments, input.shape[-1])
    if tuple(out.shape) != expected or out.dtype != input.dtype or out.device != input.device:
        raise ValueError(
            f"[lacewing.{name}] out must have shape {expected}, dtype {input.dtype} and be on {input.device}, not "
            f"{tuple(out.shape)}, {out.dtype} and {out.device}"
        )
    if _overlap(out, input):
        raise ValueError(f"[lacewing.{name}] out must not share memory with the input")
    return out.copy_(sparse_scale(input, info))
