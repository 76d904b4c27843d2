"""braintrace (JAX), where it is installed: the networks of E1 and E2 by its D-RTRL and pp-prop.

It runs in a process of its own, so that JAX's threads and memory stay apart: ``python -m
benchmarks.peers.braintrace_online PROBLEM.npz RESULT.npz``.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

NAME = "braintrace"


@dataclass(frozen=True)
class Task:
    """The network: ALIF neurons, whose derivatives do not flow through the reset, with a dense readout.

    `alpha` makes it pp-prop, `filter_tau` adds a filtered state.
    """

    inputs: int
    neurons: int
    tau: float
    adaptation_tau: float
    beta: float
    threshold: float
    gain: float
    filter_tau: float | None = None
    alpha: float | None = None


@dataclass(frozen=True)
class Result:
    """Seconds for the sequence once compiled, resident bytes beyond those before it, and the gradients."""

    seconds: float
    resident_bytes: int
    version: str
    gradients: dict[str, Tensor]


def missing(device: torch.device) -> str | None:
    """Why it cannot run, where it cannot."""
    if device.type != "cpu":
        return f"{NAME}: on the CPU only"
    return None if importlib.util.find_spec(NAME) is not None else f"{NAME} is not installed"


def run(task: Task, arrays: dict[str, Tensor], limit_s: float) -> Result | str:
    """One sequence in a process of its own; the reason where it fails.

    ``arrays``: xs (T, B, I), targets (T, B, outputs), readout (O, outputs), and for each part "input" (and "recurrent",
    where there is one) its weight, row and col.
    """
    with tempfile.TemporaryDirectory() as folder:
        problem, result = Path(folder) / "problem.npz", Path(folder) / "result.npz"
        np.savez(problem, task=json.dumps(asdict(task)), **{name: t.numpy() for name, t in arrays.items()})
        command = [sys.executable, "-m", "benchmarks.peers.braintrace_online", str(problem), str(result)]
        path = os.pathsep.join(p for p in sys.path if p)
        environment = {**os.environ, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu"}
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=limit_s)
        except subprocess.TimeoutExpired:
            return f"it took more than {limit_s:g} s"
        if done.returncode != 0:
            return (done.stderr.strip().splitlines() or ["it failed without a word"])[-1]
        found = np.load(result)
        gradients = {name[5:]: torch.from_numpy(found[name]) for name in found.files if name.startswith("grad_")}
        return Result(float(found["seconds"]), int(found["resident"]), str(found["version"]), gradients)


def _resident() -> int:
    """The most memory that this process has held; that of getrusage begins with what the parent had."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def _main(problem: str, result: str) -> None:
    import brainevent
    import brainstate
    import braintrace
    import jax
    import jax.numpy as jnp

    given = np.load(problem)
    task = Task(**json.loads(str(given["task"])))
    parts = [name for name in ("input", "recurrent") if f"{name}_row" in given]
    sizes = {"input": task.inputs, "recurrent": task.neurons}
    orders: dict[str, Any] = {}

    def connection(name: str) -> tuple[Any, Any]:
        """Its weights sorted by row, and the CSR matrix that holds their places."""
        row, col = given[f"{name}_row"], given[f"{name}_col"]
        orders[name] = np.argsort(row, kind="stable")
        pointer = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=sizes[name]))])
        weight = jnp.asarray(given[f"{name}_weight"][orders[name]])
        places = (jnp.asarray(col[orders[name]]), jnp.asarray(pointer))
        return weight, brainevent.CSR((weight, *places), shape=(sizes[name], task.neurons))

    def keep(tau: float) -> float:
        return math.exp(-1 / tau)

    def spike(v: Any, a: Any) -> Any:
        x = v - task.threshold - task.beta * a
        t = jnp.clip(x, -1, 1)
        soft = task.gain * (t - 0.5 * t * jnp.abs(t))  # its derivative is gain * max(0, 1 - |x|)
        return soft + jax.lax.stop_gradient((x > 0).astype(v.dtype) - soft)

    class Network(brainstate.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.matrices = {}
            for name in parts:
                weight, self.matrices[name] = connection(name)
                setattr(self, name, brainstate.ParamState(weight))
            self.readout = brainstate.ParamState(jnp.asarray(given["readout"]))

        def init_state(self, batch_size: int | None = None, **_: Any) -> None:
            shape = (batch_size, task.neurons)
            self.v, self.a = (brainstate.HiddenState(jnp.zeros(shape, jnp.float32)) for _ in range(2))
            if task.filter_tau is not None:
                self.r = brainstate.HiddenState(jnp.zeros(shape, jnp.float32))

        def update(self, x: Any) -> Any:
            z = spike(self.v.value, self.a.value)
            y = braintrace.sparse_matmul(x, self.input.value, sparse_mat=self.matrices["input"])
            if "recurrent" in parts:
                y = y + braintrace.sparse_matmul(z, self.recurrent.value, sparse_mat=self.matrices["recurrent"])
            self.v.value = keep(task.tau) * self.v.value + y - task.threshold * jax.lax.stop_gradient(z)
            self.a.value = keep(task.adaptation_tau) * self.a.value + z
            shown = spike(self.v.value, self.a.value)
            if task.filter_tau is not None:
                kept = keep(task.filter_tau)
                self.r.value = kept * self.r.value + (1 - kept) * shown
                shown = self.r.value
            return shown @ self.readout.value

    xs, targets = jnp.asarray(given["xs"]), jnp.asarray(given["targets"])
    before = _resident()
    algorithm = {} if task.alpha is None else {"decay_or_rank": task.alpha}
    rule = braintrace.D_RTRL if task.alpha is None else braintrace.pp_prop
    learner = braintrace.compile(Network(), rule, xs[0], batch_size=xs.shape[1], **algorithm)

    def loss(x: Any, target: Any) -> Any:
        return jnp.mean((learner(x) - target) ** 2)

    @brainstate.transform.jit  # type: ignore[untyped-decorator]
    def sequence(xs: Any, targets: Any) -> Any:
        return learner.etrace_grad(xs, targets, step_fn=loss, reduction="sum")

    found = jax.block_until_ready(sequence(xs, targets))
    begin = time.perf_counter()
    jax.block_until_ready(sequence(xs, targets))
    seconds = time.perf_counter() - begin
    named = {(key[-1] if isinstance(key, tuple) else str(key)): np.asarray(value) for key, value in found.items()}
    gradients = {"grad_readout": named["readout"]}
    for name in parts:
        back = np.empty_like(named[name])
        back[orders[name]] = named[name]
        gradients[f"grad_{name}"] = back
    version = importlib.import_module("importlib.metadata").version(NAME)
    np.savez(result, seconds=seconds, resident=_resident() - before, version=version, **gradients)


if __name__ == "__main__":
    _main(*sys.argv[1:3])
