"""The seven sparse products, differentiable to any order."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from ._library import ops
from ._plan import arguments, check_flag, check_tensor
from .info import SparseProductInfo, SparseProductInfos, SparseScaleInfo
from .raw import raw_form

__all__ = [
    "SparseInner",
    "SparseMatTVec",
    "SparseMul",
    "SparseOuter",
    "SparseScaVec",
    "SparseVecMat",
    "SparseVecSca",
    "indexed_inner_scale_gather",
    "indexed_mat_t_vec_scale_gather",
    "indexed_mul_scale_gather",
    "indexed_outer_scale_gather",
    "indexed_scavec_scale_gather",
    "indexed_vecmat_scale_gather",
    "indexed_vecsca_scale_gather",
    "sparse_inner",
    "sparse_mat_t_vec",
    "sparse_mul",
    "sparse_outer",
    "sparse_scavec",
    "sparse_vecmat",
    "sparse_vecsca",
    "workspace_bytes",
]


class Product(Protocol):
    """The signature of the seven products."""

    __name__: str

    def __call__(
        self,
        input1: Tensor,
        input2: Tensor,
        info_fwd: SparseProductInfo | SparseProductInfos,
        info_bwd1: SparseProductInfo | None = None,
        info_bwd2: SparseProductInfo | None = None,
        out_accumulated: bool = False,
    ) -> Tensor:
        """See ``sparse_mul``."""
        ...


def _make(name: str, formula: str, shapes: str, rows1: int, rows2: int) -> Product:
    op = getattr(ops, name)

    def product(
        input1: Tensor,
        input2: Tensor,
        info_fwd: SparseProductInfo | SparseProductInfos,
        info_bwd1: SparseProductInfo | None = None,
        info_bwd2: SparseProductInfo | None = None,
        out_accumulated: bool = False,
    ) -> Tensor:
        if isinstance(info_fwd, SparseProductInfos) and info_bwd1 is None and info_bwd2 is None:
            info_fwd, info_bwd1, info_bwd2 = info_fwd
        if not isinstance(info_fwd, SparseProductInfo):
            raise TypeError(
                f"[lacewing.{name}] info_fwd must be a SparseProductInfo, or SparseProductInfos alone, not "
                f"{type(info_fwd).__name__}"
            )
        for view, given in enumerate((info_bwd1, info_bwd2), 1):
            if given is not None and not isinstance(given, SparseProductInfo):
                raise TypeError(
                    f"[lacewing.{name}] info_bwd{view} must be a SparseProductInfo, not {type(given).__name__}"
                )
        check_tensor(name, "input1", input1)
        check_tensor(name, "input2", input2)
        check_flag(name, "out_accumulated", out_accumulated)
        in1 = input1.shape[rows1] if input1.dim() >= -rows1 else 0
        in2 = input2.shape[rows2] if input2.dim() >= -rows2 else 0
        # The op reports a wrong rank.
        ranked = input1.dim() in (-rows1, 1 - rows1) and input2.dim() in (-rows2, 1 - rows2)
        if info_fwd._open and ranked and in1 != in2:
            raise ValueError(
                f"[lacewing.{name}] an info whose fields are all absent takes as many rows of input1 as of input2, not "
                f"{in1} and {in2}"
            )
        info: SparseProductInfo = info_fwd._resolved(in1)
        plans = info._arguments((info_bwd1, info_bwd2), (in1, in2), input1, input2)
        result: Tensor = op(input1, input2, info.scale, *plans, out_accumulated)
        return result

    product.__name__ = product.__qualname__ = name
    product.__doc__ = f"""``{formula}``, summed over the terms of info_fwd.

    Shapes: {shapes}. An operand with one dim less (no N) is shared by all n; ``out_accumulated`` also sums over n and
    drops N from the output. dtype: ``torch.result_type(input1, input2)``; float16 and bfloat16 accumulate in float32.
    Differentiable to any order for both inputs and for ``info_fwd.scale``. Backward infos that are not given are
    derived once and kept on info_fwd. Allocates the output and what ``workspace_bytes`` tells. Deterministic: the same
    bits for every run and every number of threads. Raises RuntimeError or ValueError with one sentence for operands
    that do not fit. A scale of another dtype than the result's is cast in every call.
    """
    return product


sparse_mul = _make(
    "sparse_mul", "z[n,M,c] = s[t] x[n,i1[t],c] y[n,i2[t],c]", "(N, M1, C), (N, M2, C) -> (N, M, C)", -2, -2
)
indexed_mul_scale_gather = raw_form("indexed_mul_scale_gather", sparse_mul)
sparse_outer = _make(
    "sparse_outer", "z[n,M,a,b] = s[t] x[n,i1[t],a] y[n,i2[t],b]", "(N, M1, C1), (N, M2, C2) -> (N, M, C1, C2)", -2, -2
)
indexed_outer_scale_gather = raw_form("indexed_outer_scale_gather", sparse_outer)
sparse_inner = _make(
    "sparse_inner", "z[n,M] = s[t] sum_c x[n,i1[t],c] y[n,i2[t],c]", "(N, M1, C), (N, M2, C) -> (N, M)", -2, -2
)
indexed_inner_scale_gather = raw_form("indexed_inner_scale_gather", sparse_inner)
sparse_vecmat = _make(
    "sparse_vecmat",
    "z[n,M,b] = s[t] sum_a x[n,i1[t],a] y[n,i2[t],a,b]",
    "(N, M1, Ci), (N, M2, Ci, Co) -> (N, M, Co)",
    -2,
    -3,
)
indexed_vecmat_scale_gather = raw_form("indexed_vecmat_scale_gather", sparse_vecmat)
sparse_vecsca = _make(
    "sparse_vecsca", "z[n,M,c] = s[t] x[n,i1[t],c] y[n,i2[t]]", "(N, M1, C), (N, M2) -> (N, M, C)", -2, -1
)
indexed_vecsca_scale_gather = raw_form("indexed_vecsca_scale_gather", sparse_vecsca)
sparse_scavec = _make(
    "sparse_scavec", "z[n,M,c] = s[t] x[n,i1[t]] y[n,i2[t],c]", "(N, M1), (N, M2, C) -> (N, M, C)", -1, -2
)
indexed_scavec_scale_gather = raw_form("indexed_scavec_scale_gather", sparse_scavec)
sparse_mat_t_vec = _make(
    "sparse_mat_t_vec",
    "z[n,M,b] = s[t] sum_a x[n,i1[t],a,b] y[n,i2[t],a]",
    "(N, M1, Ci, Co), (N, M2, Ci) -> (N, M, Co)",
    -3,
    -2,
)
indexed_mat_t_vec_scale_gather = raw_form("indexed_mat_t_vec_scale_gather", sparse_mat_t_vec)


def _alias(function: Product, name: str) -> type:
    return type(name, (), {"apply": staticmethod(function), "__doc__": f"``{name}.apply`` is ``{function.__name__}``."})


SparseMul = _alias(sparse_mul, "SparseMul")
SparseOuter = _alias(sparse_outer, "SparseOuter")
SparseInner = _alias(sparse_inner, "SparseInner")
SparseVecMat = _alias(sparse_vecmat, "SparseVecMat")
SparseVecSca = _alias(sparse_vecsca, "SparseVecSca")
SparseScaVec = _alias(sparse_scavec, "SparseScaVec")
SparseMatTVec = _alias(sparse_mat_t_vec, "SparseMatTVec")


_KINDS = (
    "sparse_mul",
    "sparse_outer",
    "sparse_inner",
    "sparse_vecmat",
    "sparse_vecsca",
    "sparse_scavec",
    "sparse_mat_t_vec",
    "sparse_scale",
)


def workspace_bytes(
    op: str,
    input1: Tensor,
    input2: Tensor | None,
    info: SparseProductInfo | SparseScaleInfo,
    out_accumulated: bool = False,
) -> int:
    """The bytes that a product (``"sparse_mul"``, ...) allocates beside its output, for operands of one dtype.

    ``input2`` is None for ``"sparse_scale"``. With the current number of threads.
    """
    if op not in _KINDS:
        raise ValueError(
            f"[lacewing.workspace_bytes] there is no product named {op}: expected one of {', '.join(_KINDS)}"
        )
    wanted = SparseScaleInfo if op == "sparse_scale" else SparseProductInfo
    if not isinstance(info, wanted):
        raise TypeError(
            f"[lacewing.workspace_bytes] info must be a {wanted.__name__} for {op}, not {type(info).__name__}"
        )
    check_tensor("workspace_bytes", "input1", input1)
    if op != "sparse_scale":
        check_tensor("workspace_bytes", "input2", input2)
    size: int = ops.product_workspace(_KINDS.index(op), input1, input2, *arguments(info._plan), out_accumulated)
    return size
