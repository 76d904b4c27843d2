"""The evidence-accumulation task and its network: which side had more cues, asked after a delay."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lacewing import etp

CONFIG = Path(__file__).parent / "task.conf"
ALGORITHMS = ("d-rtrl", "pp-prop", "bptt", "readout-only")


def read_config(path: Path = CONFIG) -> dict[str, Any]:
    """``name = value`` lines; values that are not numbers stay text."""
    config: dict[str, Any] = {}
    for line in path.read_text().splitlines():
        name, separator, value = line.partition("#")[0].partition("=")
        if separator:
            text = value.strip()
            try:
                config[name.strip()] = int(text)
            except ValueError:
                try:
                    config[name.strip()] = float(text)
                except ValueError:
                    config[name.strip()] = text
    return config


def trials(config: dict[str, Any], generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Spikes (T, B, inputs) and labels (B,): 1 where most cues came from the right."""
    batch, wide = config["batch"], config["channels_per_group"]
    cue, lead = config["cue_on"] + config["cue_gap"], config["cues"] * (config["cue_on"] + config["cue_gap"])
    steps = lead + config["delay"] + config["response"]
    bias = torch.where(torch.rand(batch, generator=generator) < 0.5, config["cue_bias"], 1 - config["cue_bias"])
    right = torch.rand(config["cues"], batch, generator=generator) < bias
    rate = torch.zeros(steps, batch, config["groups"], wide)
    for k in range(config["cues"]):
        on = slice(k * cue, k * cue + config["cue_on"])
        rate[on, :, 0] = (~right[k]).float()[:, None] * config["active_rate"]
        rate[on, :, 1] = right[k].float()[:, None] * config["active_rate"]
    rate[-config["response"] :, :, 2] = config["active_rate"]
    rate[:, :, 3] = config["noise_rate"]
    spikes = (torch.rand(rate.shape, generator=generator) < rate).float().flatten(2)
    return spikes, (2 * right.sum(0) > config["cues"]).long()


@dataclass
class Run:
    """A trained network and its learning curve."""

    algorithm: str
    seed: int
    accuracy: list[float] = field(default_factory=list)
    ema: list[float] = field(default_factory=list)
    executor: etp.Executor | None = None
    readout: torch.nn.Linear | None = None


def network(config: dict[str, Any], algorithm: str, seed: int, device: str = "cpu") -> tuple[Any, ...]:
    """Executor, readout and optimizer."""
    generator = torch.Generator().manual_seed(seed)
    neurons, inputs = config["neurons"], config["groups"] * config["channels_per_group"]
    betas = torch.zeros(neurons)
    betas[int(neurons * (1 - config["adaptive_fraction"])) :] = config["beta"]
    cell = etp.alif(
        config["tau_membrane"],
        config["tau_adaptation"],
        betas.to(device),
        threshold=config["threshold"],
        reset=config["reset"],
        reset_gradient=bool(config["reset_gradient"]),
        surrogate=config["surrogate"],
        gain=config["surrogate_gain"],
        width=config["surrogate_width"],
        filter_tau=config["tau_filter"],
    )

    def connection(rows: int, degree: int, scale: float, loops: bool, number: int) -> etp.Connection:
        pattern = etp.fixed_degree(rows, neurons, degree, seed=number, self_connections=loops).to(device)
        weight = torch.randn(pattern.nse, generator=generator) * scale / math.sqrt(degree)
        return etp.Connection(pattern, weight.to(device))

    executor = etp.Executor(
        cell,
        connection(inputs, config["input_degree"], config["input_scale"], True, 2 * seed),
        connection(neurons, config["recurrent_degree"], config["recurrent_scale"], False, 2 * seed + 1),
        algorithm="pp-prop" if algorithm == "pp-prop" else "d-rtrl",
        alpha=config["pp_alpha"],
    )
    readout = torch.nn.Linear(neurons, 2)
    with torch.no_grad():
        readout.weight.copy_(
            torch.randn(2, neurons, generator=generator) * config["readout_scale"] / math.sqrt(neurons)
        )
        readout.bias.zero_()
    readout.to(device)
    learned = [*readout.parameters(), *([] if algorithm == "readout-only" else executor.parameters())]
    return executor, readout, torch.optim.Adam(learned, config["learning_rate"])


def sequence(
    config: dict[str, Any], algorithm: str, executor: etp.Executor, readout: torch.nn.Linear, xs: Tensor, labels: Tensor
) -> Tensor:
    """Adds the gradients of one batch of trials; the logits, summed over the response."""
    executor.reset_state()
    first = len(xs) - config["response"]
    total = torch.zeros(len(labels), 2, device=xs.device)
    if algorithm == "bptt":
        logits = readout(executor.window(xs)[first:, ..., -1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.repeat(config["response"]))
        executor.backward(loss)
        return logits.detach().sum(0)
    for t, x in enumerate(xs):
        h = executor.step(x)
        if t < first:
            continue
        logits = readout(h[..., -1] if algorithm != "readout-only" else h[..., -1].detach())
        total += logits.detach()
        loss = torch.nn.functional.cross_entropy(logits, labels) / config["response"]
        if algorithm == "readout-only":
            loss.backward()
        else:
            executor.backward(loss)
    return total


def train(
    algorithm: str,
    seed: int,
    updates: int,
    config: dict[str, Any] | None = None,
    tell: Callable[[Run], None] = lambda _: None,
    device: str = "cpu",
) -> Run:
    """Trains a network and keeps the accuracy of each batch before its update, with a moving average from 0.5."""
    config = config or read_config()
    generator = torch.Generator().manual_seed(1000 + seed)
    executor, readout, optimizer = network(config, algorithm, seed, device)
    run = Run(algorithm, seed, executor=executor, readout=readout)
    average = 0.5
    for _ in range(updates):
        xs, labels = (t.to(device) for t in trials(config, generator))
        optimizer.zero_grad()
        logits = sequence(config, algorithm, executor, readout, xs, labels)
        optimizer.step()
        run.accuracy.append((logits.argmax(1) == labels).float().mean().item())
        average = config["ema"] * average + (1 - config["ema"]) * run.accuracy[-1]
        run.ema.append(average)
        tell(run)
    return run
