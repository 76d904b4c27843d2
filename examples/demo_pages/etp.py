"""Online learning: exactness against back-propagation through time, memory over time, and a task that is learned."""

from __future__ import annotations

from typing import Any

import torch
from benchmarks.memory import peak_bytes
from benchmarks.report import size_text
from evidence_accumulation import pictures
from evidence_accumulation.evidence import Run, read_config, train
from matplotlib.figure import Figure

from demo_pages import html
from demo_pages.registry import Page, Section, Step, page
from lacewing import etp

UPDATES = 100
ALGORITHMS = ("d-rtrl", "pp-prop", "readout-only")
LENGTHS = (10, 20, 40, 80, 160)

EXAMPLE = """
executor = etp.Executor(etp.alif(), etp.Connection(pattern, weight), algorithm="d-rtrl")
for x in stream:
    h = executor.step(x)                          # (B, O, S)
    executor.backward(loss(readout(executor.output(h))))
"""


@page("etp", "Online learning", steps=2 + len(ALGORITHMS))
def make(step: Step) -> Page:
    """Checks, measures and trains."""
    step("gradients beside back-propagation through time")
    exact, error = _exactness()
    step("memory over time")
    memory, growth = _memory()
    config = read_config()
    runs = []
    for algorithm in ALGORITHMS:
        step(f"evidence accumulation with {algorithm}")
        runs.append(train(algorithm, 0, UPDATES, config))
    return Page(
        summary="Recurrent and spiking networks with sparse weights learn while their input streams in: gradients step "
        "by step, with memory that does not grow with time.",
        facts={
            "D-RTRL's gradients against BPTT, relative error": f"{error:.1e}",
            "peak memory, 160 steps over 10": f"{growth:.2f}",
            **{f"accuracy after {UPDATES} updates, {run.algorithm}": f"{run.ema[-1]:.2f}" for run in runs},
        },
        sections=[exact, memory, _task(runs, config)],
    )


def _network(steps: int) -> tuple[etp.SparsePattern, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    pattern = etp.fixed_degree(50, 100, 10, seed=0)
    weight = torch.randn(pattern.nse, generator=generator, dtype=torch.float64) * 0.5
    return pattern, weight, torch.randn(steps, 8, 50, generator=generator, dtype=torch.float64)


def _gradient(steps: int, window: int | None) -> torch.Tensor:
    """Of the sum of squared states; one window over all steps is back-propagation through time."""
    pattern, weight, xs = _network(steps)
    executor = etp.Executor(etp.alif(threshold=0.5), etp.Connection(pattern, weight))
    if window is None:
        for x in xs:
            executor.backward(executor.step(x).square().sum())
    else:
        executor.backward(executor.window(xs).square().sum())
    assert weight.grad is not None
    return weight.grad


def _exactness() -> tuple[Section, float]:
    rows, worst = [], 0.0
    for steps in LENGTHS[:4]:
        online, through_time = _gradient(steps, None), _gradient(steps, steps)
        error = ((online - through_time).abs().max() / through_time.abs().max()).item()
        worst = max(worst, error)
        rows.append([str(steps), f"{through_time.norm():.4g}", f"{error:.1e}"])
    text = (
        "Adaptive spiking neurons with sparse input weights, float64: the gradient that D-RTRL has added up, step by "
        "step, beside the one of autograd through the whole sequence."
    )
    table = html.table(["steps", "norm of the gradient", "relative difference"], rows)
    return Section("Exact where the recurrence is diagonal", text, [html.code(EXAMPLE), table]), worst


def _memory() -> tuple[Section, float]:
    cpu = torch.device("cpu")
    online = [peak_bytes(lambda n=n: _gradient(n, None), cpu) for n in LENGTHS]
    through_time = [peak_bytes(lambda n=n: _gradient(n, n), cpu) for n in LENGTHS]
    inputs = [8 * 50 * 8 * n for n in LENGTHS]
    own = [a - b for a, b in zip(online, inputs, strict=True)]
    figure = Figure(figsize=(7, 3.2), layout="constrained")
    axes = figure.subplots()
    axes.plot(LENGTHS, [v / 2**20 for v in own], "o-", color="#0f766e", label="D-RTRL")
    kept = [(a - b) / 2**20 for a, b in zip(through_time, inputs, strict=True)]
    axes.plot(LENGTHS, kept, "o-", color="#1e293b", label="back-propagation through time")
    axes.set(xlabel="steps", ylabel="peak memory, MiB", ylim=(0, None))
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    text = f"Beyond the inputs, D-RTRL holds {size_text(own[0])} for 10 steps and {size_text(own[-1])} for 160."
    return Section("Memory that time does not touch", text, [html.picture(figure, "Peak memory of one sequence.")]), (
        own[-1] / own[0]
    )


def _task(runs: list[Run], config: dict[str, Any]) -> Section:
    text = (
        f"{config['neurons']} spiking neurons, half of them adaptive, hear cues from left and right for 75 steps "
        f"and are asked {config['delay']} steps later which side had more. One seed, {UPDATES} updates; the example "
        "evidence_accumulation runs three seeds and back-propagation through time."
    )
    body = [
        html.picture(pictures.learning_curves(runs), "Moving average of the batch accuracy."),
        html.picture(pictures.raster(runs[0], config), "One trial after learning: inputs, neurons, answer."),
    ]
    return Section("Evidence accumulation", text, body)
