"""Online learning with sparse weights: eligibility-trace primitives, D-RTRL and pp-prop."""

from ._cells import Cell, FunctionCell, alif, gated, leaky, lif, spike
from ._connection import Connection
from ._connectivity import fixed_degree, read_mtx, small_world
from ._executor import Analysis, Executor, alpha_of_rank, analyze
from ._learner import Learner
from ._pattern import SparseMatrix, SparsePattern
from ._primitive import (
    Primitive,
    dense_matmul,
    elementwise,
    etp_elementwise_p,
    etp_mm_p,
    etp_mv_p,
    etp_sp_mm_p,
    etp_sp_mv_p,
    register_etp_rules,
    register_primitive,
    sparse_matmul,
)

__all__ = [
    "Analysis",
    "Cell",
    "Connection",
    "Executor",
    "FunctionCell",
    "Learner",
    "Primitive",
    "SparseMatrix",
    "SparsePattern",
    "alif",
    "alpha_of_rank",
    "analyze",
    "dense_matmul",
    "elementwise",
    "etp_elementwise_p",
    "etp_mm_p",
    "etp_mv_p",
    "etp_sp_mm_p",
    "etp_sp_mv_p",
    "fixed_degree",
    "gated",
    "leaky",
    "lif",
    "read_mtx",
    "register_etp_rules",
    "register_primitive",
    "small_world",
    "sparse_matmul",
    "spike",
]
