"""Arguments of another kind: each gets one sentence that names the op and the argument."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from lacewing import etp

PATTERN = etp.fixed_degree(5, 7, 3, seed=0)
WEIGHT = torch.randn(PATTERN.nse)
coo = etp.SparsePattern.coo


def _connection() -> etp.Connection:
    return etp.Connection(PATTERN, WEIGHT.clone())


def _learner(**changes: Any) -> etp.Learner:
    given = {"cell": etp.leaky(), "algorithm": "d-rtrl", "optimizer": torch.optim.SGD, "input": _connection()}
    return etp.Learner(**{**given, **changes})


class Derived(etp.Cell):
    """What looks like the way to make a cell."""

    def forward(self, y: Tensor, h: Tensor) -> Tensor:
        return h + y.unsqueeze(-1)


BAD: dict[str, tuple[Callable[[], object], str]] = {
    "cell and input exchanged": (
        lambda: etp.Executor(_connection(), etp.leaky()),
        r"Executor\] cell must be a cell .*, not Connection",
    ),
    "a weight as input": (
        lambda: etp.Executor(etp.leaky(), WEIGHT),
        r"Executor\] input must be a Connection, not Tensor",
    ),
    "algorithm by position": (
        lambda: etp.Executor(etp.leaky(), _connection(), "d-rtrl"),
        r"Executor\] recurrent must be a Connection, not str",
    ),
    "absorb_every": (
        lambda: etp.Executor(etp.leaky(), _connection(), absorb_every=2.5),
        r"Executor\] absorb_every must be an integer, not 2.5",
    ),
    "alpha": (
        lambda: etp.Executor(etp.leaky(), _connection(), algorithm="pp-prop", alpha="0.9"),
        r"Executor\] alpha must be a number, not str",
    ),
    "integer weights": (
        lambda: etp.Executor(etp.leaky(), etp.Connection.of(etp.etp_mm_p, {"weight": torch.ones(5, 7).long()}, 7)),
        r"Executor\] input.weight must be floating, not int64",
    ),
    "a word as frozen": (
        lambda: etp.Connection(PATTERN, WEIGHT.clone(), frozen="weight"),
        r"Connection\] frozen must be a bool or a list of names, not 'weight'",
    ),
    "a list as x": (
        lambda: etp.Executor(etp.leaky(), _connection()).step([1.0]),
        r"step\] x must be a tensor, not list",
    ),
    "a number as loss": (
        lambda: etp.Executor(etp.leaky(), _connection()).backward(3.0),
        r"backward\] loss must be a tensor, not float",
    ),
    "learner, cell and algorithm exchanged": (
        lambda: _learner(cell="d-rtrl", algorithm=etp.leaky()),
        r"Executor\] cell must be a cell .*, not str",
    ),
    "learner, optimizer and algorithm exchanged": (
        lambda: _learner(algorithm=torch.optim.SGD, optimizer="d-rtrl"),
        r"Learner\] optimizer must be a function from parameters to an optimizer, .*, not a str",
    ),
    "learner, algorithm": (
        lambda: _learner(algorithm=torch.optim.SGD),
        r'Executor\] algorithm must be "d-rtrl" or "pp-prop", not a type',
    ),
    "an optimizer instead of its factory": (
        lambda: _learner(optimizer=torch.optim.SGD([WEIGHT], 1.0)),
        r"Learner\] optimizer must be a function from parameters to an optimizer, .*, not a SGD",
    ),
    "a factory of nothing": (
        lambda: _learner(optimizer=lambda p: None),
        r"Learner\] optimizer must give something with step\(\) and zero_grad\(\), not a NoneType",
    ),
    "a readout that is none": (lambda: _learner(readout=3), r"Learner\] readout must be a function, not int"),
    "a list to sparse_matmul": (
        lambda: etp.sparse_matmul([1.0] * 5, WEIGHT, PATTERN),
        r"sparse_matmul\] x must be a tensor, not list",
    ),
    "a list of weights": (
        lambda: etp.sparse_matmul(torch.ones(5), [1.0] * 21, PATTERN),
        r"sparse_matmul\] w_data must be a tensor, not list",
    ),
    "a list of biases": (
        lambda: etp.dense_matmul(torch.ones(5), torch.ones(5, 7), [1.0]),
        r"etp_mv\] bias must be a tensor, not list",
    ),
    "a function as surrogate": (
        lambda: etp.lif(surrogate=torch.sigmoid),
        r"lif\] surrogate must be a string, not builtin_function_or_method",
    ),
    "a function as surrogate of spike": (
        lambda: etp.spike(torch.ones(2), torch.sigmoid),
        r"spike\] surrogate must be a string",
    ),
    "a list of spikes": (lambda: etp.spike([1.0]), r"spike\] x must be a tensor, not list"),
    "a word as reset_gradient": (
        lambda: etp.lif(reset_gradient="no"),
        r"lif\] reset_gradient must be a bool, not str",
    ),
    "three sizes": (
        lambda: coo([0], [0], (1, 2, 3)),
        r"SparsePattern\] shape must be \(inputs, outputs\), not \(1, 2, 3\)",
    ),
    "one size": (lambda: coo([0], [0], 5), r"SparsePattern\] shape must be \(inputs, outputs\), not 5"),
    "half a size": (lambda: coo([0], [0], (1.5, 2)), r"SparsePattern\] shape\[0\] must be an integer, not 1.5"),
    "a word as tau": (lambda: etp.lif("x"), r"lif\] tau must be a number, not str"),
    "nothing as tau": (lambda: etp.leaky(None), r"leaky\] tau must be a number, not NoneType"),
    "a subclass of Cell": (
        lambda: etp.Executor(Derived(), _connection()),
        r"Cell\] Derived derives from Cell, which has no step of its own: FunctionCell",
    ),
    "a subclass of Cell to analyze": (
        lambda: etp.analyze(Derived(), 3, like=WEIGHT),
        r"Cell\] Derived derives from Cell, which has no step of its own",
    ),
    "the states of a subclass": (lambda: Derived().states, r"Cell\] Derived derives from Cell"),
    "a number as step": (lambda: etp.FunctionCell(1, 3), r"FunctionCell\] step must be a function, not int"),
    "a word as states": (
        lambda: etp.FunctionCell("1", lambda y, h: h),
        r"FunctionCell\] states must be an integer, not '1'",
    ),
    "a number as rule": (
        lambda: etp.register_primitive("p", lambda x, w: x @ w, True, yw_to_w=3),
        r"p\] yw_to_w must be a function, not int",
    ),
    "rules of no primitive": (
        lambda: etp.register_etp_rules(3, yw_to_w=lambda g, t: t),
        r"register_etp_rules\] primitive must be a Primitive, not int",
    ),
    "a trace that is no dict": (
        lambda: etp.etp_mm_p.yw_to_w(WEIGHT, WEIGHT),
        r"etp_mm\] trace must be a dict of tensors, not Tensor",
    ),
    "a word as seed": (
        lambda: etp.fixed_degree(3, 2, 1, seed="x"),
        r"fixed_degree\] seed must be an integer, not 'x'",
    ),
    "no state": (
        lambda: etp.Executor(etp.leaky(), _connection()).load_state_dict(None),
        r"load\] state_dict must be a dict of tensors, not NoneType",
    ),
    "a pattern's state without col": (
        lambda: PATTERN.__setstate__({"row": PATTERN.row, "shape": (5, 7)}),
        r"SparsePattern\] col is missing in the state",
    ),
    "a cell's state without betas": (
        lambda: etp.leaky().__setstate__({"kind": "leaky"}),
        r"Cell\] betas is missing in the state",
    ),
}


@pytest.mark.parametrize(("call", "sentence"), BAD.values(), ids=BAD.keys())
def test_arguments_of_another_kind_get_a_sentence(call: Callable[[], object], sentence: str) -> None:
    with pytest.raises((TypeError, ValueError, RuntimeError), match=rf"^\[lacewing\.etp\.{sentence}"):
        call()


def test_a_state_that_lacks_an_entry_is_refused() -> None:
    executor = etp.Executor(etp.alif(), _connection())
    executor.step(torch.ones(2, 5))
    saved = executor.state_dict()
    expected = {
        "state": "state is missing, though there were 1 steps",
        "batched": "batched is missing",
        "steps": "steps is missing",
        "trace.input.weight": r"input\.weight is missing",
    }

    for name, sentence in expected.items():
        with pytest.raises(RuntimeError, match=rf"\[lacewing\.etp\.load\] {sentence}"):
            executor.load_state_dict({key: value for key, value in saved.items() if key != name})
    with pytest.raises(RuntimeError, match=r"state must have shape \(2, 7, 2\), not \(2, 7\)"):
        executor.load_state_dict({**saved, "state": torch.ones(2, 7)})
    with pytest.raises(TypeError, match=r"state_dict\['state'\] must be a tensor, not int"):
        executor.load_state_dict({**saved, "state": 3})
    executor.load_state_dict(saved)
    assert executor.steps == 1


def test_quantities_are_refused_where_units_would_be_lost() -> None:
    pint = pytest.importorskip("pint")
    units = pint.UnitRegistry()
    x, g, trace = torch.ones(2, 5), torch.ones(2, 7), {"weight": torch.ones(2, 21)}
    voltage, conductance = units.Quantity(g, "mV"), units.Quantity(WEIGHT, "nS")
    rules = etp.etp_sp_mm_p
    calls: list[Callable[[], object]] = [
        lambda: etp.Connection(PATTERN, conductance),
        lambda: etp.Connection.dense(conductance),
        lambda: etp.Connection.of(rules, {"weight": conductance}, 7, sparse_mat=PATTERN),
        lambda: rules.yw_to_w(voltage, trace, sparse_mat=PATTERN),
        lambda: rules.yw_to_w(g, {"weight": conductance}, sparse_mat=PATTERN),
        lambda: rules.xy_to_dw(x, voltage, {"weight": WEIGHT}, sparse_mat=PATTERN),
        lambda: rules.init_drtrl(x, g, {"weight": conductance}, 2),
        lambda: rules.init_pp(x, voltage, {"weight": WEIGHT}, 2),
        lambda: rules.bind(units.Quantity(x, "mV"), WEIGHT, sparse_mat=PATTERN),
        lambda: etp.dense_matmul(units.Quantity(x, "mV"), torch.ones(5, 7)),
        lambda: etp.elementwise(x, units.Quantity(torch.ones(5), "nS")),
        lambda: PATTERN.with_data(conductance),
        lambda: PATTERN.yw_to_w_transposed(voltage, WEIGHT),
        lambda: PATTERN.sampled_outer(x, voltage),
        lambda: etp.Executor(etp.leaky(), _connection()).step(units.Quantity(x, "mV")),
    ]

    for call in calls:
        with pytest.raises(
            TypeError, match=r"\[lacewing\.etp\..*\] .* is a quantity, but only sparse_matmul knows units"
        ):
            call()


BUILDERS = {
    "small_world": lambda n: etp.small_world(n, 4, 0.1, seed=0),
    "fixed_degree": lambda n: etp.fixed_degree(n, n, 1, seed=0),
    "fixed_degree, fan_out": lambda n: etp.fixed_degree(3, n, 1, seed=0, fan_out=True),
}


@pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS.keys())
@pytest.mark.parametrize("size", [2**31, 2**40])
def test_sizes_beyond_the_limit_are_refused_before_anything_is_drawn(build: Callable[[int], object], size: int) -> None:
    with pytest.raises(RuntimeError, match=rf"\[lacewing\.etp\..*\] sizes \(.*{size}\) exceed 2\^31 - 1"):
        build(size)
