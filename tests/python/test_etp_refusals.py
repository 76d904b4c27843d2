"""What the executors refuse: cells that the analysis cannot vouch for, bad calls, replaced weights; and opcheck."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from etp_support import Network, sequence
from lacewing import etp, ops

F64 = torch.float64


def _norm(y: Tensor, h: Tensor) -> Tensor:
    return torch.nn.functional.layer_norm(0.9 * h[..., 0] + y, (7,)).unsqueeze(-1)


def test_a_cell_that_mixes_positions_is_noticed(device: str) -> None:
    network = Network.random(device)
    cell = etp.FunctionCell(1, _norm)

    with pytest.raises(RuntimeError, match="the cell is refused: the cell mixes positions"):
        network.executor(cell)
    allowed = network.executor(cell, allow_approximate=True)
    assert allowed.analysis.exactness == "approximate"
    like = torch.zeros(1, dtype=F64, device=device)
    across_batch = etp.FunctionCell(1, lambda y, h: 0.5 * h + (y - y.mean(0)).unsqueeze(-1))
    assert etp.analyze(across_batch, 7, like=like).exactness == "approximate"
    assert etp.analyze(etp.leaky(), 7, like=like).exactness == "exact"
    assert etp.analyze(etp.leaky(), 7, recurrent=True, like=like).exactness == "approximate"
    assert etp.analyze(etp.leaky(), 7, algorithm="pp-prop", like=like).exactness == "approximate"


REFUSED: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], str]] = {
    "random": (lambda y, h: h * torch.rand_like(h) + y.unsqueeze(-1), "two steps from the same state differ"),
    "detached": (lambda y, h: (h + y.unsqueeze(-1)).detach(), "does not depend on y or h"),
    "not finite": (lambda y, h: h / 0 + y.unsqueeze(-1), "a step from a random state is not finite"),
    "shape": (lambda y, h: h[:, :3], r"a step from a state of shape \(3, 7, 1\), float64 must give the same, not"),
}


@pytest.mark.parametrize(("step", "sentence"), REFUSED.values(), ids=REFUSED.keys())
def test_a_cell_that_cannot_be_classified_is_refused(step: Callable[..., Tensor], sentence: str, device: str) -> None:
    with pytest.raises(RuntimeError, match=sentence):
        Network.random(device).executor(etp.FunctionCell(1, step))


def test_states_that_are_not_finite_are_reported(device: str) -> None:
    network = Network.random(device, bias=False)
    executor = network.executor(etp.leaky(), check_finite=True)
    xs, _ = sequence(device, 2)
    xs[1, 2, network.pattern.row[network.pattern.col == 4][0]] = float("nan")
    neurons = sorted(network.pattern.col[network.pattern.row == network.pattern.row[network.pattern.col == 4][0]])

    executor.step(xs[0])
    with pytest.raises(RuntimeError, match=rf"state 0 of neuron {neurons[0]} of sample 2 is not finite after step 2"):
        executor.step(xs[1])


def test_bad_calls_get_a_sentence() -> None:
    network = Network.random("cpu")
    executor = network.executor(etp.leaky())
    xs, _ = sequence("cpu", 2)
    cases: list[tuple[Callable[[], object], str]] = [
        (lambda: executor.backward(torch.ones((), requires_grad=True)), "there is no step to learn from"),
        (lambda: executor.step(xs[0].float()), "x has dtype float32, but the weight has dtype float64"),
        (lambda: executor.step(xs), r"x must have 1 or 2 dimensions, not shape \(2, 3, 5\)"),
        (lambda: executor.step(xs[0][:, :4]), r"x of shape \(3, 4\) must end with the 5 inputs"),
        (lambda: executor.window(xs[:0]), "a window has at least one step"),
        (lambda: executor.load_state_dict({}), "steps is missing"),
        (lambda: network.executor(etp.leaky(), algorithm="pp-prop", alpha=1.0), "alpha must be at least 0 and less"),
        (lambda: network.executor(etp.leaky(), algorithm="pp-prop", alpha=0), "a rank must be at least 1, not 0"),
        (lambda: network.executor(etp.leaky(), absorb_every=9), "absorb_every must be between 1 and 8, not 9"),
        (lambda: etp.lif(reset="hard"), "reset must be subtract, to_zero or none, not hard"),
        (lambda: etp.lif(width=0.0), "width must be positive, not 0"),
        (lambda: network.executor(etp.alif(beta=torch.ones(3))), "betas has 3 entries, but there are 7 neurons"),
        (lambda: etp.FunctionCell(17, lambda y, h: h), "a cell has 1 to 16 states, not 17"),
    ]  # fmt: skip
    for call, sentence in cases:
        executor.reset_state()
        with pytest.raises(RuntimeError, match=rf"\[lacewing\..*\] .*{sentence}"):
            call()
    executor.reset_state()
    executor.step(xs[0])
    with pytest.raises(RuntimeError, match="x has a batch of 2, but the state has a batch of 3: reset_state"):
        executor.step(xs[0][:2])
    with pytest.raises(RuntimeError, match="the loss does not depend on what the last step or window returned"):
        executor.backward(torch.ones(()))
    with pytest.raises(ValueError, match='algorithm must be "d-rtrl" or "pp-prop", not "bptt"'):
        network.executor(etp.leaky(), algorithm="bptt")
    with pytest.raises(RuntimeError, match=r"state must have shape .*, not"):
        executor.load_state_dict({**executor.state_dict(), "state": torch.zeros(3, 6, 1, dtype=F64)})


def test_registered_ops_pass_opcheck() -> None:
    pattern = etp.fixed_degree(4, 3, 2, seed=0)
    f32 = torch.float32
    segments, row = torch.tensor([0, 2, 4, 6]), pattern.row.int()
    trace, x = torch.randn(6, 2, 5), torch.randn(4, 5)
    df, decay, g = torch.randn(3, 2, 5), torch.randn(3, 2, 2, 5), torch.randn(3, 2, 5)
    arguments = (
        trace,
        segments,
        row,
        pattern.col.int(),
        None,
        [x, x],
        [df, df],
        [decay, decay],
        [g, None],
        torch.zeros(6),
        [],
        0.0,
    )
    shared = (torch.randn(6, 1, 5), *arguments[1:5], [], *arguments[6:10], [x, x, x], 0.9)
    flags, numbers = [2, 0, 0, 1, 0], [0.9, 0.99, 0.9, 1.0, 0.1, 0.3, 1.0, 1.0, 1.0, 0.0, 1.0]
    cell = (torch.randn(3, 5), torch.randn(3, 2, 5), None, flags, numbers)

    torch.library.opcheck(ops.etp_trace_, arguments)
    torch.library.opcheck(ops.etp_trace_, shared)
    torch.library.opcheck(ops.etp_spike, (torch.randn(3, 5, requires_grad=True),))
    torch.library.opcheck(ops.etp_cell_step, cell)
    torch.library.opcheck(ops.etp_cell_factor_, (*cell, torch.randn(3, 2, 5, dtype=f32), 0.5))

    def refused(place: int, value: object, sentence: str, given: tuple[object, ...] = arguments) -> None:
        wrong = list(given)
        wrong[place] = value
        with pytest.raises(RuntimeError, match=sentence):
            ops.etp_trace_(*wrong)

    refused(0, trace[0], r"trace must be a contiguous \(entries, S, B\), not shape \(2, 5\)")
    refused(5, [x, x[:, :4]], r"x must have shape \(I, 5\), not \(4, 4\)")
    refused(6, [df, df.double()], "df has dtype float64, but the trace has dtype float32")
    refused(7, [decay[:2], decay], r"decay must have shape \(3, 2, 2, 5\), not \(2, 2, 2, 5\)")
    refused(8, [g.transpose(0, 1).contiguous().transpose(0, 1), None], "g must be contiguous, batch last")
    refused(7, [decay], "x, df, decay and g must agree in the number of steps, not have 2, 2, 1 and 2")
    refused(9, torch.zeros(6, dtype=F64), "grad must be a contiguous float32 tensor")
    refused(10, [x, x, x], "shared stands for x, with one entry more than df, not 3 beside 2 of x and 2 of df")
    refused(10, [x, x], "shared stands for x, with one entry more than df, not 2 beside 0 of x and 2 of df", shared)
    refused(10, [x, x, x[:3]], r"shared must have shape \(4, 5\), not \(3, 5\)", shared)
    refused(10, [x, x, x.double()], "shared has dtype float64, but the trace has dtype float32", shared)
    refused(2, None, "x or shared comes with row and g with grad", shared)
    refused(0, torch.randn(6, 2, 5), r"df must have shape \(3, 3, 5\), not \(3, 2, 5\)", shared)


@pytest.mark.parametrize("algorithm", ["d-rtrl", "pp-prop"])
def test_a_weight_that_was_replaced_is_noticed(algorithm: str) -> None:
    network = Network.random("cpu", recurrent=True)
    xs, _ = sequence("cpu", 2)
    for place, value, sentence in [
        (0, torch.zeros(4, dtype=F64), r"(weight|grad) must have shape \(21,\), not \(4,\)"),
        (2, torch.zeros(28), r"has dtype float32|grad must be a contiguous float64 tensor"),
    ]:
        executor = network.executor(etp.leaky(), algorithm=algorithm)
        loss = executor.step(xs[0]).sum()

        executor.parameters()[place].data = value

        with pytest.raises(RuntimeError, match=sentence):
            executor.backward(loss)
        with pytest.raises(RuntimeError, match=sentence):
            executor.step(xs[1])


def test_a_leaf_is_needed() -> None:
    network = Network.random("cpu")
    with pytest.raises(RuntimeError, match=r"input\.weight must be a leaf"):
        etp.Executor(etp.leaky(), etp.Connection(network.pattern, network.weight.requires_grad_() * 2))
