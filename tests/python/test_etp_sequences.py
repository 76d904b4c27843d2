"""What lies around single steps: threads, steps without gradients, frozen values, saved learners."""

from __future__ import annotations

import copy
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from torch import Tensor

from etp_support import CELLS, Network, relative_error, run, sequence
from lacewing import etp

F64 = torch.float64
ALGORITHMS = pytest.mark.parametrize("algorithm", ["d-rtrl", "pp-prop"])

THREADS = """
import sys, threading
import torch
from lacewing import etp

pattern = etp.fixed_degree(30, 200, 5, seed=0)
step = lambda y, h: torch.tanh(0.9 * h + y.unsqueeze(-1))
cell = etp.alif(filter_tau=3.0) if sys.argv[1] == "ready" else etp.FunctionCell(1, step)
executor = etp.Executor(cell, etp.Connection(pattern, torch.randn(pattern.nse)), algorithm=sys.argv[2])
others, gate = [], threading.Barrier(3)

def work(seed):
    x = torch.randn(8, 30, generator=torch.Generator().manual_seed(seed))
    gate.wait()
    for i in range(150):
        try:
            executor.backward(executor.step(x).square().sum())
            executor.state_dict(), executor.state, executor.traces()
            if i % 50 == 49:
                executor.reset_state()
        except RuntimeError as error:
            if not str(error).startswith("[lacewing.etp."):
                others.append(str(error))

threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not others, others[0]
"""


@ALGORITHMS
@pytest.mark.parametrize("cell", ["ready", "function"])
def test_one_executor_in_three_threads_does_not_crash(cell: str, algorithm: str) -> None:
    for _ in range(2):
        found = subprocess.run([sys.executable, "-c", THREADS, cell, algorithm], capture_output=True, text=True)

        assert found.returncode == 0, found.stderr[-2000:]


def test_learners_steps_of_several_threads_take_turns() -> None:
    network = Network.random("cpu")
    xs, _ = sequence("cpu", 1)
    learner = etp.Learner(
        etp.alif(), "d-rtrl", lambda p: torch.optim.SGD(p, 1e-3), update_every=2,
        input=etp.Connection(network.pattern, network.weight.clone()),
    )  # fmt: skip
    errors: list[Exception] = []

    def work() -> None:
        try:
            for _ in range(40):
                learner.step(xs[0], torch.ones(3, 7, dtype=F64))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert errors == []
    assert learner.executor.steps == 120


@ALGORITHMS
@pytest.mark.parametrize("cell", ["alif", "alif, detached", "gated", "two states"])
def test_no_gradient_flows_across_steps_without_one(cell: str, algorithm: str, device: str) -> None:
    network = Network.random(device, recurrent=True)
    xs, loss = sequence(device, 9)
    executor, fresh = (network.executor(CELLS[cell](), algorithm=algorithm) for _ in range(2))

    executor.backward(loss(0, executor.step(xs[0])))
    before = [p.grad.clone() for p in executor.parameters()]
    with torch.no_grad():
        plain = executor.step(xs[1])
        executor.window(xs[2:4])
    began = executor.state_dict()
    run(executor, xs[4:], loss)

    # The same as a sequence that begins in that state, whose traces are zero.
    assert not plain.requires_grad
    assert all(not began[key].any() for key in began if key.startswith("trace."))
    fresh.load_state_dict(began)
    expected = run(fresh, xs[4:], loss)
    found = [p.grad - b for p, b in zip(executor.parameters(), before, strict=True)]
    assert relative_error(found, expected) < 1e-10


def test_losses_before_steps_without_gradients_are_absorbed(device: str) -> None:
    network = Network.random(device)
    xs, loss = sequence(device, 3)
    expected = run(network.executor(etp.alif()), xs[:2], loss)
    executor = network.executor(etp.alif(), absorb_every=4)

    run(executor, xs[:2], loss)
    with torch.no_grad():
        executor.step(xs[2])

    assert relative_error([p.grad for p in executor.parameters()], expected) < 1e-13


def test_steps_without_gradients_roll_no_trace() -> None:
    calls = []

    def step(y: Tensor, h: Tensor) -> Tensor:
        calls.append(torch.is_grad_enabled())
        return torch.tanh(0.9 * h + y.unsqueeze(-1))

    executor = Network.random("cpu").executor(etp.FunctionCell(1, step))
    xs, _ = sequence("cpu", 3)
    executor.step(xs[0])
    calls.clear()

    with torch.no_grad():
        h = executor.step(xs[1])
        assert torch.equal(executor.states()[0], h[..., 0])
    with torch.inference_mode():
        executor.step(xs[2])

    assert calls == [False, False]  # a step that is linearized enables gradients
    with pytest.raises(RuntimeError, match="there is no step to learn from"):
        executor.backward(torch.ones((), requires_grad=True))


@ALGORITHMS
@pytest.mark.parametrize("kind", ["frozen=True", "Parameter", "switched off"])
def test_a_reservoir_stays_as_it_is(kind: str, algorithm: str, device: str) -> None:
    network = Network.random(device, recurrent=True)
    xs, loss = sequence(device, 4)
    weight = network.weight.clone()
    if kind == "Parameter":
        frozen = etp.Connection(network.pattern, torch.nn.Parameter(weight, requires_grad=False))
    elif kind == "frozen=True":
        frozen = etp.Connection(network.pattern, weight, frozen=True)
    else:
        frozen = etp.Connection(network.pattern, weight)
        weight.requires_grad_(False)
    recurrent = etp.Connection(network.recurrent, network.recurrent_weight.clone())
    executor = etp.Executor(CELLS["alif"](), frozen, recurrent, algorithm=algorithm)

    found = run(executor, xs, loss)

    network.bias = None
    expected = run(network.executor(CELLS["alif"](), algorithm=algorithm), xs, loss)
    assert found[0] is None
    assert not executor.parameters()[0].requires_grad
    assert torch.equal(found[1], expected[1])
    assert copy.deepcopy(frozen).frozen == ["weight"]


