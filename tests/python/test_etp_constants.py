"""Constants of ready cells: one for all neurons, one for each, or learned."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from etp_support import Network, relative_error, run, sequence
from lacewing import etp

F64 = torch.float64
NEURONS = 7

Make = Callable[..., etp.Cell]
MAKERS: dict[str, tuple[Make, dict[str, tuple[float, float]]]] = {
    "leaky": (etp.leaky, {"tau": (2.0, 20.0)}),
    "lif": (
        lambda **c: etp.lif(reset_gradient=True, **c),
        {"tau": (2.0, 20.0), "threshold": (0.2, 0.6), "filter_tau": (2.0, 9.0)},
    ),
    "lif, detached": (etp.lif, {"tau": (2.0, 20.0), "threshold": (0.2, 0.6)}),
    "alif": (
        lambda **c: etp.alif(reset="to_zero", reset_gradient=True, **c),
        {"tau": (2.0, 20.0), "threshold": (0.2, 0.6), "adaptation_tau": (9.0, 90.0), "beta": (0.1, 0.5)},
    ),
    "gated": (
        etp.gated,
        {
            "gate_input": (0.5, 1.5),
            "gate_state": (0.5, 1.5),
            "gate_bias": (-0.5, 0.5),
            "candidate_state": (0.5, 1.5),
        },
    ),
}
CELLS = pytest.mark.parametrize(("make", "ranges"), MAKERS.values(), ids=MAKERS.keys())


def _each(ranges: dict[str, tuple[float, float]], device: str) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(6)
    return {
        name: (low + (high - low) * torch.rand(NEURONS, generator=generator, dtype=F64)).to(device)
        for name, (low, high) in ranges.items()
    }


@CELLS
def test_constants_for_each_neuron_are_those_of_its_own_cell(
    make: Make, ranges: dict[str, tuple[float, float]], device: str
) -> None:
    constants = _each(ranges, device)
    cell = make(**constants)
    y = torch.randn(20, NEURONS, dtype=F64, device=device)
    h = torch.randn(20, NEURONS, cell.states, dtype=F64, device=device)

    found = [*cell.linearize(y, h), cell.output(h)]

    for i in range(NEURONS):
        alone = make(**{name: each[i].item() for name, each in constants.items()})
        expected = [*alone.linearize(y, h), alone.output(h)]
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours[:, i], theirs[:, i], rtol=1e-12, atol=1e-12)


@CELLS
@pytest.mark.parametrize("window", [None, 4])
def test_drtrl_is_bptt_with_constants_for_each_neuron(
    make: Make, ranges: dict[str, tuple[float, float]], window: int | None, device: str
) -> None:
    network = Network.random(device)
    xs, loss = sequence(device, 12)
    cell = make(**_each(ranges, device))
    executor = network.executor(cell)

    found = run(executor, xs, loss, window)

    assert executor.analysis.exactness == "exact"
    assert relative_error(found, network.bptt(cell, xs, loss)) < 1e-10


@pytest.mark.parametrize("shape", [(), (NEURONS,)], ids=["one for all", "one for each"])
@pytest.mark.parametrize("name", ["threshold", "gate_input", "gate_state", "gate_bias", "candidate_state"])
def test_a_constant_that_requires_grad_learns_by_its_same_step_gradient(
    name: str, shape: tuple[int, ...], device: str
) -> None:
    network = Network.random(device)
    xs, loss = sequence(device, 4)
    constant = torch.nn.Parameter(torch.full(shape, 0.4, dtype=F64, device=device))
    cell = etp.lif(threshold=constant, filter_tau=4.0) if name == "threshold" else etp.gated(**{name: constant})
    executor = network.executor(cell)
    expected = torch.zeros_like(constant)
    for t, x in enumerate(xs):
        before = executor.state if t > 0 else torch.zeros(3, NEURONS, cell.states, dtype=F64, device=device)
        y = etp.sparse_matmul(x, network.weight, network.pattern, network.bias)
        expected += torch.autograd.grad(loss(t, cell.forward(y, before)), constant)[0]

        executor.backward(loss(t, executor.step(x)))

    assert executor.analysis.exactness == "approximate"
    assert "the cell has parameters of its own" in executor.analysis.reason
    torch.testing.assert_close(constant.grad, expected)
    assert constant.grad.abs().max() > 0


def test_constants_of_another_size_or_range_get_a_sentence() -> None:
    network = Network.random("cpu")
    cases: list[tuple[Callable[[], object], type[Exception], str]] = [
        (
            lambda: network.executor(etp.lif(threshold=torch.ones(3, dtype=F64))),
            RuntimeError,
            "threshold has 3 entries, but there are 7 neurons",
        ),
        (
            lambda: network.executor(etp.leaky(torch.ones(3, dtype=F64))),
            RuntimeError,
            "membrane has 3 entries, but there are 7 neurons",
        ),
        (lambda: etp.lif(torch.tensor([1.0, 0.0])), ValueError, "tau must be positive for each neuron"),
        (
            lambda: etp.lif(threshold=torch.ones(7, 1)),
            RuntimeError,
            r"threshold must be a floating tensor of shape \(O,\) or \(\), not \(7, 1\), float32",
        ),
        (
            lambda: etp.lif(threshold=torch.ones(7).long()),
            RuntimeError,
            r"threshold must be a floating tensor of shape \(O,\) or \(\), not \(7,\), int64",
        ),
        (lambda: etp.gated(torch.full((7,), float("nan"))), RuntimeError, "gate_input must be finite"),
    ]

    for call, kind, sentence in cases:
        with pytest.raises(kind, match=rf"^\[lacewing\.etp\.\w+\] {sentence}"):
            call()


@pytest.mark.parametrize("name", ["tau", "gain", "width", "filter_tau", "adaptation_tau"])
def test_a_constant_that_cannot_learn_is_refused_where_it_requires_grad(name: str) -> None:
    for shape in ((), (7,)):
        with pytest.raises(TypeError, match=rf"\[lacewing\.etp\.alif\] {name} requires grad, but it is a constant"):
            etp.alif(**{name: torch.nn.Parameter(torch.full(shape, 3.0))})


@pytest.mark.parametrize("name", ["gain", "width"])
def test_surrogates_are_the_same_for_all_neurons(name: str) -> None:
    with pytest.raises(TypeError, match=rf"\[lacewing\.etp\.lif\] {name} is one number for all neurons, not a tensor"):
        etp.lif(**{name: torch.ones(7)})


def test_tensors_of_one_number_are_numbers() -> None:
    network, (xs, loss) = Network.random("cpu"), sequence("cpu", 4)
    tau, beta = torch.tensor(15.0, dtype=F64), torch.tensor(0.3, dtype=F64)

    found = run(network.executor(etp.alif(tau, beta=beta, threshold=torch.tensor([0.5]))), xs, loss)

    expected = run(network.executor(etp.alif(15.0, beta=0.3, threshold=0.5)), xs, loss)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(found, expected, strict=True))


def test_cells_are_copied_with_their_constants() -> None:
    cell = etp.alif(torch.tensor([12.0, 20.0]), beta=torch.tensor([0.3, 0.5]), threshold=torch.tensor([0.4, 0.2]))
    y, h = torch.randn(3, 2), torch.randn(3, 2, 2)

    for same in (copy.deepcopy(cell), pickle.loads(pickle.dumps(cell))):
        assert torch.equal(same.forward(y, h), cell.forward(y, h))
