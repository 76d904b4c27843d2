"""Bad parts of a network: primitives of the user's, rules, matrix files, units."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from etp_support import relative_error, run, sequence
from lacewing import etp

F64 = torch.float64
ALGORITHMS = pytest.mark.parametrize("algorithm", ["d-rtrl", "pp-prop"])


def test_bad_parts_get_a_sentence() -> None:
    pattern, like = etp.fixed_degree(5, 7, 3, seed=0), torch.zeros(1)
    dense, square = torch.randn(5, 7), torch.randn(7, 7)
    executor = etp.Executor(etp.leaky(), etp.Connection.dense(dense.clone()))
    cases: list[tuple[Callable[[], object], type[Exception], str]] = [
        (lambda: etp.etp_sp_mm_p.bind(torch.ones(2), like), TypeError, "sparse_mat must be a SparsePattern"),
        (lambda: etp.Connection(None, like), TypeError, "must be a SparsePattern or SparseMatrix, not NoneType"),
        (lambda: torch.classes.lacewing.EtpPrimitive("sparse", None, False), RuntimeError, "needs a pattern"),
        (
            lambda: etp.analyze(etp.FunctionCell(1, lambda y, h: None), 3, like=like),
            TypeError,
            "step must give a tensor",
        ),
        (lambda: etp.analyze(etp.leaky(), -1, like=like), RuntimeError, "neurons must not be negative, not -1"),
        (lambda: etp.analyze(etp.leaky(), 3, like=like.long()), RuntimeError, "states are floating, not int64"),
        (lambda: etp.gated(float("nan")), RuntimeError, "gate_input must be finite, not nan"),
        (lambda: etp.alif(beta=torch.tensor([float("nan")])), RuntimeError, "betas must be finite"),
        (lambda: etp.alif(beta=torch.ones(2).cfloat()), RuntimeError, "betas must be real numbers, not complex64"),
        (
            lambda: etp.Executor(etp.leaky(), etp.Connection.dense(dense), etp.Connection.dense(dense)),
            RuntimeError,
            "the recurrent connection has 5 inputs, but there are 7 neurons",
        ),
        (lambda: executor.step(torch.ones(2, 4)), RuntimeError, r"x of shape \(2, 4\) must end with the 5 inputs"),
        (lambda: executor.step(torch.ones(2, 5).to_sparse()), RuntimeError, "x must be a dense tensor"),
        (lambda: executor.step(None), RuntimeError, "x must be a dense tensor"),
        (lambda: etp.dense_matmul(torch.ones(2, 4), square), RuntimeError, "must end with the 7 inputs of the weight"),
        (
            lambda: etp.etp_mm_p.yw_to_w(torch.ones(2, 7, 2), {"weight": torch.ones(2, 5, 7, 3)}),
            RuntimeError,
            r"g of shape \(2, 7, 2\) and a trace of shape \(2, 5, 7, 3\) do not fit",
        ),
        (
            lambda: etp.etp_elementwise_p.yw_to_w(torch.ones(2, 7), {"weight": torch.ones(2, 7, dtype=F64)}),
            RuntimeError,
            "g has dtype float32, but the trace has dtype float64",
        ),
    ]
    assert pattern.nse == 21
    for call, kind, sentence in cases:
        with pytest.raises(kind, match=rf"\[lacewing\..*\] .*{sentence}"):
            call()


def test_a_primitive_whose_values_are_shared_is_refused(device: str) -> None:
    low = torch.randn(2, 3, dtype=F64, device=device)
    x = torch.randn(4, 5, dtype=F64, device=device)
    shared = etp.register_primitive(
        "adapter",
        lambda x, w: x @ w @ low,
        True,
        yw_to_w=lambda g, t: {"weight": g.sum(-1)[:, None, None] * t["weight"]},
    )
    wrong = etp.register_primitive("flat", lambda x, w: x @ w, True, yw_to_w=lambda g, t: dict(t))

    for primitive, shape in [(shared, (5, 2)), (wrong, (5, 3))]:

        def connection(primitive: etp.Primitive = primitive, shape: tuple[int, int] = shape) -> etp.Connection:
            return etp.Connection.of(primitive, {"weight": torch.randn(shape, dtype=F64, device=device)}, outputs=3)

        with pytest.raises(RuntimeError, match=r"the input connection is refused: by the rules of .* several outputs"):
            etp.Executor(etp.leaky(), connection()).step(x)
        allowed = etp.Executor(etp.leaky(), connection(), allow_approximate=True)
        allowed.backward(allowed.step(x).sum())
        assert allowed.analysis.exactness == "approximate"
        etp.Executor(etp.leaky(), connection(), algorithm="pp-prop").step(x)


@ALGORITHMS
def test_values_may_have_other_names(algorithm: str, device: str) -> None:
    def yw_to_w(g: Tensor, trace: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: g * each for name, each in trace.items()}

    affine = etp.register_primitive(
        "affine", lambda x, s, o: x * s + o, True, trainable=lambda _: {"scale": 1, "offset": 2}, yw_to_w=yw_to_w
    )
    xs, loss = sequence(device, 4 if algorithm == "d-rtrl" else 1, neurons=5)
    scale, offset = torch.randn(2, 5, dtype=F64, device=device).unbind()
    named = etp.Connection.of(affine, {"scale": scale.clone(), "offset": offset.clone()}, outputs=5)
    shipped = etp.Connection.elementwise(scale.clone(), offset.clone())

    found, expected = (run(etp.Executor(etp.gated(), each, algorithm=algorithm), xs, loss) for each in (named, shipped))

    assert relative_error(found, expected) < 1e-12


RULES = {
    "no dict": (lambda x, w: x @ w, lambda g, t: None, r"yw_to_w must give a dict with a tensor .* not None"),
    "no value": (lambda x, w: x @ w, lambda g, t: {}, r"yw_to_w must give a dict with a tensor for each of weight"),
    "no tensor": (lambda x, w: x @ w, lambda g, t: {"weight": 1}, r"yw_to_w must give a dict with a tensor"),
    "no output": (lambda x, w: None, lambda g, t: t, "impl must give a tensor, not NoneType"),
    "short": (lambda x, w: x @ w[:, :2], lambda g, t: t, r"bad gives shape \(4, 2\) for 3 neurons"),
}


@pytest.mark.parametrize(("impl", "rule", "sentence"), RULES.values(), ids=RULES.keys())
def test_rules_that_give_something_else_get_a_sentence(
    impl: Callable[..., Tensor], rule: Callable[..., object], sentence: str
) -> None:
    bad = etp.register_primitive("bad", impl, True, yw_to_w=rule)
    executor = etp.Executor(etp.leaky(), etp.Connection.of(bad, {"weight": torch.randn(5, 3)}, outputs=3))

    with pytest.raises((TypeError, RuntimeError), match=rf"\[lacewing\.etp\..*\] {sentence}"):
        executor.step(torch.randn(4, 5))


def test_rules_without_a_batch_take_states_for_states() -> None:
    pattern = etp.SparsePattern.coo([0, 1, 2], [2, 1, 0], (3, 3))
    g, trace = torch.randn(3, 3, dtype=F64), torch.randn(3, 3, dtype=F64)
    dense = torch.randn(3, 3, 3, dtype=F64)

    alone = etp.etp_sp_mv_p.yw_to_w(g, {"weight": trace}, sparse_mat=pattern)["weight"]
    batch = etp.etp_sp_mm_p.yw_to_w(g, {"weight": trace}, sparse_mat=pattern)["weight"]

    assert torch.equal(alone, g[pattern.col] * trace)
    assert torch.equal(batch, g[:, pattern.col] * trace)
    assert torch.equal(etp.etp_mv_p.yw_to_w(g, {"weight": dense})["weight"], g * dense)
    assert torch.equal(etp.etp_mm_p.yw_to_w(g, {"weight": dense})["weight"], g.unsqueeze(1) * dense)


def test_leading_dims_are_one_batch_for_the_traces_too() -> None:
    pattern, x = etp.fixed_degree(5, 7, 3, seed=0), torch.randn(2, 3, 5)
    weights = {"weight": torch.randn(pattern.nse)}

    found = etp.etp_sp_mm_p.init_drtrl(x, etp.sparse_matmul(x, weights["weight"], pattern), weights, 2)

    assert found["weight"].shape == (6, pattern.nse, 2)


HEAD = "%%MatrixMarket matrix coordinate real general\n"
FILES = {
    "more entries": (HEAD + "2 2 1\n1 1 1.0\n2 2 3.0\n", "line 4: the file holds 2 entries, but it announces 1"),
    "a word too many": (HEAD + "2 2 1\n1 1 1.0 abc\n", 'line 3: "abc" is more than an entry has'),
    "a size too many": (HEAD + "2 2 1 9\n1 1 1.0\n", 'line 2: "9" is more than an entry has'),
    "half an index": (
        HEAD.replace("real", "pattern") + "3 3 1\n1 2.7\n",
        'line 3: the column is "2.7", which is no integer',
    ),
    "half an integer": (
        HEAD.replace("real", "integer") + "2 2 1\n1 1 1.5\n",
        'line 3: the value is "1.5", which is no integer',
    ),
    "not a number": (HEAD + "2 2 1\n1 1 nan\n", "line 3: the value is not finite"),
    "too short": (HEAD + "2 2 2\n1 1 1.000000\n", "line 3: the file ends with 1 of the 2 entries"),
    "index zero": (HEAD + "2 2 1\n0 1 1\n", r"line 3: entry \(0, 1\) is outside of a matrix of 2 x 2"),
    "symmetric": (
        HEAD.replace("general", "symmetric") + "2 2 1\n2 1 1\n",
        "line 1: connectivity is a coordinate matrix",
    ),
    "too large": (HEAD + "99999999999 2 0\n", r"sizes \(99999999999, 2\) exceed"),
    "empty": ("", "line 1: it does not begin with %%MatrixMarket"),
}


@pytest.mark.parametrize(("text", "sentence"), FILES.values(), ids=FILES.keys())
def test_malformed_matrix_files_get_a_sentence(text: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "w.mtx"
    path.write_text(text)

    with pytest.raises(RuntimeError, match=rf"\[lacewing\.etp\..*\] .*{sentence}"):
        etp.read_mtx(path)


def test_matrix_files_of_other_systems_are_read(tmp_path: Path) -> None:
    path = tmp_path / "w.mtx"
    lines = ["%%MatrixMarket MATRIX Coordinate Integer General", " % by hand", "", "2 3 2", " 1 3 4", "", "2 1 -5", "%"]
    path.write_bytes("\r\n".join([*lines, ""]).encode())

    pattern, values = etp.read_mtx(path)

    assert pattern.with_data(values).to_dense().tolist() == [[0.0, 0.0, 4.0], [-5.0, 0.0, 0.0]]


def test_units_with_an_offset() -> None:
    pint = pytest.importorskip("pint")
    units = pint.UnitRegistry()
    pattern, one = etp.SparsePattern.coo([0], [0], (1, 1)), torch.ones(1, dtype=F64)

    warm = etp.sparse_matmul(units.Quantity(one, "K"), one, pattern, units.Quantity(20 * one, "degC"))

    torch.testing.assert_close(warm.to("K").magnitude, 294.15 * one)
    with pytest.raises(ValueError, match="x has unit degree_Celsius, whose zero is not zero"):
        etp.sparse_matmul(units.Quantity(one, "degC"), one, pattern)
