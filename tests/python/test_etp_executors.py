"""D-RTRL and pp-prop against back-propagation through time, and what they promise about memory and bits."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from etp_support import ALIFS, CELLS, Network, relative_error, run, sequence
from lacewing import backend, etp

F64 = torch.float64
STEPS = 15


@pytest.mark.parametrize("window", [None, 1, 3, 5, STEPS])
@pytest.mark.parametrize("cell", CELLS.values(), ids=CELLS.keys())
def test_drtrl_is_bptt(cell: Callable[[], etp.Cell], window: int | None, device: str) -> None:
    network = Network.random(device)
    xs, loss = sequence(device, STEPS)
    executor = network.executor(cell())

    found = run(executor, xs, loss, window)

    assert executor.analysis.exactness == "exact"
    assert relative_error(found, network.bptt(cell(), xs, loss)) < 1e-10


@pytest.mark.parametrize("surrogate", ["triangle", "fast_sigmoid", "arctan", "gaussian", "boxcar"])
@pytest.mark.parametrize("reset", ["subtract", "to_zero", "none"])
@pytest.mark.parametrize("reset_gradient", [True, False])
def test_fused_cells_equal_their_composition(surrogate: str, reset: str, reset_gradient: bool, device: str) -> None:
    options = {"surrogate": surrogate, "reset": reset, "reset_gradient": reset_gradient, "threshold": 0.2}
    betas = torch.rand(7, dtype=F64, device=device)
    y, h = torch.randn(21, 7, dtype=F64, device=device), torch.randn(21, 7, 3, dtype=F64, device=device)
    for cell, states in [
        (etp.lif(**options), 1),
        (etp.lif(filter_tau=4.0, **options), 2),
        (etp.alif(beta=betas, **options), 2),
        (etp.alif(beta=0.7, filter_tau=4.0, **options), 3),
    ]:
        state = h[..., :states].contiguous()

        found = cell.linearize(y, state)

        with backend("reference"):
            expected = cell.linearize(y, state)
        assert cell.states == states
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("cell", [etp.leaky(), etp.gated(0.5, -1.0, 0.2, 0.7)], ids=["leaky", "gated"])
def test_smooth_cells_equal_their_composition(cell: etp.Cell, device: str) -> None:
    y, h = torch.randn(5, 6, dtype=F64, device=device), torch.randn(5, 6, 1, dtype=F64, device=device)

    found = cell.linearize(y, h)

    with backend("reference"):
        expected = cell.linearize(y, h)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("cell", ALIFS)
@pytest.mark.parametrize("algorithm", ["d-rtrl", "pp-prop"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("batch", [1, 3, 16, 37])
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_fused_steps_equal_the_reference(
    cell: str, algorithm: str, bias: bool, batch: int, dtype: torch.dtype, device: str
) -> None:
    network = Network.random(device, bias=bias, recurrent=True)
    for part in ("weight", "bias", "recurrent_weight"):
        value = getattr(network, part)
        setattr(network, part, None if value is None else value.to(dtype))
    xs, loss = sequence(device, 4, batch)

    found = network.executor(CELLS[cell](), algorithm=algorithm)
    run(found, xs.to(dtype), loss)
    with backend("reference"):
        expected = network.executor(CELLS[cell](), algorithm=algorithm)
        run(expected, xs.to(dtype), loss)

    tolerance = 1e-12 if dtype == F64 else 1e-4
    for ours, theirs in zip(found.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=tolerance, atol=tolerance)
    for key, trace in found.traces().items():
        torch.testing.assert_close(trace, expected.traces()[key], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("cell", [etp.leaky, etp.gated], ids=["leaky", "gated"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_follows_the_wide_one(cell: Callable[[], etp.Cell], dtype: torch.dtype, device: str) -> None:
    network = Network.random(device)
    xs, _ = sequence(device, 6)
    wide = network.executor(cell())
    network.weight, network.bias = network.weight.to(dtype), network.bias.to(dtype)
    narrow = network.executor(cell())

    for x in xs:
        wide.backward(wide.step(x).square().sum())
        narrow.backward(narrow.step(x.to(dtype)).float().square().sum())

    for ours, theirs in zip(narrow.parameters(), wide.parameters(), strict=True):
        assert ours.grad.dtype == dtype
        assert (ours.grad.double() - theirs.grad).abs().max() / theirs.grad.abs().max() < 0.05


def test_recurrent_weights_are_reported_as_approximate(device: str) -> None:
    network = Network.random(device, recurrent=True)
    xs, loss = sequence(device, STEPS)
    executor = network.executor(CELLS["gated"]())
    exact = network.bptt(CELLS["gated"](), xs, loss)

    found = run(executor, xs, loss)
    whole = run(network.executor(CELLS["gated"]()), xs, loss, STEPS)

    assert executor.analysis.exactness == "approximate"
    assert "recurrent weights" in executor.analysis.reason
    assert relative_error(found, exact) > 1e-3
    assert relative_error(whole, exact) < 1e-10


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("cell", CELLS.values(), ids=CELLS.keys())
def test_pp_prop_is_exact_for_one_step(cell: Callable[[], etp.Cell], bias: bool, device: str) -> None:
    network = Network.random(device, bias=bias)
    xs, loss = sequence(device, 1)
    executor = network.executor(cell(), algorithm="pp-prop", alpha=0.7)

    found = run(executor, xs, loss)

    assert relative_error(found, network.bptt(cell(), xs, loss)) < 1e-12
    assert executor.analysis.exactness == "approximate"


@pytest.mark.parametrize("window", [None, 4])
def test_pp_prop_follows_its_recurrence(window: int | None, device: str) -> None:
    network = Network.random(device)
    cell, alpha = CELLS["alif"](), 0.6
    xs, loss = sequence(device, 8)
    ex, ef = torch.zeros_like(xs[0]), torch.zeros(3, 7, 3, dtype=F64, device=device)
    h = torch.zeros_like(ef)
    dw, db = torch.zeros_like(network.weight), torch.zeros_like(network.bias)
    for t, x in enumerate(xs):
        y = etp.sparse_matmul(x, network.weight, network.pattern, network.bias)
        h, df, decay = cell.linearize(y, h)
        ex = alpha * ex + x
        ef = alpha * (decay @ ef.unsqueeze(-1)).squeeze(-1) + (1 - alpha) * df
        leaf = h.detach().requires_grad_()
        (g,) = torch.autograd.grad(loss(t, leaf), leaf)
        gy = (ef / (1 - alpha ** (t + 1)) * g).sum(-1)
        dw += network.pattern.sampled_outer(ex, gy)
        db += gy.sum(0) * (1 - alpha ** (t + 1)) / (1 - alpha)

    executor = network.executor(cell, algorithm="pp-prop", alpha=alpha)
    found = run(executor, xs, loss, window)

    if window is None:
        assert relative_error(found, [dw, db]) < 1e-12
    traces = executor.traces()
    torch.testing.assert_close(traces["input.x"], ex, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(traces["f"], ef, rtol=1e-12, atol=1e-12)
    assert etp.alpha_of_rank(3) == 0.5
    assert etp.alpha_of_rank(1) == 0.0


@pytest.mark.parametrize("cell", ALIFS)
@pytest.mark.parametrize("algorithm", ["d-rtrl", "pp-prop"])
@pytest.mark.parametrize("window", [None, 3])
def test_formats_give_the_same_gradients(cell: str, algorithm: str, window: int | None, device: str) -> None:
    network = Network.random(device)
    xs, loss = sequence(device, 6)
    row, col = network.pattern.row, network.pattern.col
    by_row = torch.argsort(row * 7 + col)
    crow, ccol = (torch.cat([i.new_zeros(1), i.bincount(minlength=n).cumsum(0)]) for i, n in ((row, 5), (col, 7)))
    mixed = torch.randperm(len(row), generator=torch.Generator().manual_seed(1)).to(device)
    formats = {
        "csc": (etp.SparsePattern.csc(ccol, row, (5, 7)), torch.arange(len(row), device=device)),
        "csr": (etp.SparsePattern.csr(crow, col[by_row], (5, 7)), by_row),
        "coo": (etp.SparsePattern.coo(row[mixed], col[mixed], (5, 7)), mixed),
    }
    expected = run(network.executor(CELLS[cell](), algorithm=algorithm), xs, loss, window)

    for name, (pattern, order) in formats.items():
        weight = network.weight[order].clone()
        connection = etp.Connection(pattern, weight, network.bias.clone())
        executor = etp.Executor(CELLS[cell](), connection, algorithm=algorithm)
        found = run(executor, xs, loss, window)
        assert pattern.format == name
        assert relative_error([found[0], found[1]], [expected[0][order], expected[1]]) < 1e-12


@pytest.mark.parametrize("cell", ALIFS)
@pytest.mark.parametrize("algorithm", ["d-rtrl", "pp-prop"])
@pytest.mark.parametrize("window", [None, 4])
def test_restored_in_the_middle_gives_the_same_bits(cell: str, algorithm: str, window: int | None, device: str) -> None:
    network = Network.random(device, recurrent=True)
    xs, loss = sequence(device, 8)
    whole = network.executor(CELLS[cell](), algorithm=algorithm)
    expected = run(whole, xs, loss, window)

    first = network.executor(CELLS[cell](), algorithm=algorithm)
    run(first, xs[:4], loss, window)
    second = network.executor(CELLS[cell](), algorithm=algorithm)
    second.load_state_dict(first.state_dict())
    for p, q in zip(second.parameters(), first.parameters(), strict=True):
        p.grad = q.grad.clone()
    run(second, xs[4:], lambda t, h: loss(t + 4, h), window)

    assert all(torch.equal(p.grad, e) for p, e in zip(second.parameters(), expected, strict=True))
    assert torch.equal(second.state, whole.state)
    assert second.steps == whole.steps == 8


@pytest.mark.parametrize("cell", ALIFS)
@pytest.mark.parametrize("algorithm", ["d-rtrl", "pp-prop"])
def test_same_bits_for_every_number_of_threads(cell: str, algorithm: str) -> None:
    network = Network.random("cpu", recurrent=True, inputs=300, neurons=500)
    xs, loss = sequence("cpu", 3, 16, 300, 500)
    results = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 4):
            torch.set_num_threads(threads)
            results.append(run(network.executor(CELLS[cell](), algorithm=algorithm), xs, loss))
    finally:
        torch.set_num_threads(before)

    assert all(torch.equal(a, b) for other in results[1:] for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize("reset_gradient", [True, False])
@pytest.mark.parametrize("filter_tau", [None, 4.0])
def test_losses_on_spikes_have_the_same_bits_however_they_are_absorbed(
    filter_tau: float | None, reset_gradient: bool
) -> None:
    network = Network.random("cpu", recurrent=True, inputs=300, neurons=500)
    xs, _ = sequence("cpu", 5, 16, 300, 500)
    readout = torch.randn(500, 2, dtype=F64)
    results = []
    before = torch.get_num_threads()
    try:
        for threads, every in ((1, 1), (2, 1), (4, 3), (1, 8)):
            torch.set_num_threads(threads)
            cell = etp.alif(threshold=0.3, filter_tau=filter_tau, reset_gradient=reset_gradient)
            executor = network.executor(cell, absorb_every=every)
            for x in xs:
                z = executor.output(executor.step(x))
                executor.backward((z * readout[:, 0]).sum() + (z * z).mul(readout[:, 1]).sum())
            executor.flush()
            results.append([p.grad for p in executor.parameters()])
    finally:
        torch.set_num_threads(before)

    assert all(grad.any() for grad in results[0])
    assert all(torch.equal(a, b) for other in results[1:] for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize("cell", ALIFS)
@pytest.mark.parametrize("batch", [3, 37])
@pytest.mark.parametrize("every", [2, 3, 8])
def test_steps_absorbed_together_give_the_same_bits(cell: str, every: int, batch: int, device: str) -> None:
    network = Network.random(device, recurrent=True)
    xs, loss = sequence(device, 11, batch)

    def gradients(absorb_every: int, restored_at: int | None = None) -> list[Tensor]:
        executor = network.executor(CELLS[cell](), absorb_every=absorb_every)
        for t, x in enumerate(xs):
            if t == restored_at:
                saved, before = executor.state_dict(), executor
                executor = network.executor(CELLS[cell](), absorb_every=absorb_every)
                executor.load_state_dict(saved)
                for p, q in zip(executor.parameters(), before.parameters(), strict=True):
                    p.grad = q.grad
            h = executor.step(x)
            if t % 4 != 1:  # steps without a loss are absorbed too
                executor.backward(loss(t, h))
            if t == 6:
                executor.backward(loss(0, executor.states()[0].unsqueeze(-1)))  # a second loss on one step
        executor.flush()
        return [p.grad for p in executor.parameters()]

    expected = gradients(1)

    for found in (gradients(every), gradients(every, 5)):
        assert relative_error(found, expected) < 1e-13
    if every == 2:  # without a second loss, whose sum is formed before the contraction, there is nothing to round anew
        results = []
        for k in (1, 2, 3, 8):
            executor = network.executor(CELLS[cell](), absorb_every=k)
            run(executor, xs, loss)
            executor.flush()
            results.append([p.grad for p in executor.parameters()])
        assert all(torch.equal(a, b) for other in results[1:] for a, b in zip(results[0], other, strict=True))


def test_gradients_wait_for_a_flush_at_most(device: str) -> None:
    network = Network.random(device)
    xs, loss = sequence(device, 3)
    expected = run(network.executor(etp.leaky()), xs, loss)
    waiting = network.executor(etp.leaky(), absorb_every=4)

    early = run(waiting, xs, loss)
    waiting.reset_state()

    assert early == [None, None]
    assert all(torch.equal(p.grad, e) for p, e in zip(waiting.parameters(), expected, strict=True))


@pytest.mark.parametrize("algorithm", ["d-rtrl", "pp-prop"])
@pytest.mark.parametrize("batch", [None, 3])
def test_spikes_of_a_step_carry_the_gradient_of_the_cell(algorithm: str, batch: int | None, device: str) -> None:
    network = Network.random(device, recurrent=True)
    xs, _ = sequence(device, 5, 3)
    xs = xs[:, 0] if batch is None else xs
    readout = torch.randn(7, 2, dtype=F64, device=device)
    betas = torch.rand(7, dtype=F64, device=device)
    cells = [
        lambda s=s, r=r: etp.alif(beta=betas, threshold=0.3, surrogate=s, reset_gradient=r)
        for s, r in (("triangle", True), ("gaussian", False))
    ]
    cells += [lambda: etp.lif(threshold=0.3, filter_tau=4.0), *(CELLS[name] for name in ALIFS), etp.leaky]
    for cell in cells:
        ours, plain = (network.executor(cell(), algorithm=algorithm) for _ in range(2))

        for x in xs:
            h = ours.step(x)
            twice = ours.output(h) @ readout, ours.output(h).sum() * h.sum()
            ours.backward(twice[0].square().sum() + twice[1])
            h = plain.step(x)
            spikes = plain.cell.output(h if batch else h.unsqueeze(0))
            spikes = spikes if batch else spikes.squeeze(0)
            plain.backward((spikes @ readout).square().sum() + spikes.sum() * h.sum())

        found, expected = ([p.grad for p in e.parameters()] for e in (ours, plain))
        assert relative_error(found, expected) < 1e-12


def test_states_that_the_caller_keeps_stay_as_they_were(device: str) -> None:
    network = Network.random(device, recurrent=True)
    xs, _ = sequence(device, 6)
    executor = network.executor(CELLS["alif"]())

    kept = [executor.step(x) for x in xs]
    shown = [h.detach().clone() for h in kept]
    again = network.executor(CELLS["alif"]())
    fresh = [again.step(x).detach().clone() for x in xs]

    assert all(torch.equal(a, b) and torch.equal(b, c) for a, b, c in zip(kept, shown, fresh, strict=True))
    kept[-1].detach().zero_()
    with pytest.raises(RuntimeError, match="the state of step 6 was changed in place after step"):
        executor.step(xs[0])


def test_inputs_may_be_changed_before_the_backward_pass(device: str) -> None:
    network = Network.random(device)
    xs, loss = sequence(device, 3, 1)
    expected = run(network.executor(etp.leaky()), xs, loss)
    executor = network.executor(etp.leaky(), absorb_every=2)

    x = torch.empty_like(xs[0])
    for t in range(3):
        executor.backward(loss(t, executor.step(x.copy_(xs[t]))))
    x.zero_()
    executor.flush()

    assert all(torch.equal(p.grad, e) for p, e in zip(executor.parameters(), expected, strict=True))


@pytest.mark.parametrize("cell", ALIFS)
def test_reset_begins_anew(cell: str, device: str) -> None:
    network = Network.random(device)
    xs, loss = sequence(device, 5)
    executor = network.executor(CELLS[cell]())
    expected = [g.clone() for g in run(executor, xs, loss)]

    executor.reset_state()
    for p in executor.parameters():
        p.grad = None
    again = run(executor, xs, loss)

    assert all(torch.equal(a, b) for a, b in zip(again, expected, strict=True))
    executor.reset_state()
    assert executor.state is None
    assert executor.steps == 0
    assert executor.step(xs[0, :2]).shape == (2, 7, 3)


@pytest.mark.parametrize("cell", ALIFS)
def test_unbatched_steps_are_a_batch_of_one(cell: str, device: str) -> None:
    network = Network.random(device)
    xs, loss = sequence(device, 5, 1)
    batched = run(network.executor(CELLS[cell]()), xs, loss)
    executor = network.executor(CELLS[cell]())

    for t in range(3):
        h = executor.step(xs[t, 0])
        executor.backward(loss(t, h.unsqueeze(0)))
    h = executor.window(xs[3:, 0])
    executor.backward(loss(3, h[0].unsqueeze(0)) + loss(4, h[1].unsqueeze(0)))

    assert h.shape == (2, 7, 3)
    lone = etp.alif(beta=torch.rand(7, dtype=F64, device=device))
    earlier = network.executor(lone).step(xs[0, 0]).detach()
    assert torch.equal(network.executor(lone).output(earlier), lone.output(earlier.unsqueeze(0))[0])
    assert executor.traces()["input.weight"].shape == (network.pattern.nse, 3)
    assert relative_error([p.grad for p in executor.parameters()], batched) < 1e-10


@pytest.mark.parametrize("algorithm", ["d-rtrl", "pp-prop"])
@pytest.mark.parametrize("cell", ["alif", "two states"])
def test_single_states_give_the_gradients_of_slices(algorithm: str, cell: str, device: str) -> None:
    network = Network.random(device, recurrent=True)
    xs, _ = sequence(device, 5)
    whole, single = (network.executor(CELLS[cell](), algorithm=algorithm) for _ in range(2))

    for x in xs:
        h = whole.step(x)
        whole.backward((h[..., -1] * h[..., 0]).sum() + h.square().sum())
        h = single.step(x)
        states = single.states()
        single.backward((states[-1] * states[0]).sum() + h.square().sum())

    found, expected = ([p.grad for p in e.parameters()] for e in (single, whole))
    assert relative_error(found, expected) < 1e-12


def test_trace_is_what_the_formula_says(device: str) -> None:
    network = Network.random(device)
    xs, _ = sequence(device, 3)
    cell = CELLS["alif"]()
    executor = network.executor(cell)
    e, h = torch.zeros(3, network.pattern.nse, 3, dtype=F64, device=device), None

    for x in xs:
        h = torch.zeros(3, 7, 3, dtype=F64, device=device) if h is None else h
        y = etp.sparse_matmul(x, network.weight, network.pattern, network.bias)
        h, df, decay = cell.linearize(y, h)
        kept = (decay[:, network.pattern.col] @ e.unsqueeze(-1)).squeeze(-1)
        e = kept + x[:, network.pattern.row].unsqueeze(-1) * df[:, network.pattern.col]
        executor.step(x)

    traces = executor.traces()
    torch.testing.assert_close(traces["input.weight"], e, rtol=1e-12, atol=1e-12)
    assert traces["input.bias"].shape == (3, 7, 3)
    assert not traces["input.weight"].requires_grad
    assert executor.trace_elements == 3 * (network.pattern.nse + 7) * 3


def test_plain_parameters_get_their_same_step_gradient(device: str) -> None:
    network = Network.random(device)
    xs, _ = sequence(device, 4)
    readout = torch.randn(7, 2, dtype=F64, device=device, requires_grad=True)
    rate = torch.tensor(0.7, dtype=F64, device=device, requires_grad=True)
    cell = etp.FunctionCell(1, lambda y, h: torch.tanh(rate * h + y.unsqueeze(-1)))
    executor = network.executor(cell)
    expected_readout, expected_rate = torch.zeros_like(readout), torch.zeros_like(rate)

    for x in xs:
        before = torch.zeros(3, 7, 1, dtype=F64, device=device) if executor.state is None else executor.state
        h = executor.step(x)
        executor.backward((h[..., 0] @ readout).square().sum())
        y = etp.sparse_matmul(x, network.weight, network.pattern, network.bias)
        loss = (torch.tanh(rate * before + y.unsqueeze(-1))[..., 0] @ readout).square().sum()
        parts = torch.autograd.grad(loss, [readout, rate])
        expected_readout, expected_rate = expected_readout + parts[0], expected_rate + parts[1]

    torch.testing.assert_close(readout.grad, expected_readout)
    torch.testing.assert_close(rate.grad, expected_rate)
    assert readout.grad.abs().max() > 0
    assert rate.grad.abs() > 0


def test_other_primitives_and_those_of_the_user(device: str) -> None:
    network = Network.random(device)
    dense = network.pattern.with_data(network.weight).to_dense()
    mask = (dense != 0).double()
    xs, loss = sequence(device, 6)

    def yw_to_w(g: Tensor, trace: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"weight": g.unsqueeze(-2) * trace["weight"]}

    masked = etp.register_primitive("masked", lambda x, w: x @ (w * mask), True, yw_to_w=yw_to_w)
    network.bias = None
    exact = network.bptt(CELLS["alif"](), xs, loss)[0]
    connections = [etp.Connection.dense(dense.clone()), etp.Connection.of(masked, {"weight": dense.clone()}, 7)]
    for connection in connections:
        executor = etp.Executor(CELLS["alif"](), connection)

        (found,) = run(executor, xs, loss)

        values = found[network.pattern.row, network.pattern.col]
        assert relative_error([values], [exact]) < 1e-10
        saved = executor.state_dict()
        executor.load_state_dict(saved)
        assert torch.equal(executor.traces()["input.weight"], saved["trace.input.weight"])
    factor = etp.Connection.elementwise(torch.randn(5, dtype=F64, device=device))
    xs, loss = sequence(device, 4, neurons=5)
    executor = etp.Executor(etp.leaky(), factor)
    assert run(executor, xs, loss)[0].shape == (5,)
    pp = etp.Executor(CELLS["alif"](), connections[1], algorithm="pp-prop")
    pp.backward(pp.step(sequence(device, 1)[0][0]).square().sum())


def test_memory_does_not_grow_with_time() -> None:
    memory = pytest.importorskip("benchmarks.memory")
    network = Network.random("cpu", inputs=50, neurons=100)
    for algorithm in ("d-rtrl", "pp-prop"):
        executor = network.executor(CELLS["alif"](), algorithm=algorithm)

        def steps(count: int, executor: etp.Executor = executor) -> None:
            executor.reset_state()
            generator = torch.Generator().manual_seed(0)
            for _ in range(count):
                x = torch.randn(16, 50, generator=generator, dtype=F64)
                executor.backward(executor.step(x).square().sum())

        steps(2)
        short, long = (memory.peak_bytes(lambda n=n: steps(n), torch.device("cpu")) for n in (10, 1000))

        assert long <= short
        if algorithm == "d-rtrl":
            assert executor.trace_elements <= 1.1 * 16 * (network.pattern.nse + 100) * 3


@pytest.mark.parametrize(("reset_gradient", "held"), [(True, 3), (False, 2)])  # numbers for a weight
@pytest.mark.parametrize("steps", [10, 1000])
def test_the_trace_is_the_only_large_allocation(steps: int, reset_gradient: bool, held: int) -> None:
    memory = pytest.importorskip("benchmarks.memory")
    batch, inputs, neurons, degree = 16, 100, 20, 100
    pattern = etp.fixed_degree(inputs, neurons, degree, seed=0)
    weight = torch.randn(pattern.nse)
    x = torch.randn(batch, inputs)

    def train() -> None:
        cell = etp.alif(filter_tau=5.0, reset_gradient=reset_gradient)
        executor = etp.Executor(cell, etp.Connection(pattern, weight))
        for _ in range(steps):
            executor.backward(executor.step(x).sum())

    train()  # the gradient of the weight is there already
    peak = memory.peak_bytes(train, torch.device("cpu"))

    # Of the state that is shared there are the traces of the inputs, before and after a step.
    assert peak <= 1.1 * batch * (pattern.nse * held + 2 * inputs) * 4


def test_a_step_keeps_two_states_and_no_jacobian() -> None:
    memory = pytest.importorskip("benchmarks.memory")
    batch, neurons = 16, 2000
    pattern = etp.fixed_degree(10, neurons, 2, seed=0)
    weight, readout = torch.randn(pattern.nse), torch.randn(neurons, 1)
    xs = torch.randn(5, batch, 10)

    def train() -> None:
        executor = etp.Executor(etp.alif(reset_gradient=True), etp.Connection(pattern, weight))
        for x in xs:
            executor.backward((executor.output(executor.step(x)) @ readout).sum())

    train()  # the gradient of the weight is there already
    beyond = memory.peak_bytes(train, torch.device("cpu")) - 4 * batch * pattern.nse * 2

    # h(t-1) and h(t) have two states each; then the spikes, their copy for the caller, and the gradient of that.
    assert beyond < 4 * batch * neurons * (4 + 3 + 0.5)


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("cell", ["alif", "lif, filtered"])
def test_losses_on_one_step_add_up(cell: str, every: int, device: str) -> None:
    network = Network.random(device, recurrent=True)
    xs, _ = sequence(device, 5)
    betas = torch.rand(7, dtype=F64, device=device)
    make = {
        "alif": lambda: etp.alif(beta=betas, threshold=0.3, reset_gradient=True),
        "lif, filtered": lambda: etp.lif(threshold=0.3, filter_tau=4.0),
    }[cell]

    def gradients(apart: bool) -> list[Tensor]:
        executor = network.executor(make(), absorb_every=every)
        for x in xs:
            h = executor.step(x)
            losses = [executor.output(h).square().sum(), executor.output(h).sum(), h.square().sum()]
            for loss in losses if apart else [sum(losses)]:
                executor.backward(loss)
        executor.flush()
        return [p.grad for p in executor.parameters()]

    assert relative_error(gradients(True), gradients(False)) < 1e-13


def test_learner_lowers_its_loss() -> None:
    torch.manual_seed(0)
    pattern = etp.fixed_degree(6, 20, 3, seed=0)
    readout = torch.nn.Linear(20, 1)
    learner = etp.Learner(
        etp.leaky(3.0),
        "d-rtrl",
        lambda p: torch.optim.Adam(p, 2e-2),
        input=etp.Connection(pattern, torch.randn(pattern.nse) * 0.3),
        readout=lambda h: readout(h[..., 0]),
        update_every=5,
    )
    losses = []
    for _ in range(60):
        learner.reset_state()
        xs = torch.randn(5, 8, 6)
        steps = [learner.step(x, xs[: t + 1, :, :1].mean(0)) for t, x in enumerate(xs)]
        losses.append(sum(step.loss.item() for step in steps))

    assert sum(losses[-10:]) < 0.3 * sum(losses[:10])
    assert learner.step(xs[0]).loss is None


@pytest.mark.parametrize("absorb_every", [1, 3])
def test_learner_updates_when_it_is_due(absorb_every: int) -> None:
    network = Network.random("cpu", bias=False)
    xs, _ = sequence("cpu", 5)
    weight = network.weight.clone()
    learner = etp.Learner(
        etp.leaky(), "d-rtrl", lambda p: torch.optim.SGD(p, 1.0), input=etp.Connection(network.pattern, weight),
        update_every=2, absorb_every=absorb_every,
    )  # fmt: skip
    executor = network.executor(etp.leaky())
    seen = []
    for x in xs:
        output, loss = learner.step(x, torch.ones(3, 7, dtype=F64))
        h = executor.step(x)
        expected = torch.nn.functional.mse_loss(executor.output(h), torch.ones(3, 7, dtype=F64))
        executor.backward(expected)
        seen.append(torch.equal(weight, network.weight))
        torch.testing.assert_close(loss, expected.detach())
        assert not output.requires_grad
        if len(seen) == 2:
            break

    assert seen == [True, False]
    torch.testing.assert_close(weight.detach(), network.weight - executor.parameters()[0].grad)
    assert weight.grad is None
    learner.reset_state()
    assert learner.executor.steps == 0
    with pytest.raises(ValueError, match="update_every must be at least 1, not 0"):
        etp.Learner(etp.leaky(), "d-rtrl", torch.optim.SGD, input=learner.executor.input, update_every=0)
