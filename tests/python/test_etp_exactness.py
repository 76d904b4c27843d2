"""Whether "exact" is true: recurrences by position, parameters of a cell, cells that are random."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from etp_support import ALIFS, CELLS, relative_error, run, sequence
from lacewing import etp

F64 = torch.float64
NEURONS = 7
PLACES = torch.arange(NEURONS)

Recurrence = Callable[[Tensor], etp.Connection]
Values = dict[str, Tensor]


def _twice(v: Tensor) -> etp.Connection:
    """Every place twice, backwards: the weights of a place add up."""
    places = torch.cat([PLACES.flip(0), PLACES]).to(v.device)
    return etp.Connection(
        etp.SparsePattern.coo(places, places, (NEURONS, NEURONS)), torch.cat([v.flip(0), 0.3 * v]), 0.1 * v
    )


def _of_the_user(v: Tensor) -> etp.Connection:
    def yw_to_w(g: Tensor, trace: Values) -> Values:
        return {"weight": g * trace["weight"]}

    by_position = etp.register_primitive("by_position", lambda x, w: x.sin() * w, True, yw_to_w=yw_to_w)
    return etp.Connection.of(by_position, {"weight": v}, outputs=NEURONS)


BY_POSITION: dict[str, Recurrence] = {
    "elementwise": lambda v: etp.Connection.elementwise(v),
    "sparse": lambda v: etp.Connection(
        etp.SparsePattern.coo(PLACES.to(v.device), PLACES.to(v.device), (NEURONS, NEURONS)), v
    ),
    "sparse, twice": _twice,
    "of the user": _of_the_user,
}


def _network(device: str, recurrence: Recurrence, cell: etp.Cell, **options: object) -> etp.Executor:
    generator = torch.Generator().manual_seed(5)
    pattern = etp.fixed_degree(5, NEURONS, 3, seed=1).to(device)
    weight, v = (torch.randn(n, generator=generator, dtype=F64).to(device) for n in (pattern.nse, NEURONS))
    return etp.Executor(cell, etp.Connection(pattern, weight), recurrence(v), **options)


def _through_time(executor: etp.Executor, xs: Tensor, loss: Callable[[int, Tensor], Tensor]) -> list[Tensor]:
    """One window over the whole sequence, by torch's autograd alone: the traces are zero before it."""
    return run(executor, xs, loss, len(xs))


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("cell", CELLS.values(), ids=CELLS.keys())
@pytest.mark.parametrize("recurrence", BY_POSITION.values(), ids=BY_POSITION.keys())
def test_a_recurrence_by_position_is_exact(
    recurrence: Recurrence, cell: Callable[[], etp.Cell], every: int, device: str
) -> None:
    xs, loss = sequence(device, 15)
    executor = _network(device, recurrence, cell(), absorb_every=every)

    run(executor, xs, loss)
    executor.flush()

    assert executor.analysis == ("exact", "the recurrence is diagonal by position")
    expected = _through_time(_network(device, recurrence, cell()), xs, loss)
    assert relative_error([p.grad for p in executor.parameters()], expected) < 1e-10


def test_a_recurrence_by_position_is_exact_beside_back_propagation_by_hand(device: str) -> None:
    xs, loss = sequence(device, 9)
    executor = _network(device, BY_POSITION["elementwise"], etp.gated())
    w, v = (p.detach().clone().requires_grad_() for p in executor.parameters())
    h, total = torch.zeros(3, NEURONS, 1, dtype=F64, device=device), torch.zeros((), dtype=F64, device=device)
    for t, x in enumerate(xs):
        h = etp.gated().forward(x @ etp.fixed_degree(5, NEURONS, 3, seed=1).to(device).with_data(w) + h[..., 0] * v, h)
        total = total + loss(t, h)

    found = run(executor, xs, loss)

    assert relative_error(found, list(torch.autograd.grad(total, [w, v]))) < 1e-10


@pytest.mark.parametrize("cell", ["two states", *ALIFS])
def test_windows_over_a_recurrence_by_position_are_exact(cell: str, device: str) -> None:
    xs, loss = sequence(device, 12)

    found = run(_network(device, BY_POSITION["elementwise"], CELLS[cell]()), xs, loss, 5)

    expected = _through_time(_network(device, BY_POSITION["elementwise"], CELLS[cell]()), xs, loss)
    assert relative_error(found, expected) < 1e-10


