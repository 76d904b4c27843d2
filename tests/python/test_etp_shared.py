"""Cells whose first state has a trace that all weights of an input share, against the trace kept whole."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from etp_support import CELLS, Network, relative_error, run, sequence
from lacewing import backend, etp

F64 = torch.float64
BETAS = torch.linspace(0.0, 0.9, 7, dtype=F64)
SHARED: dict[str, Callable[[], etp.Cell]] = {
    "leaky": etp.leaky,
    "lif": lambda: etp.lif(threshold=0.4),
    "lif, filtered": lambda: etp.lif(threshold=0.4, filter_tau=5.0),
    "lif, no reset": lambda: etp.lif(threshold=0.4, reset="none", reset_gradient=True),
    "alif": lambda: etp.alif(beta=0.3, threshold=0.4),
    "alif, own betas, filtered": lambda: etp.alif(beta=BETAS, threshold=0.4, filter_tau=5.0),
    "alif, no reset": lambda: etp.alif(beta=0.3, threshold=0.4, reset="none", filter_tau=5.0),
}
WHOLE: dict[str, Callable[[], etp.Cell]] = {
    "lif": lambda: etp.lif(reset_gradient=True),
    "lif to zero": lambda: etp.lif(reset="to_zero"),
    "alif": lambda: etp.alif(reset_gradient=True),
    "gated": etp.gated,
    "function": CELLS["two states"],
}


def kept_whole(cell: etp.Cell) -> etp.Cell:
    """The same step as a function, of which nothing is known."""
    return etp.FunctionCell(cell.states, cell.forward, cell.output)


def gradients(executor: etp.Executor) -> list[Tensor]:
    executor.flush()
    return [p.grad for p in executor.parameters()]


@pytest.mark.parametrize("window", [None, 1, 3, 5, 12])
@pytest.mark.parametrize("cell", SHARED.values(), ids=SHARED.keys())
def test_drtrl_is_bptt(cell: Callable[[], etp.Cell], window: int | None, device: str) -> None:
    network = Network.random(device)
    xs, loss = sequence(device, 12)
    executor = network.executor(cell())

    found = run(executor, xs, loss, window)

    assert executor.analysis.exactness == "exact"
    assert relative_error(found, network.bptt(cell(), xs, loss)) < 1e-10


@pytest.mark.parametrize(("window", "every"), [(None, 1), (None, 3), (4, 1)])
@pytest.mark.parametrize("batch", [1, 3, 37])
@pytest.mark.parametrize("cell", SHARED.values(), ids=SHARED.keys())
def test_equals_the_whole_trace(
    cell: Callable[[], etp.Cell], batch: int, window: int | None, every: int, device: str
) -> None:
    network = Network.random(device, recurrent=True)
    xs, loss = sequence(device, 7, batch)
    shared = network.executor(cell(), absorb_every=every)
    whole = network.executor(kept_whole(cell()))

    for executor in (shared, whole):
        run(executor, xs, loss, window)

    assert relative_error(gradients(shared), gradients(whole)) < 1e-12
    for key, trace in whole.traces().items():
        torch.testing.assert_close(shared.traces()[key], trace, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("cell", SHARED.values(), ids=SHARED.keys())
def test_every_backend_takes_it(cell: Callable[[], etp.Cell], device: str) -> None:
    network = Network.random(device, recurrent=True)
    xs, loss = sequence(device, 5, 19)
    found = run(network.executor(cell()), xs, loss)

    with backend("reference"):
        expected = run(network.executor(cell()), xs, loss)

    assert relative_error(found, expected) < 1e-12


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_follows_the_whole_trace(dtype: torch.dtype, device: str) -> None:
    network = Network.random(device)
    network.weight, network.bias = network.weight.to(dtype), network.bias.to(dtype)
    xs, _ = sequence(device, 6)
    cell = etp.alif(beta=0.3, threshold=0.4, filter_tau=5.0)
    shared, whole = (network.executor(each) for each in (cell, kept_whole(cell)))

    for x in xs:
        for executor in (shared, whole):
            executor.backward(executor.step(x.to(dtype)).float().square().sum())

    for ours, theirs in zip(gradients(shared), gradients(whole), strict=True):
        assert (ours.double() - theirs.double()).abs().max() / theirs.double().abs().max() < 0.05


@pytest.mark.parametrize("cell", SHARED.values(), ids=SHARED.keys())
def test_memory_is_one_state_less_for_each_weight(cell: Callable[[], etp.Cell], device: str) -> None:
    network = Network.random(device, recurrent=True)
    batch, inputs, neurons = 3, 5, 7
    executor = network.executor(cell())

    executor.step(sequence(device, 1)[0][0])

    states = cell().states
    weights = (network.pattern.nse + network.recurrent.nse) * (states - 1)
    assert executor.trace_elements == batch * (weights + inputs + neurons + neurons * states)


@pytest.mark.parametrize("cell", SHARED.values(), ids=SHARED.keys())
def test_more_inputs_than_weights_share_nothing(cell: Callable[[], etp.Cell]) -> None:
    pattern = etp.SparsePattern.coo([3, 7, 7], [0, 1, 1], (50, 7))
    weight = torch.ones(3, dtype=torch.float64)
    executor = etp.Executor(cell(), etp.Connection(pattern, weight))
    known = torch.ones(3, dtype=torch.float64)
    # The same entries where inputs are as few as weights.
    few = etp.Executor(cell(), etp.Connection(etp.SparsePattern.coo([0, 1, 1], [0, 1, 1], (2, 7)), known))
    xs = torch.rand(6, 4, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    for x in xs:
        executor.backward(executor.step(x).square().sum())
        few.backward(few.step(x[:, [3, 7]]).square().sum())

    assert executor.trace_elements == 4 * 3 * cell().states
    torch.testing.assert_close(weight.grad, known.grad, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("cell", WHOLE.values(), ids=WHOLE.keys())
def test_other_cells_keep_the_whole_trace(cell: Callable[[], etp.Cell]) -> None:
    network = Network.random("cpu", bias=False)
    executor = network.executor(cell())

    executor.step(sequence("cpu", 1)[0][0])

    assert executor.trace_elements == 3 * network.pattern.nse * cell().states


@pytest.mark.parametrize("cell", ["leaky", "alif"])
def test_inputs_and_neurons_without_weights(cell: str, device: str) -> None:
    xs, loss = sequence(device, 6, inputs=6, neurons=5)
    row, col = torch.tensor([[4, 1, 4, 1, 0], [0, 0, 2, 2, 4]], device=device)  # inputs 2, 3, 5, neurons 1, 3: none
    for entries in (slice(None), slice(0)):
        pattern = etp.SparsePattern.coo(row[entries], col[entries], (6, 5))
        network = Network(pattern, torch.randn(pattern.nse, dtype=F64, device=device), torch.zeros_like(xs[0, 0, :5]))
        first, second, whole = (network.executor(SHARED[cell]()) for _ in range(3))
        expected = run(whole, xs, loss)

        run(first, xs[:3], loss)
        second.load_state_dict(first.state_dict())
        for p, q in zip(second.parameters(), first.parameters(), strict=True):
            p.grad = q.grad
        run(second, xs[3:], lambda t, h: loss(t + 3, h))

        assert all(torch.equal(p.grad, e) for p, e in zip(second.parameters(), expected, strict=True))
        exact = network.bptt(SHARED[cell](), xs, loss)
        assert relative_error(expected[1:], exact[1:]) < 1e-10
        torch.testing.assert_close(expected[0], exact[0], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("cell", SHARED.values(), ids=SHARED.keys())
def test_states_are_saved_in_the_form_of_the_whole_trace(cell: Callable[[], etp.Cell], device: str) -> None:
    network = Network.random(device, recurrent=True)
    xs, loss = sequence(device, 6)
    order = torch.randperm(network.pattern.nse, generator=torch.Generator().manual_seed(0)).to(device)
    network.pattern = etp.SparsePattern.coo(network.pattern.row[order], network.pattern.col[order], (5, 7))
    make = {"shared": cell, "whole": lambda: kept_whole(cell())}
    expected = {name: run(network.executor(each()), xs, loss) for name, each in make.items()}
    for source, target in (("shared", "shared"), ("shared", "whole"), ("whole", "shared")):
        first, second = network.executor(make[source]()), network.executor(make[target]())
        run(first, xs[:3], loss)
        saved = first.state_dict()

        second.load_state_dict(saved)
        again = second.state_dict()
        for p, q in zip(second.parameters(), first.parameters(), strict=True):
            p.grad = q.grad
        run(second, xs[3:], lambda t, h: loss(t + 3, h))

        assert saved["trace.input.weight"].shape == (3, network.pattern.nse, cell().states)
        for key in ("trace.input.weight", "trace.recurrent.weight"):
            torch.testing.assert_close(again[key], saved[key], rtol=0, atol=0)
        if source == target:
            assert all(torch.equal(p.grad, e) for p, e in zip(second.parameters(), expected[source], strict=True))
        assert relative_error([p.grad for p in second.parameters()], expected[target]) < 1e-12


@pytest.mark.parametrize("cell", ["leaky", "alif"])
def test_traces_that_disagree_are_refused(cell: str, device: str) -> None:
    network = Network.random(device)
    xs, loss = sequence(device, 3)
    executor = network.executor(SHARED[cell]())
    run(executor, xs, loss)
    saved = executor.state_dict()
    wrong = {**saved, "trace.input.weight": saved["trace.input.weight"].clone()}
    wrong["trace.input.weight"][1, 0, 0] += 1

    with pytest.raises(RuntimeError, match=r"input\.weight has entries of one input that differ in the first state"):
        executor.load_state_dict(wrong)

    assert executor.state is None
    wrong["trace.input.weight"][1, :, 0] = float("nan")  # a state that has gone wrong goes on as it was
    executor.load_state_dict(wrong)
    assert executor.traces()["input.weight"][1, :, 0].isnan().all()


def test_a_reset_forgets_the_shared_trace_too(device: str) -> None:
    network = Network.random(device)
    xs, loss = sequence(device, 4)
    executor = network.executor(SHARED["alif"]())
    expected = [g.clone() for g in run(executor, xs, loss)]

    assert network.executor(SHARED["alif"]()).traces() == {}
    executor.reset_state()
    assert not executor.traces()["input.weight"].any()
    for p in executor.parameters():
        p.grad = None

    assert all(torch.equal(a, b) for a, b in zip(run(executor, xs, loss), expected, strict=True))


def test_betas_that_learn_leave_it_shared(device: str) -> None:
    network = Network.random(device)
    xs, loss = sequence(device, 5)
    betas = BETAS.to(device)
    learns = network.executor(etp.alif(beta=betas.clone().requires_grad_(), threshold=0.4))
    known = network.executor(etp.alif(beta=betas, threshold=0.4))

    found, expected = run(learns, xs, loss), run(known, xs, loss)

    assert learns.trace_elements == known.trace_elements
    assert relative_error(found, expected) < 1e-12


@pytest.mark.parametrize("name", ["automatic", "reference"])
def test_a_state_that_is_nan_gives_no_finite_gradient(name: str) -> None:
    weight = torch.ones(2)
    executor = etp.Executor(etp.alif(), etp.Connection(etp.SparsePattern.coo([0, 1], [0, 0], (2, 1)), weight))
    with backend(name):
        for first in (float("nan"), 1.0, 1.0):
            executor.backward(executor.output(executor.step(torch.tensor([[first, 1.0]]))).sum())

    assert weight.grad is not None
    assert weight.grad.isnan().all()