def test_single_values_of_a_primitive_are_frozen_by_name() -> None:
    affine = etp.register_primitive(
        "affine", lambda x, s, o: x * s + o, True, trainable=lambda _: {"scale": 1, "offset": 2},
        yw_to_w=lambda g, trace: {name: g * each for name, each in trace.items()},
    )  # fmt: skip
    values = {"scale": torch.ones(5), "offset": torch.zeros(5)}

    executor = etp.Executor(etp.leaky(), etp.Connection.of(affine, values, outputs=5, frozen=["offset"]))
    executor.backward(executor.step(torch.ones(2, 5)).sum())

    assert values["scale"].grad is not None
    assert values["offset"].grad is None
    with pytest.raises(ValueError, match=r"\[lacewing\.etp\.Connection\] shift is frozen, but there is no such value"):
        etp.Connection.of(affine, values, outputs=5, frozen=["shift"])


@ALGORITHMS
def test_a_state_dict_has_the_weights(algorithm: str, device: str, tmp_path: Path) -> None:
    network = Network.random(device, recurrent=True)
    xs, loss = sequence(device, 6)
    first = network.executor(CELLS["alif"](), algorithm=algorithm)
    run(first, xs[:3], loss)
    with torch.no_grad():
        for p in first.parameters():
            p.mul_(1.5)
    torch.save(first.state_dict(), tmp_path / "state.pt")
    second = network.executor(CELLS["alif"](), algorithm=algorithm)

    second.load_state_dict(torch.load(tmp_path / "state.pt"))

    assert all(torch.equal(p, q) for p, q in zip(first.parameters(), second.parameters(), strict=True))
    assert torch.equal(first.step(xs[3]), second.step(xs[3]))


def test_a_state_without_the_weights_keeps_those_at_hand() -> None:
    network = Network.random("cpu")
    xs, loss = sequence("cpu", 3)
    executor = network.executor(etp.leaky())
    run(executor, xs, loss)
    saved = {key: value for key, value in executor.state_dict().items() if not key.startswith("value.")}
    with torch.no_grad():
        executor.parameters()[0].mul_(2)

    executor.load_state_dict(saved)

    assert torch.equal(executor.parameters()[0], 2 * network.weight)
    assert executor.steps == 3


def test_a_state_that_does_not_fit_leaves_the_weights() -> None:
    network = Network.random("cpu")
    xs, loss = sequence("cpu", 3)
    executor = network.executor(etp.leaky())
    run(executor, xs, loss)
    saved = executor.state_dict()
    saved["value.input.weight"] = saved["value.input.weight"] + 1

    for name, value in [("trace.input.weight", torch.ones(3)), ("value.input.bias", torch.ones(6, dtype=F64))]:
        with pytest.raises(
            RuntimeError, match=r"\[lacewing\.etp\.load\] (value\.)?input\.(weight|bias) must have shape"
        ):
            executor.load_state_dict({**saved, name: value})

    assert torch.equal(executor.parameters()[0], network.weight)


def _learner(readout: torch.nn.Module) -> etp.Learner:
    network = Network.random("cpu", recurrent=True)
    return etp.Learner(
        CELLS["alif"](), "d-rtrl", lambda p: torch.optim.Adam(p, 1e-2), update_every=3,
        input=etp.Connection(network.pattern, network.weight.clone()),
        recurrent=etp.Connection(network.recurrent, network.recurrent_weight.clone()),
        readout=torch.nn.Sequential(torch.nn.Flatten(-2), readout),
    )  # fmt: skip


def test_a_saved_learner_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    torch.manual_seed(0)
    readout = torch.nn.Linear(21, 2, dtype=F64)
    xs, _ = sequence("cpu", 10)
    first, second = _learner(copy.deepcopy(readout)), _learner(torch.nn.Linear(21, 2, dtype=F64))
    for x in xs[:4]:
        first.step(x, torch.ones(3, 2, dtype=F64))
    torch.save(first.state_dict(), tmp_path / "learner.pt")

    second.load_state_dict(torch.load(tmp_path / "learner.pt"))

    for x in xs[4:]:
        ours, theirs = (learner.step(x, torch.ones(3, 2, dtype=F64)) for learner in (first, second))
        assert torch.equal(ours.output, theirs.output)
        assert torch.equal(ours.loss, theirs.loss)


def test_a_learner_tells_what_its_state_lacks() -> None:
    learner = _learner(torch.nn.Linear(21, 2, dtype=F64))
    saved = learner.state_dict()

    for name in ("executor", "optimizer", "readout", "gradients"):
        with pytest.raises(ValueError, match=rf"\[lacewing\.etp\.Learner\] {name} is missing"):
            learner.load_state_dict({key: value for key, value in saved.items() if key != name})
    with pytest.raises(RuntimeError, match=r"\[lacewing\.etp\.load\] losses is missing"):
        learner.load_state_dict({**saved, "executor": {}})
    wrong = [torch.ones(2), None, None, None]
    with pytest.raises(ValueError, match=r"gradients\[0\] has shape \(2,\), but the parameter has shape \(21,\)"):
        learner.load_state_dict({**saved, "gradients": wrong})
    with pytest.raises(ValueError, match="gradients has 1 entries, but there are 4 parameters"):
        learner.load_state_dict({**saved, "gradients": [None]})