@pytest.mark.parametrize("cell", ["gated", *ALIFS])
@pytest.mark.parametrize("window", [None, 4])
def test_pp_prop_rolls_with_the_recurrence_by_position(window: int | None, cell: str, device: str) -> None:
    xs, loss = sequence(device, 8)
    executor = _network(device, BY_POSITION["elementwise"], CELLS[cell](), algorithm="pp-prop", alpha=0.6)
    weight, v = (p.detach().clone() for p in executor.parameters())
    states = executor.cell.states
    h = torch.zeros(3, NEURONS, states, dtype=F64, device=device)
    ef = torch.zeros_like(h)
    pattern = etp.fixed_degree(5, NEURONS, 3, seed=1).to(device)
    for x in xs:
        y = x @ pattern.with_data(weight) + executor.cell.output(h) * v
        leaf = h.detach().requires_grad_()
        (own,) = torch.autograd.grad((executor.cell.output(leaf) * v).sum(), leaf)
        h, df, decay = executor.cell.linearize(y, h)
        decay = decay + df.unsqueeze(-1) * own.unsqueeze(-2)
        ef = 0.6 * (decay @ ef.unsqueeze(-1)).squeeze(-1) + 0.4 * df

    run(executor, xs, loss, window)

    torch.testing.assert_close(executor.traces()["f"], ef, rtol=1e-12, atol=1e-12)


def test_an_output_that_mixes_positions_is_no_recurrence_by_position(device: str) -> None:
    def step(y: Tensor, h: Tensor) -> Tensor:
        return 0.5 * h + y.unsqueeze(-1)

    mixed = etp.FunctionCell(1, step, lambda h: h[..., 0].softmax(-1))
    apart = etp.FunctionCell(1, step, lambda h: h[..., 0].tanh())

    exactness = [_network(device, BY_POSITION["elementwise"], cell).analysis.exactness for cell in (mixed, apart)]

    assert exactness == ["approximate", "exact"]


def test_a_dense_recurrence_of_zeros_is_none_by_position(device: str) -> None:
    zeros = torch.zeros(NEURONS, NEURONS, dtype=F64, device=device)

    executor = _network(device, lambda v: etp.Connection.dense(zeros.clone()), etp.leaky())

    assert executor.analysis.exactness == "approximate"
    assert "recurrent weights" in executor.analysis.reason


def test_a_parameter_of_the_cell_makes_it_approximate(device: str) -> None:
    rate = torch.full((), 0.7, dtype=F64, device=device, requires_grad=True)
    betas = torch.full((NEURONS,), 0.3, dtype=F64, device=device, requires_grad=True)
    like = torch.zeros(1, dtype=F64, device=device)
    learns = etp.FunctionCell(1, lambda y, h: torch.tanh(rate * h + y.unsqueeze(-1)))

    for cell in (learns, etp.alif(beta=betas)):
        found = etp.analyze(cell, NEURONS, like=like)
        assert found.exactness == "approximate"
        assert "the cell has parameters of its own" in found.reason
    constant = etp.FunctionCell(1, lambda y, h: torch.tanh(rate.detach() * h + y.unsqueeze(-1)))
    assert etp.analyze(constant, NEURONS, like=like).exactness == "exact"
    assert etp.analyze(etp.alif(beta=betas.detach()), NEURONS, like=like).exactness == "exact"


def test_a_parameter_of_the_output_counts_where_it_is_fed_back(device: str) -> None:
    gain = torch.full((), 1.5, dtype=F64, device=device, requires_grad=True)
    cell = etp.FunctionCell(1, lambda y, h: torch.tanh(h + y.unsqueeze(-1)), lambda h: gain * h[..., 0])

    fed_back = _network(device, BY_POSITION["elementwise"], cell)
    alone = etp.Executor(cell, etp.Connection.dense(torch.ones(5, NEURONS, dtype=F64, device=device)))

    assert fed_back.analysis.exactness == "approximate"
    assert "the cell has parameters of its own" in fed_back.analysis.reason
    assert alone.analysis.exactness == "exact"


def test_a_random_cell_goes_on_where_approximation_is_allowed(device: str) -> None:
    def step(y: Tensor, h: Tensor) -> Tensor:
        return torch.tanh(0.9 * h + y.unsqueeze(-1)) + 0.01 * torch.randn_like(h)

    weight = torch.randn(5, NEURONS, dtype=F64, device=device)
    xs, loss = sequence(device, 4)
    with pytest.raises(RuntimeError, match=r"the cell is refused: two steps from the same state differ.*goes on all"):
        etp.Executor(etp.FunctionCell(1, step), etp.Connection.dense(weight))

    executor = etp.Executor(etp.FunctionCell(1, step), etp.Connection.dense(weight), allow_approximate=True)
    (found,) = run(executor, xs, loss)

    assert executor.analysis.exactness == "approximate"
    assert "two steps from the same state differ" in executor.analysis.reason
    assert found.isfinite().all()
