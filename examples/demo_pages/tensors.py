"""Sparse tensors: pictures of formats and fills, the coverage of torch's ops, the cost of a few."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from benchmarks.report import duration
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

import lacewing
from demo_pages import html
from demo_pages.registry import Page, Section, Step, page
from demo_pages.tensors_coverage import KINDS, OUTCOMES, measured

COLORS = ["#0f766e", "#5eead4", "#cbd5e1", "#dc2626"]
EXAMPLE = """
S = lacewing.to_sparse(X)                       # or sparse_coo_tensor, read_mtx, from_scipy, from_torch
Y = torch.softmax(S[2:50] @ W, 1)               # the program of a strided tensor
(torch.cos(S) * S.T).sum().backward()           # gradients reach S.values() and the fill
G = S.to_gcs(row_dims=(0,))                     # compressed rows: CSR in two dims, any split in more
"""


@page("tensors", "Sparse tensors", steps=5)
def make(step: Step) -> Page:
    """Draws tensors and their formats, counts what torch's ops do with them, and times a few."""
    step("drawing a matrix")
    graph = _grid(10)
    spy = html.picture(
        _spy(graph), "A grid's Laplacian, and the 4-D tensor of the same numbers as a matrix of its odd and even dims."
    )
    step("softmax with a fill")
    softmax = html.picture(
        _softmax(),
        "The softmax along a sparse dim: three entries, and what the two other elements, which are not stored, share.",
    )
    step("asking torch's ops")
    counts = measured()
    native = {kind: count["native"] for kind, count in counts.items()}
    total = sum(counts["Lacewing COO"].values())
    coverage = html.picture(
        _coverage(counts), f"{total} entries of torch's operator database, one sample each, as just measured."
    )
    step("the largest shape")
    largest = _largest()
    step("timing")
    rows = _times()
    return Page(
        summary="COO, GCRS and GCCS in any dimension with fill values: torch tensors that every torch op takes, with "
        "gradients to values and fill.",
        facts={
            "entries of the operator database": str(total),
            "answered without a strided copy": str(native["Lacewing COO"]),
            "the same by torch's COO": str(native["torch COO"]),
            "wrong answers": str(sum(counts[k]["wrong"] for k in ("Lacewing COO", "Lacewing GCRS"))),
            "elements of the largest tensor here": f"{largest:.0e}",
        },
        sections=[
            Section(
                "A tensor like any other",
                "The program stays as it is; the format is a detail.",
                [html.code(EXAMPLE), spy],
            ),
            Section(
                "Fills",
                "An element without an entry has a value of its own, which takes part in every op and can "
                "have a gradient. The seed's example: indices 0, 2 and 4 of 5, fill 0.",
                [softmax],
            ),
            Section(
                "Which ops",
                "Native: no strided copy was made. Strided inside: right, by way of a strided tensor, "
                "under a limit of bytes. Refused: an error. Wrong: another answer.",
                [coverage],
            ),
            Section(
                "What it costs",
                f"A few repeats on {torch.get_num_threads()} threads; make bench measures more.",
                [html.table(["op", "Lacewing", "torch", "times faster"], rows)],
            ),
        ],
    )


def _grid(side: int) -> lacewing.SparseTensor:
    """The Laplacian of a grid, as a 4-D tensor (row, column, row', column')."""
    line = lacewing.diags([[2.0], [-1.0], [-1.0]], [0, 1, -1], (side, side))
    one = lacewing.eye(side)
    plane = torch.kron(line, one) + torch.kron(one, line)
    return plane.reshape(side, side, side, side)  # type: ignore[return-value]


def _spy(tensor: lacewing.SparseTensor) -> Figure:
    side = tensor.shape[0]
    figure, axes = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
    tensor.reshape(side * side, side * side).spy(axes[0], cmap="viridis")
    g = tensor.to_gcs((0, 2), (1, 3))
    rows = torch.repeat_interleave(torch.arange(side * side), g.compressed_indices().diff())
    reduced = lacewing.sparse_coo_tensor(torch.stack([rows, g.plain_indices()]), g.values(), (side * side,) * 2)
    reduced.spy(axes[1], cmap="viridis")
    axes[1].set(xlabel="dims 1 and 3", ylabel="dims 0 and 2")
    return figure


