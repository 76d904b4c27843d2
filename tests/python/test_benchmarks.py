"""The benchmark harness: order of measurement, statistics, counters, coefficients. Nothing here times anything."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks import clebsch_gordan as cg
from benchmarks.__main__ import main
from benchmarks.case import OURS, Case, Context, Row, geometric_mean, run_case
from benchmarks.checking import WrongResultError, check_contenders, max_relative_error
from benchmarks.costs import OPS, count, product_work, shapes
from benchmarks.growth import Growth, Point, fitted_exponent
from benchmarks.limits import Limits, Work
from benchmarks.memory import peak_bytes, peak_of
from benchmarks.peers import braintrace_online
from benchmarks.peers import torch_products as peers
from benchmarks.peers.torch_infos import sorted_view
from benchmarks.products import clebsch_gordan_triples, input_maker, random_triples
from benchmarks.registry import Outcome, Workload, load_workloads, select
from benchmarks.report import as_markdown, as_text, duration, growth_tables, size_text, speed_table
from benchmarks.results import merge, outcome_json
from benchmarks.timing import Schedule, Timing, interleave
from benchmarks.workloads.p1_infos import lexicographic, read_views

CPU = torch.device("cpu")
LIMITS = Limits(copy_bytes_per_s=100.0, flops_per_s=1000.0)


class FakeClock:
    """Runs the work and returns prepared durations."""

    def __init__(self, seconds: list[float]) -> None:
        self.seconds = iter(seconds)

    def __call__(self, work: Callable[[], None]) -> float:
        work()
        return next(self.seconds)


def make_row(ours: float = 1.0, peer: float = 3.0) -> Row:
    timings = {OURS: Timing((ours,)), "peer": Timing((peer,))}
    return Row("mul", "forward", timings, {OURS: [0.0], "peer": [0.0]}, {OURS: 8, "peer": 16}, Work(50, 0), "copy", 0.5)


# Timing.


def test_contenders_alternate_and_share_each_rounds_fresh_inputs() -> None:
    calls: list[tuple[str, int]] = []
    contenders = {name: lambda seed, name=name: calls.append((name, seed)) for name in "AB"}
    schedule = Schedule(warmup=1, repeats=3, sample_s=0.0)

    interleave(contenders, lambda seed: seed, FakeClock([1.0] * 8), schedule)

    assert calls == [("A", 0), ("B", 0), ("A", 1), ("B", 1), ("A", 2), ("B", 2), ("A", 3), ("B", 3)]


def test_rotation_walks_through_the_input_sets() -> None:
    seeds: list[int] = []
    schedule = Schedule(warmup=1, repeats=1, sample_s=0.0)

    interleave({"A": seeds.append}, lambda seed: seed, FakeClock([1.0] * 2), schedule, rotation=3)

    assert seeds == [0, 3, 4, 5]


def test_samples_are_per_call() -> None:
    schedule = Schedule(warmup=1, repeats=2, sample_s=4.0)

    timings = interleave({"A": lambda _: None}, lambda seed: seed, FakeClock([1.0, 8.0, 12.0]), schedule)

    assert timings["A"].samples == (2.0, 3.0)


def test_budget_ends_the_rounds_after_the_least_number() -> None:
    schedule = Schedule(warmup=1, repeats=10, least_repeats=3, budget_s=1.0, sample_s=0.0)

    timings = interleave({"A": lambda _: None}, lambda seed: seed, FakeClock([5.0] * 20), schedule)

    assert len(timings["A"].samples) == 3


def test_median_and_spread() -> None:
    timing = Timing((5.0, 1.0, 2.0, 3.0, 4.0))

    assert timing.median == 3.0
    assert timing.spread == pytest.approx(2.0 / 3.0)
    assert Timing((7.0,)).spread == 0.0


def test_geometric_mean() -> None:
    assert geometric_mean([1.0, 4.0, 16.0]) == pytest.approx(4.0)
    assert math.isnan(geometric_mean([]))


# Checking.


def test_error_is_relative_to_the_largest_value() -> None:
    assert max_relative_error(torch.tensor([1.0, 8.5]), torch.tensor([1.0, 8.0])) == pytest.approx(0.0625)
    assert max_relative_error(torch.zeros(2), torch.zeros(3)) == math.inf
    assert max_relative_error(torch.tensor([math.nan]), torch.ones(1)) == math.inf


def test_a_wrong_contender_is_named_and_never_timed() -> None:
    def late(_: object) -> None:
        raise AssertionError("timed")

    contenders = {OURS: lambda x: (x + 1,), "late": late}
    case = Case("add", "forward", contenders, lambda _: torch.ones(2), lambda x: [x.double()], [1e-6], Work(1, 1))

    with pytest.raises(WrongResultError, match=f"{OURS}: result 0 is off by 1.00e\\+00"):
        run_case(case, Context(CPU, True, LIMITS, lambda _: None))


def test_a_missing_result_is_an_error() -> None:
    with pytest.raises(WrongResultError, match="returned 0 results, expected 1"):
        check_contenders({"A": lambda _: ()}, None, lambda _: [torch.ones(1)], [1.0])


# Memory, limits and work.


def test_peak_is_the_highest_running_total() -> None:
    assert peak_of([(3, -100), (1, 100), (2, 50), (4, 60)]) == 150


def test_peak_bytes_counts_intermediates() -> None:
    x = torch.ones(1 << 18)

    peak = peak_bytes(lambda: (x * 2) + 1, CPU)

    assert 2 * x.nbytes <= peak < 2 * x.nbytes + 4096


def test_the_slower_limit_counts() -> None:
    assert LIMITS.seconds(Work(bytes=200, flops=1000)) == (2.0, "copy")
    assert LIMITS.seconds(Work(bytes=200, flops=4000)) == (4.0, "fma")


# Two terms, x[0] y[0] -> z[0] and x[1] y[0] -> z[0], for two rows of x and one of y and z; N 2, C 3.
HAND = count(torch.tensor([0, 1]), torch.tensor([0, 0]), torch.tensor([0, 0]), (2, 1, 1))
HAND_STRUCTURE = 2 * 12 + 4 * 2


def test_counts_by_hand() -> None:
    assert (HAND.terms, HAND.pairs_xy, HAND.pairs_xz, HAND.pairs_yz) == (2, 2, 2, 1)


@pytest.mark.parametrize(
    ("op", "elements", "flops_per_n"),
    [
        # x (2,2,3), y (2,1,3), z (2,1,3); both terms one by one cost 18, products first 6 + 12, sums of x first 12 + 6.
        ("mul", 12 + 6 + 6, 18),
        # z (2,1,3,3); sums of x first: 2 terms * 2 * 3 + 1 pair * 2 * 9.
        ("outer", 12 + 6 + 18, 30),
        # z (2,1); products first: 2 pairs * (6 - 1) + 2 terms * 2 = 14, term by term 2 * 7.
        ("inner", 12 + 6 + 2, 14),
        # y (2,1,3,3); sums of x first: 12 + 18.
        ("vecmat", 12 + 18 + 6, 30),
        # y (2,1); term by term 2 * (6 + 1) = 14, sums of y first: 2 * 2 + 2 pairs * 2 * 3 = 16.
        ("vecsca", 12 + 2 + 6, 14),
        # x (2,2); sums of x first: 2 * 2 + 1 pair * 2 * 3.
        ("scavec", 4 + 6 + 6, 10),
        # x (2,2,3,3); sums of y first: 2 * 2 * 3 + 2 pairs * 2 * 9, term by term 2 * (18 + 3) = 42.
        ("mat_t_vec", 36 + 6 + 6, 42),
    ],
)
def test_forward_work_by_hand(op: str, elements: int, flops_per_n: int) -> None:
    work = product_work(op, 2, 3, HAND)

    assert work.bytes == 4 * elements + HAND_STRUCTURE
    assert work.flops == 2 * flops_per_n


def test_backward_work_by_hand() -> None:
    # Gradient of x: 2 terms, distinct outputs; products y*gz once (3), then scaled into each (2 * 2 * 3) = 15.
    # Gradient of y: sums of x shared by the one (y, z) pair: 12 + 6 = 18, as every other way.
    work = product_work("mul", 2, 3, HAND, backward=True)

    assert work.bytes == 4 * (24 + 2 * 12 + 2 * 6 + 6) + 2 * HAND_STRUCTURE
    assert work.flops == 2 * (18 + 15 + 18)


def test_growth_exponents() -> None:
    points = [Point(s, Timing((2.0 * s**1.5,)), Work(s, 0), float(s)) for s in (1, 10, 100, 1000)]
    growth = Growth("mul", "forward", "T", "N 1", points)

    assert growth.exponent == pytest.approx(1.5)
    assert growth.work_exponent == pytest.approx(1.0)
    assert math.isnan(fitted_exponent([1], [1]))


# Clebsch-Gordan coefficients.


def test_there_are_34_paths_and_611_terms() -> None:
    terms = cg.product_terms(3)

    assert len(terms.paths) == 34
    assert len(terms) == 611
    for index in (terms.index1, terms.index2, terms.index):
        assert (index.min(), index.max()) == (0, 15)


@pytest.mark.parametrize("path", cg.all_paths(3), ids=str)
def test_coefficients_are_invariant_under_rotation(path: cg.Path) -> None:
    tensor = cg.real_clebsch_gordan(*path)
    d1, d2, d3 = (cg.wigner_d(ell, np.array([0.3, -1.2, 0.7])) for ell in path)

    rotated = np.einsum("ijk,il,jm,kn->lmn", tensor, d1, d2, d3)

    np.testing.assert_allclose(rotated, tensor, atol=1e-13)
    assert np.linalg.norm(tensor) == pytest.approx(1.0)


def test_small_coefficients_by_hand() -> None:
    np.testing.assert_allclose(cg.real_clebsch_gordan(1, 1, 0)[:, :, 0], np.eye(3) / math.sqrt(3), atol=1e-15)
    cross = cg.real_clebsch_gordan(1, 1, 1) * math.sqrt(6)
    np.testing.assert_allclose(np.einsum("ijk,i,j->k", cross, [1, 0, 0], [0, 1, 0]), [0, 0, 1], atol=1e-15)
    assert cg.complex_clebsch_gordan(1, 1, 1, -1, 0, 0) == pytest.approx(1 / math.sqrt(3))
    assert cg.complex_clebsch_gordan(1, 0, 1, 0, 1, 0) == 0.0


def test_wigner_matrices_are_rotations() -> None:
    matrix = cg.block_wigner_d(3, np.array([1.0, 0.5, -0.25]))

    np.testing.assert_allclose(matrix @ matrix.T, np.eye(16), atol=1e-13)
    assert np.linalg.det(matrix) == pytest.approx(1.0)


# Peers.


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("op", OPS)
def test_peers_agree_with_a_loop_over_the_terms(op: str, backward: bool) -> None:
    triples = random_triples(7, (3, 4, 5), CPU)
    inputs = input_maker(op, 5, 2, triples.rows, CPU, backward)(1)
    product = {
        "mul": "c,c->c",
        "outer": "a,b->ab",
        "inner": "c,c->",
        "vecmat": "i,io->o",
        "vecsca": "c,->c",
        "scavec": ",c->c",
        "mat_t_vec": "io,i->o",
    }[op]

    def loop(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        rows = [[torch.zeros(shapes(op, 1, triples.rows, 2)[2][2:]) for _ in range(5)] for _ in range(5)]
        for n in range(5):
            for i, j, k, s in zip(triples.index1, triples.index2, triples.index, triples.scale, strict=True):
                rows[n][k] = rows[n][k] + s * torch.einsum(product, x[n, i], y[n, j])
        return torch.stack([torch.stack(row) for row in rows])

    expected = peers.with_gradients(loop, inputs)
    coefficients = peers.dense_coefficients(triples, torch.float32)
    whole = peers.with_gradients(lambda x, y: peers.composition(op, x, y, triples), inputs)
    chunked = peers.in_chunks(lambda x, y: peers.composition(op, x, y, triples), inputs, 2)
    dense = peers.with_gradients(lambda x, y: peers.dense_product(op, x, y, coefficients), inputs)
    oracle = peers.fp64_oracle(op, inputs, coefficients.double())

    assert len(expected) == (3 if backward else 1)
    for results in (whole, chunked, dense, oracle):
        torch.testing.assert_close(results, expected, check_dtype=False, rtol=1e-5, atol=1e-5)


def test_torch_views_are_sorted_with_pointers_for_empty_rows() -> None:
    view = sorted_view(torch.tensor([2, 0, 1]), torch.tensor([0, 1, 2]), torch.tensor([2, 1, 1]), 3, 3, 4)

    assert view.segments.tolist() == [0, 0, 2, 3, 3]
    assert view.order.tolist() == [1, 2, 0]
    assert (view.first.tolist(), view.second.tolist()) == ([0, 1, 2], [1, 2, 0])


def test_the_views_oracle_agrees_with_torch() -> None:
    from benchmarks.peers.torch_infos import sorted_views

    triples = random_triples(200, (5, 6, 7), CPU)
    views = sorted_views(triples.index1, triples.index2, triples.index, 7, 5, 6)

    torch.testing.assert_close(read_views(views), lexicographic(triples), check_dtype=False, rtol=0, atol=0)


def test_clebsch_gordan_triples_have_no_repeated_term() -> None:
    triples = clebsch_gordan_triples(CPU)
    counts = count(triples.index1, triples.index2, triples.index, triples.rows)

    assert (counts.terms, counts.pairs_xy, counts.pairs_xz, counts.pairs_yz) == (611, 256, 256, 256)


# Registry, report and results.


def test_a_peer_in_another_process_says_why_it_failed() -> None:
    task = braintrace_online.Task(2, 3, 20.0, 200.0, 0.1, 1.0, 0.3)

    reason = braintrace_online.run(task, {"xs": torch.zeros(1, 1, 2)}, limit_s=60.0)

    assert isinstance(reason, str)
    assert "Error: " in reason
    assert braintrace_online.missing(torch.device("cuda")) == "braintrace: on the CPU only"


def test_workloads_register_themselves_and_are_selected_with_their_parts() -> None:
    workloads = load_workloads()

    assert [w.id for w in select(workloads, ["P1"])] == ["P1", "P1-growth", "P1-infos"]
    assert [w.id for w in select(workloads, ["P1-infos"])] == ["P1-infos"]
    assert select(workloads, []) == list(workloads.values())
    with pytest.raises(ValueError, match="no workload is called P"):
        select(workloads, ["P"])


def test_an_unknown_workload_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "Q9"]) == 2
    assert "no workload is called Q9" in capsys.readouterr().err


def test_tables_say_ratio_and_fraction() -> None:
    table = speed_table("P1", [make_row()])

    assert table[0] == ["workload", "case", "mode", OURS, "+-", "peer", "ratio", "of limit", "limit"]
    assert table[1] == ["P1", "mul", "forward", "1.00 s", "0%", "3.00 s", "3.00x", "50%", "copy"]
    assert as_markdown(table).splitlines()[1] == "|" + " --- |" * 9
    assert len({len(line) for line in as_text(table).splitlines()}) == 1


def test_growth_tables_group_by_axis_and_mode() -> None:
    points = [Point(s, Timing((float(s),)), Work(s, 0), float(s)) for s in (1, 10)]
    growths = [Growth(op, "forward", axis, "", points) for axis in "TN" for op in ("mul", "inner")]

    tables = growth_tables(growths)

    assert [len(table) for table in tables] == [3, 3]
    assert tables[0][1][-2:] == ["T^1.00", "T^1.00"]


@pytest.mark.parametrize(
    ("seconds", "text"), [(2.5, "2.50 s"), (0.0123, "12.3 ms"), (4.56e-4, "456 us"), (5e-7, "0.50 us")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("size", "text"), [(12, "12 B"), (1536, "1.5 KiB"), (3 << 20, "3.0 MiB"), (5 << 30, "5.00 GiB")]
)
def test_sizes(size: int, text: str) -> None:
    assert size_text(size) == text


def test_results_of_other_workloads_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "new" / "cpu.json"
    outcome = Outcome([make_row()], summary={"geomean": 3.0})
    entry = outcome_json(Workload("P1", "title", lambda _: outcome), outcome, {"date": "2026-01-01"}, LIMITS)

    merge(path, {"P1": entry})
    merge(path, {"S1": entry})

    stored = json.loads(path.read_text())
    assert list(stored) == ["P1", "S1"]
    assert stored["P1"]["rows"][0]["ratios"] == {"peer": 3.0}
