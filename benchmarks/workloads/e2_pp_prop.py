"""E2: pp-prop in a large recurrent network, beside back-propagation through time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.case import OURS, Case, Context, run_case
from benchmarks.limits import Work
from benchmarks.peers import braintrace_online
from benchmarks.peers.torch_bptt import SAMPLED, Alif, Entries, product
from benchmarks.registry import Outcome, workload
from benchmarks.timing import QUICK, Schedule
from lacewing import etp

STATES = 3
FILTER_TAU = 20.0
ALPHA = 0.95
INPUTS = 256
SCHEDULE = Schedule(warmup=0, repeats=3, least_repeats=3, budget_s=60.0, sample_s=0.0)
# pp-prop approximates: only the readout's gradient, which it has exactly, is compared. Crossings that rounding decides
# move it a little.
TOLERANCE = 5e-2


@dataclass(frozen=True)
class Data:
    """What one update takes."""

    xs: Tensor
    targets: Tensor
    weight: Tensor
    recurrent: Tensor
    readout: Tensor


def maker(batch: int, neurons: int, degree: int, steps: int, device: torch.device) -> Callable[[int], Data]:
    """Spike trains, targets and weights from a seed."""

    def make(seed: int) -> Data:
        generator = torch.Generator().manual_seed(seed)
        tensors = (
            (torch.rand(steps, batch, INPUTS, generator=generator) < 0.2).float(),
            torch.randn(steps, batch, generator=generator),
            torch.rand(neurons, generator=generator),
            torch.randn(neurons * degree, generator=generator) / degree**0.5,
            torch.randn(neurons, generator=generator) / neurons**0.5,
        )
        return Data(*(t.to(device) for t in tensors))

    return make


def pp_prop(inputs: etp.SparsePattern, recurrent: etp.SparsePattern) -> Callable[[Data], Sequence[Tensor]]:
    """The gradients of one update, step by step: readout, input and recurrent weights."""

    def run(data: Data) -> Sequence[Tensor]:
        weight, again = data.weight.clone(), data.recurrent.clone()
        cell = etp.alif(filter_tau=FILTER_TAU)
        parts = etp.Connection(inputs, weight), etp.Connection(recurrent, again)
        executor = etp.Executor(cell, *parts, algorithm="pp-prop", alpha=ALPHA)
        readout = data.readout.detach().requires_grad_()
        for x, target in zip(data.xs, data.targets, strict=True):
            executor.step(x)
            executor.backward((executor.states()[-1] @ readout - target).square().mean())
        return readout.grad, weight.grad, again.grad

    return run


def bptt(inputs: Entries, recurrent: Entries) -> Callable[[Data], Sequence[Tensor]]:
    """The same by autograd through the whole sequence, with torch's CSR products."""
    cell = Alif(filter_tau=FILTER_TAU)

    def run(data: Data) -> Sequence[Tensor]:
        first, first_gradient = product(SAMPLED, inputs, data.weight)
        again, again_gradient = product(SAMPLED, recurrent, data.recurrent)
        readout = data.readout.detach().requires_grad_()
        state = cell.start(data.xs.new_empty(data.xs.shape[1], recurrent.shape[1]))
        loss = data.xs.new_zeros(())
        for x, target in zip(data.xs, data.targets, strict=True):
            state, _ = cell.step(first(x) + again(state[-1]), state)
            loss = loss + (state[2] @ readout - target).square().mean()
        loss.backward()
        return readout.grad, first_gradient(), again_gradient()

    return run


@workload("E2", "pp-prop: a recurrent ALIF network of 131,072 neurons, degree 8")
def run(context: Context) -> Outcome:
    """One update of a sequence, beside BPTT with CSR products."""
    batch, neurons, degree, steps = (4, 256, 8, 6) if context.quick else (32, 131_072, 8, 30)
    patterns = [
        etp.fixed_degree(INPUTS, neurons, 1, seed=1).to(context.device),
        etp.fixed_degree(neurons, neurons, degree, seed=2, self_connections=False).to(context.device),
    ]
    entries = [Entries(p.row, p.col, p.shape) for p in patterns]
    contenders = {OURS: pp_prop(*patterns), SAMPLED: bptt(*entries)}
    make = maker(batch, neurons, degree, steps, context.device)
    positions = batch * neurons
    # Per step: factors of outputs and inputs read and written, the state written, spikes gathered by the product.
    elements = steps * (positions * (2 * STATES + 2 * STATES + 4) + 2 * neurons * degree)
    work = Work(4 * elements, steps * 2 * batch * neurons * degree * 2)
    own = Context(context.device, context.quick, context.limits, context.tell, QUICK if context.quick else SCHEDULE)
    outcome = Outcome()
    case = Case(
        f"T = {steps}",
        "one update",
        {name: _first(run) for name, run in contenders.items()},
        make,
        lambda data: bptt(*entries)(Data(*(t.double() for t in vars(data).values())))[:1],
        [TOLERANCE],
        work,
    )
    row = run_case(case, own)
    outcome.rows.append(row)
    outcome.summary = {
        "time of BPTT over ours": row.ratio(SAMPLED),
        "memory of BPTT over ours": row.peaks[SAMPLED] / row.peaks[OURS],
        "ms per update": row.timings[OURS].median * 1e3,
    }
    outcome.notes += [
        f"B {batch}, N {neurons}, recurrent nse {patterns[1].nse}, input nse {patterns[0].nse}, S {STATES}, alpha "
        f"{ALPHA}, fp32; a loss in every step",
        "pp-prop approximates the gradients of the weights; the readout's is exact and is what is compared",
    ]
    if reason := braintrace_online.missing(context.device):
        outcome.skipped.append(reason)
        return outcome
    _beside_braintrace(outcome, patterns, make(0))
    return outcome


def _beside_braintrace(outcome: Outcome, patterns: Sequence[etp.SparsePattern], data: Data) -> None:
    """The time and memory of its pp-prop on the same update.

    Gradients are not compared: it leaves the readout's at zero, and its bias correction counts the steps otherwise.
    """
    cell = Alif(filter_tau=FILTER_TAU)
    constants = cell.tau, cell.adaptation_tau, cell.beta, cell.threshold, cell.gain
    task = braintrace_online.Task(*patterns[0].shape, *constants, FILTER_TAU, ALPHA)
    arrays = {"xs": data.xs, "targets": data.targets.unsqueeze(-1), "readout": data.readout.unsqueeze(-1)}
    for name, pattern, weight in zip(("input", "recurrent"), patterns, (data.weight, data.recurrent), strict=True):
        arrays |= {f"{name}_row": pattern.row, f"{name}_col": pattern.col, f"{name}_weight": weight}
    found = braintrace_online.run(task, arrays, limit_s=150.0)
    if isinstance(found, str):
        outcome.skipped.append(f"braintrace: {found}")
        return
    outcome.summary["braintrace: ms per update"] = found.seconds * 1e3
    outcome.summary["braintrace: time over ours"] = found.seconds / outcome.rows[0].timings[OURS].median
    outcome.summary["braintrace: resident MiB beyond its inputs"] = found.resident_bytes / 2**20
    outcome.notes.append(
        f"braintrace {found.version}: in a process of its own, compiled before it is timed; time and memory only"
    )


def _first(run: Callable[[Data], Sequence[Tensor]]) -> Callable[[Data], Sequence[Tensor]]:
    """The gradient that both have exactly."""
    return lambda data: run(data)[:1]