def _softmax() -> Figure:
    values = torch.tensor([[11.0, 21.0], [13.0, 23.0], [15.0, 25.0]], dtype=torch.float64)
    p = torch.softmax(lacewing.sparse_coo_tensor([[0, 2, 4]], values, (5, 2)), 0)
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained", sharey=True)
    for column, axis in enumerate(axes):
        stored = p.indices()[0].tolist()
        fill = float(p.fill_value[column])
        heights = [float(p.to_dense()[i, column]) for i in range(5)]
        colors = [COLORS[0] if i in stored else COLORS[2] for i in range(5)]
        bars = axis.bar(range(5), heights, color=colors)
        labels = [f"{h:.6f}" if i in stored else f"fill {fill:.1e}" for i, h in enumerate(heights)]
        axis.bar_label(bars, labels, fontsize=8)
        axis.set(title=f"row {column + 1}", yscale="log", xlabel="index", ylim=(1e-12, 20))
    axes[0].set_ylabel("probability")
    return figure


def _coverage(counts: dict[str, dict[str, int]]) -> Figure:
    figure, axis = plt.subplots(figsize=(9, 2.8), layout="constrained")
    kinds = list(KINDS)[::-1]
    left = [0] * len(kinds)
    for outcome, color in zip(OUTCOMES, COLORS, strict=True):
        widths = [counts[kind][outcome] for kind in kinds]
        bars = axis.barh(kinds, widths, left=left, color=color, label=outcome)
        axis.bar_label(bars, [str(w) if w > 12 else "" for w in widths], label_type="center", fontsize=8)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    axis.set_xlabel("entries of the operator database")
    axis.legend(ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)
    return figure


def _largest() -> float:
    """A chain of ops on 10^15 elements, with the guard against strided copies at 16 MiB."""
    s = lacewing.random((10**6, 10**6, 10**3), nse=100_000, requires_grad=True)
    with lacewing.densify_policy("raise", 16 << 20):
        loss = (torch.sin(s) * s).sum((0, 2)).amax() + s.to_gcs((2, 0)).transpose(0, 1)[:10].sum()
        loss.backward()
    return float(s.numel())


def _times() -> list[list[str]]:
    s = lacewing.random((100_000, 100_000), nse=1_000_000, generator=torch.Generator().manual_seed(0))
    unsorted = lacewing.sparse_coo_tensor(s.indices().flip(1), s.values(), s.shape)
    coo, csr = s.to_torch().coalesce(), s.to_torch(torch.sparse_csr)
    scattered = unsorted.to_torch()
    x = torch.randn(100_000, 16)
    g = s.to_gcs()
    cases: list[tuple[str, Callable[[], object], Callable[[], object]]] = [
        ("CSR @ dense, 16 columns", lambda: g @ x, lambda: csr @ x),
        ("coalesce", lambda: _again(unsorted).coalesce(), lambda: scattered.clone().coalesce()),
        ("CSR to CSC", lambda: _columns(csr), lambda: csr.to_sparse_csc()),
        ("S + S.T", lambda: s + s.T, lambda: coo + coo.t()),
    ]
    rows = []
    for name, ours, theirs in cases:
        a, b = _median(ours), _median(theirs)
        rows.append([name, duration(a), duration(b), f"{b / a:.1f}"])
    return rows


def _columns(csr: torch.Tensor) -> torch.Tensor:
    return lacewing.from_torch(csr).to_gcs(compressed="columns").compressed_indices()


def _again(s: lacewing.SparseTensor) -> lacewing.SparseTensor:
    """Without what was derived from its indices."""
    return lacewing.sparse_coo_tensor(s.indices(), s.values(), s.shape)


def _median(run: Callable[[], object], repeats: int = 5) -> float:
    run()
    samples = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        samples.append(time.perf_counter() - start)
    return statistics.median(samples)
