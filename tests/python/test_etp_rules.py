"""Rules that users register: called as they are registered, and held against torch's derivatives beforehand."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from etp_support import CELLS, Network, relative_error, run, sequence
from lacewing import etp

F64 = torch.float64
ALGORITHMS = pytest.mark.parametrize("algorithm", ["d-rtrl", "pp-prop"])
Values = dict[str, Tensor]


def _yw_to_w(g: Tensor, trace: Values) -> Values:
    return {"weight": g.unsqueeze(-2) * trace["weight"]}


def _xy_to_dw(x: Tensor, g: Tensor, weights: Values) -> Values:
    return {"weight": x.t() @ g if x.dim() == 2 else torch.outer(x, g)}


def _matrix(batched: bool = True, **rules: Any) -> etp.Primitive:
    return etp.register_primitive("matrix", lambda x, w: x @ w, batched, **{"yw_to_w": _yw_to_w, **rules})


def _executor(primitive: etp.Primitive, algorithm: str, dtype: torch.dtype = F64, **options: Any) -> etp.Executor:
    weight = torch.randn(5, 7, dtype=dtype, generator=torch.Generator().manual_seed(0))
    connection = etp.Connection.of(primitive, {"weight": weight}, outputs=7)
    return etp.Executor(CELLS["alif"](), connection, algorithm=algorithm, **options)


BOTH = ("d-rtrl", "pp-prop")
WRONG: dict[str, tuple[tuple[str, ...], dict[str, Any], str]] = {
    "xy_to_dw, value": (
        BOTH,
        {"xy_to_dw": lambda x, g, w: {"weight": 2 * x.t() @ g}},
        "xy_to_dw is not the vector-Jacobian product of forward: weight differs by up to",
    ),
    "xy_to_dw, shape": (
        BOTH,
        {"xy_to_dw": lambda x, g, w: {"weight": (x.t() @ g)[:2]}},
        r"xy_to_dw must give weight of shape \(5, 7\), float64 on cpu, not \(2, 7\), float64 on cpu",
    ),
    "xy_to_dw, dtype": (
        BOTH,
        {"xy_to_dw": lambda x, g, w: {"weight": (x.t() @ g).float()}},
        r"xy_to_dw must give weight of shape \(5, 7\), float64 on cpu, not \(5, 7\), float32 on cpu",
    ),
    "xy_to_dw, a value too many": (
        BOTH,
        {"xy_to_dw": lambda x, g, w: {"weight": x.t() @ g, "bias": g.sum(0)}},
        "xy_to_dw must give weight alone, not also bias",
    ),
    "init_drtrl, value": (
        ("d-rtrl",),
        {"init_drtrl": lambda x, y, w, s: {"weight": torch.ones(len(x), 5, 7, s, dtype=F64)}},
        "init_drtrl must give zeros, .* but weight has entries of up to 1",
    ),
    "init_drtrl, shape": (
        ("d-rtrl",),
        {"init_drtrl": lambda x, y, w, s: {"weight": torch.zeros(5, 7, s, dtype=F64)}},
        r"init_drtrl must give weight of shape \(3, 5, 7, 3\)",
    ),
    "init_drtrl, dtype": (
        ("d-rtrl",),
        {"init_drtrl": lambda x, y, w, s: {"weight": torch.zeros(len(x), 5, 7, s)}},
        r"init_drtrl must give weight .*, float64 on cpu, not .*, float32 on cpu",
    ),
    "init_pp, value": (
        ("pp-prop",),
        {"init_pp": lambda x, y, w, s: torch.ones(*y.shape, s, dtype=F64)},
        "init_pp must give zeros, .* but the factor has entries of up to 1",
    ),
    "init_pp, shape": (
        ("pp-prop",),
        {"init_pp": lambda x, y, w, s: torch.zeros(*y.shape, dtype=F64)},
        r"init_pp must give shape \(3, 7, 3\), float64 on cpu, not \(3, 7\)",
    ),
    "yw_to_w, shape": (
        ("d-rtrl",),
        {"yw_to_w": lambda g, t: {"weight": (g.unsqueeze(-2) * t["weight"]).sum(0)}},
        r"yw_to_w must give weight of shape \(3, 5, 7\)",
    ),
    "yw_to_w, dtype": (
        ("d-rtrl",),
        {"yw_to_w": lambda g, t: {"weight": (g.unsqueeze(-2) * t["weight"]).float()}},
        "yw_to_w must give weight .* float64 on cpu, not .* float32 on cpu",
    ),
    "yw_to_w, value": (
        ("d-rtrl",),
        {"yw_to_w": lambda g, t: {"weight": 2 * g.unsqueeze(-2) * t["weight"]}},
        r"or yw_to_w is not g\[col p\] \* trace\[p\]",
    ),
}


@pytest.mark.parametrize(
    ("algorithm", "rules", "sentence"),
    [(algorithm, *rest) for algorithms, *rest in WRONG.values() for algorithm in algorithms],
    ids=[f"{name}-{algorithm}" for name, (algorithms, *_) in WRONG.items() for algorithm in algorithms],
)
def test_a_wrong_rule_is_told_before_the_first_step(algorithm: str, rules: dict[str, Any], sentence: str) -> None:
    xs, _ = sequence("cpu", 2)
    for call in (lambda e: e.step(xs[0]), lambda e: e.window(xs)):
        executor = _executor(_matrix(**rules), algorithm)

        with pytest.raises((RuntimeError, TypeError), match=rf"\[lacewing\..*\] .*{sentence}"):
            call(executor)

        assert executor.steps == 0
        assert executor.state is None


@ALGORITHMS
def test_a_wrong_rule_hides_behind_no_value_of_zero(algorithm: str) -> None:
    def impl(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return x @ w + b * w.sum(0)

    def xy_to_dw(x: Tensor, g: Tensor, weights: Values) -> Values:
        through_bias = (g.sum(0) * weights["bias"]).expand(5, 7)
        return {"weight": x.t() @ g + through_bias, "bias": 2 * g.sum(0) * weights["weight"].sum(0)}

    scaled = etp.register_primitive(
        "scaled",
        impl,
        True,
        trainable=lambda _: {"weight": 1, "bias": 2},
        xy_to_dw=xy_to_dw,
        yw_to_w=lambda g, t: {"weight": g.unsqueeze(-2) * t["weight"], "bias": g * t["bias"]},
    )
    values = {"weight": torch.zeros(5, 7, dtype=F64), "bias": torch.zeros(7, dtype=F64)}
    executor = etp.Executor(etp.leaky(), etp.Connection.of(scaled, values, outputs=7), algorithm=algorithm)

    with pytest.raises(RuntimeError, match="xy_to_dw is not the vector-Jacobian product of forward: bias differs"):
        executor.step(torch.randn(3, 5, dtype=F64))


def test_samples_that_depend_on_each_other_are_refused() -> None:
    centred = etp.register_primitive("centred", lambda x, w: (x - x.mean(0)) @ w, True, yw_to_w=_yw_to_w)

    with pytest.raises(RuntimeError, match="xy_to_dw of one sample after the other does not add up to that of the"):
        _executor(centred, "d-rtrl").step(torch.randn(3, 5, dtype=F64))


@ALGORITHMS
def test_a_primitive_that_autograd_does_not_see_is_refused(algorithm: str) -> None:
    hidden = etp.register_primitive("hidden", lambda x, w: (x @ w).detach(), True, xy_to_dw=_xy_to_dw, yw_to_w=_yw_to_w)

    with pytest.raises(RuntimeError, match=r"\[lacewing\.etp\.hidden\] forward does not depend on its values"):
        _executor(hidden, algorithm).step(torch.randn(3, 5, dtype=F64))


@ALGORITHMS
def test_a_leaf_that_a_primitive_hides_is_refused(algorithm: str) -> None:
    low = torch.eye(5, dtype=F64, requires_grad=True)
    behind = etp.register_primitive("behind", lambda x, w: x @ low @ w, True, yw_to_w=_yw_to_w)

    with pytest.raises(RuntimeError, match="forward uses a tensor that requires grad and is none of its values"):
        _executor(behind, algorithm).step(torch.randn(3, 5, dtype=F64))


@ALGORITHMS
@pytest.mark.parametrize("mapped", [True, False], ids=["mapped", "one by one"])
@pytest.mark.parametrize("batched", [True, False], ids=["batched", "unbatched"])
def test_rules_get_the_form_that_they_are_registered_for(batched: bool, mapped: bool, algorithm: str) -> None:
    xs, loss = sequence("cpu", 3)
    dims: dict[str, set[int]] = {}

    def seen(rule: str, x: Tensor) -> None:
        if not mapped:
            float(x.sum())  # what torch.vmap cannot do
        dims.setdefault(rule, set()).add(x.dim())

    def impl(x: Tensor, w: Tensor) -> Tensor:
        seen("impl", x)
        return x @ w

    def xy_to_dw(x: Tensor, g: Tensor, weights: Values) -> Values:
        seen("xy_to_dw", x)
        return _xy_to_dw(x, g, weights)

    def yw_to_w(g: Tensor, trace: Values) -> Values:
        seen("yw_to_w", g)
        return _yw_to_w(g, trace)

    def init_drtrl(x: Tensor, y: Tensor, weights: Values, states: int) -> Values:
        seen("init_drtrl", x)
        return {"weight": torch.zeros(*x.shape[:-1], 5, 7, states, dtype=F64)}

    def init_pp(x: Tensor, y: Tensor, weights: Values, states: int) -> Tensor:
        seen("init_pp", y)
        return torch.zeros(*y.shape, states, dtype=F64)

    primitive = etp.register_primitive(
        "form", impl, batched, xy_to_dw=xy_to_dw, yw_to_w=yw_to_w, init_drtrl=init_drtrl, init_pp=init_pp
    )

    executor = _executor(primitive, algorithm)
    found = run(executor, xs, loss)
    windows = run(_executor(primitive, algorithm), xs, loss, 2)

    dense = etp.Connection.dense(executor.parameters()[0].detach().clone())
    expected = run(etp.Executor(CELLS["alif"](), dense, algorithm=algorithm), xs, loss)
    assert relative_error(found, expected) < 1e-12
    assert windows[0].shape == (5, 7)
    used = {"impl", "xy_to_dw"} | ({"yw_to_w", "init_drtrl"} if algorithm == "d-rtrl" else {"init_pp"})
    assert dims == {rule: {2 if batched else 1} for rule in used}


@ALGORITHMS
def test_a_random_primitive_is_refused_unless_approximation_is_allowed(algorithm: str) -> None:
    xs, loss = sequence("cpu", 2)
    noisy = etp.register_primitive("noisy", lambda x, w: torch.dropout(x, 0.5, True) @ w, True, yw_to_w=_yw_to_w)

    with pytest.raises(RuntimeError, match=r"refused: forward of noisy is random .*; allow_approximate goes on"):
        _executor(noisy, algorithm).step(xs[0])
    allowed = _executor(noisy, algorithm, allow_approximate=True)
    run(allowed, xs, loss)

    assert allowed.analysis.exactness == "approximate"
    assert "forward of noisy is random" in allowed.analysis.reason


@ALGORITHMS
def test_an_executor_keeps_the_rules_that_it_was_made_with(algorithm: str) -> None:
    xs, loss = sequence("cpu", 3)
    primitive = _matrix(xy_to_dw=_xy_to_dw)
    expected = run(_executor(primitive, algorithm), xs, loss)
    executor = _executor(primitive, algorithm)
    executor.backward(loss(0, executor.step(xs[0])))

    etp.register_etp_rules(primitive, xy_to_dw=lambda x, g, w: {"weight": 2 * x.t() @ g}, yw_to_w=lambda g, t: dict(t))
    found = run(executor, xs[1:], lambda t, h: loss(t + 1, h))

    assert torch.equal(found[0], expected[0])


def test_a_batched_rule_is_called_once_for_a_batch() -> None:
    calls = [0]

    def xy_to_dw(x: Tensor, g: Tensor, weights: Values) -> Values:
        calls[0] += 1
        return _xy_to_dw(x, g, weights)

    executor = _executor(_matrix(xy_to_dw=xy_to_dw), "d-rtrl")
    xs, loss = sequence("cpu", 3, 64)
    run(executor, xs[:2], loss)
    calls[0] = 0

    executor.backward(loss(2, executor.step(xs[2])))

    assert calls[0] == executor.cell.states  # one for the derivative of each state


@ALGORITHMS
@pytest.mark.parametrize("batched", [True, False], ids=["batched", "unbatched"])
def test_rules_take_an_empty_batch(batched: bool, algorithm: str) -> None:
    executor = _executor(_matrix(batched), algorithm)

    executor.backward(executor.step(torch.zeros(0, 5, dtype=F64)).sum())

    assert executor.parameters()[0].grad.abs().max() == 0


@pytest.fixture
def restored_rules() -> Iterator[None]:
    """Those of the primitives that ship, afterwards as before."""
    primitives = (etp.etp_sp_mm_p, etp.etp_mm_p, etp.etp_elementwise_p)
    before = [dict(primitive._rules) for primitive in primitives]
    yield
    for primitive, rules in zip(primitives, before, strict=True):
        primitive._rules = rules


@pytest.mark.usefixtures("restored_rules")
@pytest.mark.parametrize("kind", ["sparse", "dense", "elementwise"])
def test_rules_registered_over_those_that_ship_are_called(kind: str) -> None:
    network = Network.random("cpu")
    xs, loss = sequence("cpu", 3, inputs=7 if kind == "elementwise" else 5)
    make: dict[str, tuple[etp.Primitive, Callable[[], etp.Connection]]] = {
        "sparse": (
            etp.etp_sp_mm_p,
            lambda: etp.Connection(network.pattern, network.weight.clone(), network.bias.clone()),
        ),
        "dense": (
            etp.etp_mm_p,
            lambda: etp.Connection.dense(network.pattern.with_data(network.weight).to_dense().clone()),
        ),
        "elementwise": (etp.etp_elementwise_p, lambda: etp.Connection.elementwise(network.bias.clone())),
    }
    primitive, connection = make[kind]
    expected = run(etp.Executor(etp.alif(), connection()), xs, loss)
    shipped, calls = primitive._rules["yw_to_w"], [0]

    def counted(*args: Any, **params: Any) -> Values:
        calls[0] += 1
        return shipped(*args, **params)

    etp.register_etp_rules(primitive, yw_to_w=counted)
    found = run(etp.Executor(etp.alif(), connection()), xs, loss)
    etp.register_etp_rules(
        primitive, yw_to_w=lambda *args, **params: {k: -v for k, v in shipped(*args, **params).items()}
    )

    assert calls[0] > 0
    assert relative_error(found, expected) < 1e-12
    with pytest.raises(RuntimeError, match=r"or yw_to_w is not g\[col p\] \* trace\[p\]"):
        etp.Executor(etp.alif(), connection()).step(xs[0])


def test_primitives_that_ship_are_pickled_by_name() -> None:
    for name in ("etp_sp_mm_p", "etp_sp_mv_p", "etp_mm_p", "etp_mv_p", "etp_elementwise_p"):
        primitive = getattr(etp, name)

        assert pickle.loads(pickle.dumps(primitive)) is primitive
        assert copy.deepcopy(primitive) is primitive
