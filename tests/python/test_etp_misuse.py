"""What a user gets wrong with executors, and what used to be lost without a word: it learns, or it is told."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from etp_support import CELLS, Network, relative_error, run, sequence, two_states
from lacewing import etp

F64 = torch.float64
ALGORITHMS = pytest.mark.parametrize("algorithm", ["d-rtrl", "pp-prop"])


@ALGORITHMS
@pytest.mark.parametrize("cell", [etp.leaky, two_states], ids=["ready", "function"])
def test_a_loss_that_differentiates_itself_is_an_error(
    cell: Callable[[], etp.Cell], algorithm: str, device: str
) -> None:
    executor = Network.random(device).executor(cell(), algorithm=algorithm)
    xs, loss = sequence(device, 2)
    calls = [lambda: executor.step(xs[1]), lambda: executor.window(xs), executor.flush, executor.state_dict]

    for call in calls:
        loss(0, executor.step(xs[0])).backward()
        for each in (call, executor.reset_state):
            with pytest.raises(RuntimeError, match=r"by its own backward\(\), which leaves the weights out"):
                each()
        assert executor.steps == 0
    loss(0, executor.window(xs)[0]).backward()
    with pytest.raises(RuntimeError, match="leaves the weights out"):
        executor.step(xs[1])


def test_a_state_that_a_pending_step_began_with_must_stay() -> None:
    network = Network.random("cpu")
    xs, loss = sequence("cpu", 3)
    calls = [
        lambda e, h: e.backward(loss(1, h)),
        lambda e, _: e.step(xs[2]),
        lambda e, _: e.flush(),
        lambda e, _: e.state_dict(),
    ]
    for call in calls:
        executor = network.executor(etp.alif())
        first = executor.step(xs[0])
        h = executor.step(xs[1])
        first.detach().zero_()

        with pytest.raises(RuntimeError, match="was changed in place before the traces had absorbed the step after it"):
            call(executor, h)
        executor.reset_state()
        executor.step(xs[0])


def test_a_reset_tells_of_losses_that_it_could_not_absorb() -> None:
    executor = Network.random("cpu").executor(etp.alif(), absorb_every=4)
    xs, loss = sequence("cpu", 2)
    first = executor.step(xs[0])
    executor.backward(loss(0, executor.step(xs[1])))
    first.detach().zero_()

    with pytest.raises(RuntimeError, match="was changed in place before the traces had absorbed the step after it"):
        executor.reset_state()

    assert executor.steps == 0
    executor.backward(loss(0, executor.step(xs[0])))


def test_betas_that_change_count_from_the_next_step_on() -> None:
    network = Network.random("cpu")
    xs, loss = sequence("cpu", 6)

    def gradients(every: int) -> list[Tensor]:
        betas = torch.rand(7, dtype=F64, generator=torch.Generator().manual_seed(0))
        executor = network.executor(etp.alif(beta=betas, threshold=0.3), absorb_every=every)
        for t, x in enumerate(xs):
            executor.backward(loss(t, executor.step(x)))
            betas.mul_(1.5)
        executor.flush()
        return [p.grad for p in executor.parameters()]

    assert all(torch.equal(a, b) for a, b in zip(gradients(4), gradients(1), strict=True))


@ALGORITHMS
@pytest.mark.parametrize("cell", [etp.leaky, two_states], ids=["ready", "function"])
def test_a_loss_on_an_earlier_step_is_an_error(cell: Callable[[], etp.Cell], algorithm: str, device: str) -> None:
    executor = Network.random(device).executor(cell(), algorithm=algorithm)
    xs, loss = sequence(device, 3)

    sums = [loss(t, executor.step(x)) for t, x in enumerate(xs)]
    with pytest.raises(RuntimeError, match="the loss reaches the state of an earlier step or window"):
        executor.backward(sum(sums))
    executor.reset_state()
    old = executor.window(xs)
    new = executor.window(xs)
    with pytest.raises(RuntimeError, match="the loss reaches the state of an earlier step or window"):
        executor.backward(old.sum() + new.sum())
    executor.reset_state()
    executor.step(xs[0])
    with pytest.raises(RuntimeError, match="the loss does not depend on what the last step returned"):
        executor.backward(torch.ones(1, device=device, requires_grad=True).sum())


@ALGORITHMS
@pytest.mark.parametrize("recurrent", [False, True])
@pytest.mark.parametrize("cell", CELLS.values(), ids=CELLS.keys())
def test_what_x_comes_from_gets_its_same_step_gradient(
    cell: Callable[[], etp.Cell], recurrent: bool, algorithm: str, device: str
) -> None:
    network = Network.random(device, recurrent=recurrent)
    xs, loss = sequence(device, 3)
    plain, learns = (network.executor(cell(), algorithm=algorithm) for _ in range(2))
    encoder = torch.eye(5, dtype=F64, device=device, requires_grad=True)

    expected = run(plain, xs, loss)
    for t, x in enumerate(xs[:2]):
        learns.backward(loss(t, learns.step(x @ encoder)))
    encoder.grad = None
    before = learns.state.clone()
    learns.backward(loss(2, learns.step(xs[2] @ encoder)))

    assert relative_error([p.grad for p in learns.parameters()], expected) < 1e-12
    again = encoder.detach().requires_grad_()
    y = etp.sparse_matmul(xs[2] @ again, network.weight, network.pattern, network.bias)
    if network.recurrent is not None:
        y = y + etp.sparse_matmul(cell().output(before), network.recurrent_weight, network.recurrent)
    loss(2, cell().forward(y, before)).backward()
    torch.testing.assert_close(encoder.grad, again.grad, rtol=1e-12, atol=1e-12)


@ALGORITHMS
def test_betas_that_require_grad_learn(algorithm: str, device: str) -> None:
    network, beta = Network.random(device), torch.full((7,), 0.3, dtype=F64, device=device)
    xs, loss = sequence(device, 4)
    known = network.executor(etp.alif(beta=beta.clone(), threshold=0.4), algorithm=algorithm)
    learns = network.executor(etp.alif(beta=beta.requires_grad_(), threshold=0.4), algorithm=algorithm)

    expected, found = run(known, xs, loss), run(learns, xs, loss)

    assert relative_error(found, expected) < 1e-12
    assert beta.grad is not None
    assert beta.grad.abs().max() > 0


@ALGORITHMS
@pytest.mark.parametrize("dense", [False, True])
def test_frozen_values_get_no_gradient(algorithm: str, dense: bool, device: str) -> None:
    network = Network.random(device, recurrent=True)
    xs, loss = sequence(device, 3)

    def gradients(frozen: int | None) -> list[Tensor | None]:
        executor = network.executor(etp.leaky(), algorithm=algorithm)
        if dense:
            weight = network.pattern.with_data(network.weight).to_dense()
            executor = etp.Executor(
                etp.leaky(), etp.Connection.dense(weight, network.bias.clone()), algorithm=algorithm
            )
        if frozen is not None:
            executor.parameters()[frozen].requires_grad_(False)
        return run(executor, xs, loss)

    expected, found = gradients(None), gradients(0)

    assert found[0] is None
    assert all(torch.equal(a, b) for a, b in zip(found[1:], expected[1:], strict=True))


@ALGORITHMS
def test_inference_mode_leaves_nothing_behind(algorithm: str, device: str) -> None:
    network = Network.random(device, recurrent=True)
    xs, loss = sequence(device, 6)
    plain, watched = (network.executor(CELLS["alif"](), algorithm=algorithm) for _ in range(2))

    for executor, mode in [(plain, torch.no_grad), (watched, torch.inference_mode)]:
        with mode():
            executor.step(xs[0].clone())
            executor.window(xs[1:3].clone())
            saved = executor.state_dict()
        executor.load_state_dict(saved)
        for t in (3, 4, 5):
            executor.backward(loss(t, executor.step(xs[t])))

    assert torch.equal(plain.state, watched.state)
    assert all(torch.equal(p.grad, q.grad) for p, q in zip(plain.parameters(), watched.parameters(), strict=True))


def test_a_gradient_that_grows_in_place_is_seen_by_autograd(device: str) -> None:
    executor = Network.random(device).executor(etp.leaky())
    xs, loss = sequence(device, 2)
    run(executor, xs[:1], loss)
    grad = executor.parameters()[0].grad
    version = grad._version

    executor.backward(loss(1, executor.step(xs[1])))

    assert executor.parameters()[0].grad is grad
    assert grad._version > version


@pytest.mark.parametrize("format", ["coo", "csr", "csc"])
def test_patterns_connections_and_cells_are_copied_whole(format: str) -> None:
    arrays = {"coo": ([0, 2, 1], [1, 0, 0]), "csr": ([0, 1, 2, 2], [1, 0]), "csc": ([0, 2, 2], [2, 0])}
    pattern = getattr(etp.SparsePattern, format)(*arrays[format], (3, 2))
    connection = etp.Connection(pattern, torch.randn(pattern.nse), torch.ones(2))
    cell = etp.alif(beta=torch.tensor([0.3, 0.5]), threshold=0.4)
    x = torch.randn(2, 3)

    for again in (copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))):
        same = again(pattern)
        assert same.format == format
        assert torch.equal(same.row, pattern.row)
        assert torch.equal(same.col, pattern.col)
        other, twin = etp.Executor(again(cell), again(connection)), etp.Executor(cell, connection)
        assert torch.equal(other.step(x), twin.step(x))
        assert other.parameters()[0] is not twin.parameters()[0]
    doubled = copy.deepcopy(etp.FunctionCell(1, lambda y, h: 0.5 * h + 2 * y.unsqueeze(-1)))
    assert torch.equal(doubled.forward(torch.ones(1, 2), torch.zeros(1, 2, 1)), torch.full((1, 2, 1), 2.0))
    with pytest.raises(TypeError, match="an executor cannot be copied or pickled"):
        copy.deepcopy(etp.Executor(cell, connection))
    with pytest.raises(TypeError, match="does not support item assignment"):
        connection.values["weight"] = torch.zeros(pattern.nse)


def _changed(executor: etp.Executor, **entries: Tensor) -> dict[str, Tensor]:
    return {**executor.state_dict(), **{name.replace("_", "."): value for name, value in entries.items()}}


def test_a_load_that_fails_leaves_a_reset_executor() -> None:
    network = Network.random("cpu")
    xs, loss = sequence("cpu", 2)
    drtrl, pp = (network.executor(etp.leaky(), algorithm=name) for name in ("d-rtrl", "pp-prop"))
    expected = [run(network.executor(etp.leaky(), algorithm=name), xs, loss)[0] for name in ("d-rtrl", "pp-prop")]
    cases: list[tuple[etp.Executor, Callable[[], dict[str, Tensor]], str]] = [
        (
            pp,
            lambda: _changed(pp, trace_input_x=torch.ones(3, 1, dtype=F64)),
            r"input\.x must have shape \(3, 5\), not",
        ),
        (
            pp,
            lambda: _changed(pp, trace_input_x=torch.ones(3, 9, dtype=F64)),
            r"input\.x must have shape \(3, 5\), not",
        ),
        (pp, drtrl.state_dict, r"input\.x is missing"),
        (drtrl, pp.state_dict, r"input\.bias is missing"),
        (drtrl, lambda: _changed(drtrl, steps=torch.tensor(-3)), "steps must not be negative, not -3"),
        (drtrl, lambda: _changed(drtrl, steps=torch.tensor(1.5)), "steps has dtype float32"),
        (drtrl, lambda: _changed(drtrl, steps=torch.tensor([1, 2])), r"steps must have shape \(\), not \(2,\)"),
        (drtrl, lambda: _changed(drtrl, batched=torch.tensor(False)), "a state without a batch has one sample, not 3"),
    ]

    for executor, saved, sentence in cases:
        for each in (drtrl, pp):
            each.reset_state()
            each.step(xs[0])
        bad = saved()
        with pytest.raises(RuntimeError, match=rf"\[lacewing\.etp\.load\] {sentence}"):
            executor.load_state_dict(bad)
        assert executor.state is None
        for p in executor.parameters():
            p.grad = None
        assert torch.equal(run(executor, xs, loss)[0], expected[executor is pp])


@ALGORITHMS
def test_neurons_at_their_threshold_are_restored_with_their_spikes(algorithm: str) -> None:
    size = 4000
    places, betas = torch.arange(size), torch.linspace(0.1, 0.5, size)
    diagonal = etp.SparsePattern.coo(places, places, (size, size))
    ring = etp.SparsePattern.coo(places, places.roll(1), (size, size))
    cell = etp.alif(beta=betas, threshold=0.4)

    def network() -> etp.Executor:
        again = etp.Connection(ring, torch.ones(size))
        return etp.Executor(cell, etp.Connection(diagonal, torch.ones(size)), again, algorithm=algorithm)

    whole, restored = network(), network()
    h = whole.step(torch.full((2, size), 0.7))
    for _ in range(4):
        (v, a), seen = h.detach().unbind(-1), whole.output(h).detach()
        kept, arriving = math.exp(-1 / 20) * v - 0.4 * seen, seen.roll(-1, 1)
        h = whole.step(0.4 + betas * (math.exp(-1 / 200) * a + seen) - kept - arriving)
    assert not torch.equal(whole.output(h), cell.output(h))  # one rounding decides

    restored.load_state_dict(whole.state_dict())

    assert torch.equal(restored.step(torch.ones(2, size)), whole.step(torch.ones(2, size)))


def test_mixing_is_noticed_however_small(device: str) -> None:
    like, size = torch.zeros(1, dtype=F64, device=device), 24
    scale = torch.ones(size, 1, dtype=F64, device=device)
    scale[0] = 1e6

    def leaking(matrix: Tensor) -> etp.Cell:
        return etp.FunctionCell(1, lambda y, h: scale * h + y.unsqueeze(-1) + (h[..., 0] @ matrix).unsqueeze(-1))

    nothing = torch.zeros(size, size, dtype=F64, device=device)
    assert etp.analyze(leaking(nothing), size, like=like).exactness == "exact"
    for i in range(size):
        for j in {(i + 1) % size, (7 * i + 3) % size} - {i}:
            single = nothing.clone()
            single[j, i] = 1e-7
            assert etp.analyze(leaking(single), size, like=like).exactness == "approximate", (i, j)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, F64])
def test_cells_that_do_not_mix_pass_in_every_dtype(dtype: torch.dtype, device: str) -> None:
    def step(y: Tensor, h: Tensor) -> Tensor:
        a, b = h.unbind(-1)
        gate = torch.sigmoid(3 * y + b)
        return torch.stack([gate * a + (1 - gate) * torch.tanh(y), torch.nn.functional.softplus(b * a) - y / 7], -1)

    like = torch.zeros(1, dtype=dtype, device=device)
    assert etp.analyze(etp.FunctionCell(2, step), 300, like=like).exactness == "exact"


def test_a_window_that_throws_leaves_the_executor_as_it_was(device: str) -> None:
    network = Network.random(device)
    xs, loss = sequence(device, 5)
    broken = [False]

    def step(y: Tensor, h: Tensor) -> Tensor:
        if broken[0] and bool((y == y[0, 0]).all()):
            raise ValueError("the user's own")
        return torch.tanh(0.9 * h + y.unsqueeze(-1))

    plain, tried = (network.executor(etp.FunctionCell(1, step)) for _ in range(2))
    network.bias.zero_()
    for executor in (plain, tried):
        executor.parameters()[1].data.zero_()
    expected = run(plain, xs, loss)

    run(tried, xs[:2], loss)
    broken[0] = True
    bad = xs[:3].clone()
    bad[2] = 0
    with pytest.raises(ValueError, match="the user's own"):
        tried.window(bad)
    assert tried.steps == 2
    found = run(tried, xs[2:], lambda t, h: loss(t + 2, h))

    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@ALGORITHMS
@pytest.mark.parametrize("sizes", [(5, 7, 0, 2), (5, 0, 0, 2), (0, 7, 0, 2), (5, 7, 3, 0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_nothing_is_a_size_too(sizes: tuple[int, ...], algorithm: str, dtype: torch.dtype, device: str) -> None:
    inputs, outputs, nse, batch = sizes
    places = torch.arange(nse)
    pattern = etp.SparsePattern.coo(places, places, (inputs, outputs)).to(device)
    weight, bias = (torch.ones(n, dtype=dtype, device=device) for n in (nse, outputs))
    executor = etp.Executor(etp.alif(filter_tau=3.0), etp.Connection(pattern, weight, bias), algorithm=algorithm)
    x = torch.ones(batch, inputs, dtype=dtype, device=device)

    for _ in range(2):
        executor.backward(executor.step(x).sum())
    executor.backward(executor.window(x.expand(2, *x.shape)).sum())
    executor.load_state_dict(executor.state_dict())

    assert executor.step(x).shape == (batch, outputs, 3)
    assert weight.grad.shape == (nse,)
    assert bias.grad.shape == (outputs,)


@ALGORITHMS
@pytest.mark.parametrize("recurrent", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("batch", [1, 21])
@pytest.mark.parametrize("cell", [name for name in CELLS if name != "two states"])
def test_the_fused_step_is_the_engines_product_and_the_cell(
    cell: str, batch: int, dtype: torch.dtype, recurrent: bool, algorithm: str, device: str
) -> None:
    network = Network.random(device, recurrent=recurrent)
    xs, loss = sequence(device, 4, batch)

    def strided(values: Tensor) -> Tensor:
        """Values that the fused step does not take."""
        return torch.empty(2 * len(values), dtype=dtype, device=device)[::2].copy_(values)

    def executor(values: Callable[[Tensor], Tensor]) -> etp.Executor:
        again = etp.Connection(network.recurrent, values(network.recurrent_weight)) if network.recurrent else None
        first = etp.Connection(network.pattern, values(network.weight), values(network.bias))
        return etp.Executor(CELLS[cell](), first, again, algorithm=algorithm)

    fused, composed = executor(lambda values: values.to(dtype).clone()), executor(strided)
    found, expected = run(fused, xs.to(dtype), loss), run(composed, xs.to(dtype), loss)

    rounding = 1e-12 if dtype == F64 else 2e-5
    assert relative_error([fused.state], [composed.state]) < rounding
    assert relative_error(found, expected) < rounding
    for key, trace in fused.traces().items():
        torch.testing.assert_close(trace, composed.traces()[key], rtol=rounding, atol=rounding)
