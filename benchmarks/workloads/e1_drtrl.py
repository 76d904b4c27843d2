"""E1: D-RTRL over sparse input weights, beside back-propagation through time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.case import OURS, Case, Context, Row, run_case
from benchmarks.limits import Work
from benchmarks.peers import braintrace_online
from benchmarks.peers.torch_bptt import CSR, GATHER, MASKED, SAMPLED, Alif, Entries, product
from benchmarks.registry import Outcome, workload
from benchmarks.timing import QUICK, Schedule
from lacewing import etp

OUTPUTS = 10
STATES = 2
# The trace takes several steps in one pass.
EVERY = 4
BLOCKED = f"lacewing absorb_every = {EVERY}"
# Derivatives flow through the reset: the trace of the membrane is another one for each weight.
WHOLE = "whole trace"
# Sequences are long: few repeats. A form of BPTT is left out where it needs more memory than most machines have.
SCHEDULE = Schedule(warmup=1, repeats=5, least_repeats=3, budget_s=40.0, sample_s=0.0)
FORMS = {
    33: (MASKED, CSR, SAMPLED),
    50: (MASKED, CSR, SAMPLED, GATHER),
    200: (MASKED, CSR, SAMPLED, GATHER),
    1000: (SAMPLED,),
}
WHOLE_STEPS = 200
# Threshold crossings that rounding decides differ between orders of summation; everything else agrees to 1e-5.
TOLERANCE = 5e-2


@dataclass(frozen=True)
class Problem:
    """The network: sparse input weights into ALIF neurons, a dense readout of their spikes, squared error per step."""

    batch: int
    inputs: int
    neurons: int
    degree: int
    device: torch.device

    def pattern(self) -> etp.SparsePattern:
        return etp.fixed_degree(self.inputs, self.neurons, self.degree, seed=0).to(self.device)


@dataclass(frozen=True)
class Data:
    """What one call takes."""

    xs: Tensor
    targets: Tensor
    weight: Tensor
    readout: Tensor


def make_sequence(problem: Problem, steps: int, nse: int) -> Callable[[int], Data]:
    """Spike trains, targets, weights and readout from a seed."""

    def make(seed: int) -> Data:
        generator = torch.Generator().manual_seed(seed)

        def draw(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator)

        spikes = (torch.rand(steps, problem.batch, problem.inputs, generator=generator) < 0.1).float()
        tensors = (
            spikes,
            draw(steps, problem.batch, OUTPUTS),
            draw(nse) * (3.0 / problem.degree**0.5),
            draw(problem.neurons, OUTPUTS) / problem.neurons**0.5,
        )
        return Data(*(t.to(problem.device) for t in tensors))

    return make


def drtrl(
    pattern: etp.SparsePattern, absorb_every: int = 1, reset_gradient: bool = False
) -> Callable[[Data], Sequence[Tensor]]:
    """The gradients of input weights and readout over one sequence, step by step."""

    def run(data: Data) -> Sequence[Tensor]:
        weight = data.weight.detach()
        cell = etp.alif(reset_gradient=reset_gradient)
        executor = etp.Executor(cell, etp.Connection(pattern, weight), absorb_every=absorb_every)
        readout = data.readout.detach().requires_grad_()
        for x, target in zip(data.xs, data.targets, strict=True):
            output = executor.output(executor.step(x)) @ readout
            executor.backward((output - target).square().mean())
        executor.flush()
        return weight.grad, readout.grad

    return run


def bptt(form: str, entries: Entries, reset_gradient: bool = False) -> Callable[[Data], Sequence[Tensor]]:
    """The same by autograd through the whole sequence."""
    cell = Alif(reset_gradient=reset_gradient)

    def run(data: Data) -> Sequence[Tensor]:
        forward, gradient = product(form, entries, data.weight)
        readout = data.readout.detach().requires_grad_()
        state = cell.start(torch.empty(data.xs.shape[1], entries.shape[1], dtype=data.xs.dtype, device=data.xs.device))
        loss = torch.zeros((), dtype=data.xs.dtype, device=data.xs.device)
        for x, target in zip(data.xs, data.targets, strict=True):
            state, z = cell.step(forward(x), state)
            loss = loss + (z @ readout - target).square().mean()
        loss.backward()
        return gradient(), readout.grad

    return run


def wide(data: Data) -> Data:
    return Data(data.xs.double(), data.targets.double(), data.weight.double(), data.readout.double())


@workload("E1", "D-RTRL over sparse input weights: ALIF, 512 inputs, fan-in 64")
def run(context: Context) -> Outcome:
    """Sequences of growing length; gradients of weights and readout."""
    problem = Problem(*((4, 32, 64, 8) if context.quick else (16, 512, 4096, 64)), context.device)
    lengths = (5, 20) if context.quick else tuple(FORMS)
    sequences = [(steps, False) for steps in lengths] + [(lengths[-1] if context.quick else WHOLE_STEPS, True)]
    pattern = problem.pattern()
    entries = Entries(pattern.row, pattern.col, pattern.shape)
    own = Context(context.device, context.quick, context.limits, context.tell, QUICK if context.quick else SCHEDULE)
    rows = []
    for steps, whole in sequences:
        forms = (CSR, SAMPLED) if whole else FORMS.get(steps, FORMS[50])
        contenders: dict[str, Any] = {
            OURS: drtrl(pattern, reset_gradient=whole),
            BLOCKED: drtrl(pattern, EVERY, reset_gradient=whole),
        }
        contenders |= {form: bptt(form, entries, whole) for form in forms}
        # Beyond 200 steps the oracle is D-RTRL in fp64, which the tests hold against BPTT.
        oracle = bptt(MASKED, entries, whole) if steps <= 200 else drtrl(pattern)
        # The trace of the membrane, the first state, is kept once for each input unless derivatives flow through the
        # reset: what moves is the trace of the others.
        elements = problem.batch * pattern.nse * (STATES if whole else STATES - 1)
        work = Work(2 * 4 * elements * steps, elements * steps * (2 * STATES + 4))
        case = Case(
            f"T = {steps}, {WHOLE}" if whole else f"T = {steps}",
            "gradients",
            contenders,
            make_sequence(problem, steps, pattern.nse),
            lambda data, oracle=oracle: oracle(wide(data)),
            [TOLERANCE, TOLERANCE],
            work,
        )
        rows.append(run_case(case, own))
    outcome = Outcome(rows, summary=_summary(rows, sequences))
    outcome.notes += [
        f"B {problem.batch}, N {problem.neurons}, nse {pattern.nse}, S {STATES}, fp32; whole steps: input product, "
        "cell, readout, loss, gradients",
        "the limit is copy bandwidth on the bytes of the trace that each weight has of its own, read and written once "
        f"per step: B nse (S - 1) numbers, as the membrane's is kept once for each input; B nse S for '{WHOLE}'",
        f"'{WHOLE}': reset_gradient=True, for ours and the peers; otherwise no derivative flows through the reset",
        f"'{BLOCKED}': the trace takes {EVERY} steps in one pass, so that fewer bytes move; the same bits",
        f"'{CSR}': torch's own gradient of a CSR matrix, which is dense; '{SAMPLED}': one written by hand with "
        "sampled_addmm",
        "memory: what one sequence holds beyond its inputs, D-RTRL's trace included",
    ]
    _beside_braintrace(outcome, problem, pattern, lengths[0])
    return outcome


def _beside_braintrace(outcome: Outcome, problem: Problem, pattern: etp.SparsePattern, steps: int) -> None:
    """Its D-RTRL on the shortest sequence, and how far its gradients are from ours."""
    if reason := braintrace_online.missing(problem.device):
        outcome.skipped.append(reason)
        return
    data, cell = make_sequence(problem, steps, pattern.nse)(0), Alif()
    task = braintrace_online.Task(
        problem.inputs, problem.neurons, cell.tau, cell.adaptation_tau, cell.beta, cell.threshold, cell.gain
    )
    arrays = {"xs": data.xs, "targets": data.targets, "readout": data.readout, "input_weight": data.weight}
    found = braintrace_online.run(task, {**arrays, "input_row": pattern.row, "input_col": pattern.col}, limit_s=150.0)
    if isinstance(found, str):
        outcome.skipped.append(f"braintrace: {found}")
        return
    weight, _ = drtrl(pattern)(data)
    apart = (found.gradients["input"] - weight).abs().max() / weight.abs().max()
    outcome.summary["braintrace: ms per step"] = found.seconds * 1e3 / steps
    outcome.summary["braintrace: time over ours"] = found.seconds / outcome.rows[0].timings[OURS].median
    outcome.summary["braintrace: resident MiB beyond its inputs"] = found.resident_bytes / 2**20
    outcome.summary["braintrace: largest difference from our gradient of the weights"] = float(apart)
    outcome.notes.append(
        f"braintrace {found.version}: its D-RTRL on the same {steps} steps in a process of its own, compiled before it "
        "is timed; its memory is that of the process, with the compiler's"
        + ("; it leaves the gradient of the readout at zero" if not found.gradients["readout"].any() else "")
    )


def _summary(rows: Sequence[Row], sequences: Sequence[tuple[int, bool]]) -> dict[str, float]:
    summary: dict[str, float] = {}
    for row, (steps, _) in zip(rows, sequences, strict=True):
        summary[f"{row.name}: ms per step"] = row.timings[OURS].median * 1e3 / steps
        summary[f"{row.name}: fraction of copy bandwidth on the trace"] = row.fraction
        for peer in row.peers:
            summary[f"{row.name}: ratio to {peer}"] = row.ratio(peer)
            summary[f"{row.name}: memory of {peer} over ours"] = row.peaks[peer] / max(row.peaks[OURS], 1)
    peaks = [row.peaks[OURS] for row, (_, whole) in zip(rows, sequences, strict=True) if not whole]
    summary["peak memory, longest over shortest sequence"] = peaks[-1] / max(peaks[0], 1)
    return summary
