"""Primitives, patterns and rules against torch's own vjp of the dense form."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

import lacewing
from etp_support import Network
from lacewing import etp

F64 = torch.float64


def build(format: str, device: str, shuffled: bool = False) -> etp.SparsePattern:
    """Four inputs, three outputs, six entries; the last input and the middle output's last are empty."""
    row, col = torch.tensor([0, 0, 1, 2, 2, 2]), torch.tensor([0, 2, 2, 0, 1, 2])
    if format == "coo":
        order = torch.tensor([3, 0, 5, 1, 4, 2]) if shuffled else torch.arange(6)
        return etp.SparsePattern.coo(row[order].to(device), col[order].to(device), (4, 3))
    if format == "csr":
        return etp.SparsePattern.csr(torch.tensor([0, 2, 3, 6, 6]).to(device), col.to(device), (4, 3))
    order = torch.argsort(col, stable=True)
    return etp.SparsePattern.csc(torch.tensor([0, 2, 3, 6]).to(device), row[order].to(device), (4, 3))


def values_for(pattern: etp.SparsePattern) -> torch.Tensor:
    """A value for each place, whatever the order of the entries."""
    return (1.0 + pattern.row.double() + 0.1 * pattern.col.double()).to(pattern.device)


@pytest.mark.parametrize("format", ["coo", "csr", "csc"])
@pytest.mark.parametrize("shape", [(4,), (5, 4), (2, 3, 4), (0, 4)])
@pytest.mark.parametrize("bias", [False, True])
def test_forward_and_vjp_equal_the_dense_form(format: str, shape: tuple[int, ...], bias: bool, device: str) -> None:
    pattern = build(format, device)
    w = values_for(pattern).requires_grad_()
    b = torch.randn(3, dtype=F64, device=device, requires_grad=True) if bias else None
    x = torch.randn(shape, dtype=F64, device=device, requires_grad=True)
    leaves = [x, w] + ([b] if b is not None else [])

    y = etp.sparse_matmul(x, w, pattern, b)
    dense = x @ pattern.with_data(w).to_dense() + (0 if b is None else b)
    g = torch.randn_like(y)

    torch.testing.assert_close(y, dense, rtol=1e-12, atol=1e-12)
    for ours, theirs in zip(torch.autograd.grad(y, leaves, g), torch.autograd.grad(dense, leaves, g), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("format", ["coo", "csr", "csc"])
@pytest.mark.parametrize("bias", [False, True])
def test_xy_to_dw_equals_torchs_vjp(format: str, bias: bool, device: str) -> None:
    pattern = build(format, device, shuffled=True)
    weights = {"weight": values_for(pattern)} | ({"bias": torch.ones(3, dtype=F64, device=device)} if bias else {})
    x, g = torch.randn(5, 4, dtype=F64, device=device), torch.randn(5, 3, dtype=F64, device=device)

    def dense(*values: torch.Tensor) -> torch.Tensor:
        full = torch.zeros(4, 3, dtype=F64, device=device).index_put((pattern.row, pattern.col), values[0], True)
        return x @ full + (values[1] if bias else 0)

    found = etp.etp_sp_mm_p.xy_to_dw(x, g, weights, sparse_mat=pattern, has_bias=bias)
    expected = torch.func.vjp(dense, *weights.values())[1](g)

    assert list(found) == list(weights)
    for ours, theirs in zip(found.values(), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    deep = etp.etp_sp_mm_p.xy_to_dw(x.reshape(1, 5, 4), g.reshape(1, 5, 3), weights, sparse_mat=pattern, has_bias=bias)
    assert all(torch.equal(deep[key], found[key]) for key in weights)
    rows = [etp.etp_sp_mv_p.xy_to_dw(x[i], g[i], weights, sparse_mat=pattern, has_bias=bias) for i in range(5)]
    for key in weights:
        torch.testing.assert_close(sum(row[key] for row in rows), found[key], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("format", ["coo", "csr", "csc"])
@pytest.mark.parametrize("states", [None, 3])
@pytest.mark.parametrize("wide", [False, True])
def test_yw_to_w_is_batched_natively(format: str, states: int | None, wide: bool, device: str) -> None:
    pattern = build(format, device, shuffled=True)
    tail = () if states is None else (states,)
    g = torch.randn(5, 3, *(tail if wide else ()), dtype=F64, device=device)
    trace = {"weight": torch.randn(5, 6, *tail, dtype=F64, device=device)}
    trace["bias"] = torch.randn(5, 3, *tail, dtype=F64, device=device)

    found = etp.etp_sp_mm_p.yw_to_w(g, trace, sparse_mat=pattern, has_bias=True)

    factor = g if states is None or wide else g.unsqueeze(-1)
    torch.testing.assert_close(found["weight"], factor[:, pattern.col] * trace["weight"], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found["bias"], factor * trace["bias"], rtol=1e-12, atol=1e-12)
    for i in range(5):
        one = etp.etp_sp_mv_p.yw_to_w(
            g[i], {key: value[i] for key, value in trace.items()}, sparse_mat=pattern, has_bias=True
        )
        assert all(torch.equal(one[key], found[key][i]) for key in trace)


@pytest.mark.parametrize("format", ["coo", "csr", "csc"])
def test_structure_object(format: str, device: str) -> None:
    pattern = build(format, device)
    t = torch.randn(6, dtype=F64, device=device)
    by_row, by_col = torch.randn(4, dtype=F64, device=device), torch.randn(3, dtype=F64, device=device)

    assert torch.equal(pattern.yw_to_w(by_row, t), t * by_row[pattern.row])
    assert torch.equal(pattern.yw_to_w_transposed(by_col, t), t * by_col[pattern.col])
    assert pattern.format == format
    assert pattern.shape == (4, 3)
    assert pattern.nse == 6
    matrix = pattern.with_data(t)
    x = torch.randn(2, 4, dtype=F64, device=device)
    torch.testing.assert_close(x @ matrix, x @ matrix.to_dense())
    again = pickle.loads(pickle.dumps(copy.deepcopy(pattern)))
    assert torch.equal(again.row, pattern.row)
    assert torch.equal(again.col, pattern.col)


def test_formats_agree(device: str) -> None:
    x = torch.randn(5, 4, dtype=F64, device=device)

    results = [etp.sparse_matmul(x, values_for(p), p) for p in (build(f, device, True) for f in ("coo", "csr", "csc"))]

    torch.testing.assert_close(results[0], results[1], rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(results[0], results[2], rtol=1e-14, atol=1e-14)


def test_initial_traces(device: str) -> None:
    pattern = build("coo", device)
    weights = {"weight": torch.ones(6, device=device), "bias": torch.ones(3, device=device)}
    x, y = torch.ones(5, 4, device=device), torch.ones(5, 3, dtype=F64, device=device)

    batched = etp.etp_sp_mm_p.init_drtrl(x, y, weights, 2)
    single = etp.etp_sp_mv_p.init_drtrl(x[0], y[0], {"weight": weights["weight"]}, 2)
    factor = etp.etp_sp_mm_p.init_pp(x, y, weights, 2)

    assert batched["weight"].shape == (5, 6, 2)
    assert batched["bias"].shape == (5, 3, 2)
    assert batched["weight"].dtype == torch.float32
    assert batched["weight"].device == x.device
    assert single["weight"].shape == (6, 2)
    assert "bias" not in single
    assert factor.shape == (5, 3, 2)
    assert factor.dtype == F64
    assert pattern.nse == 6


def test_rules_can_be_set_later() -> None:
    bare = etp.register_primitive("bare", lambda x, w: x @ w, True)
    weights, x = {"weight": torch.ones(4, 3)}, torch.ones(5, 4)
    with pytest.raises(NotImplementedError, match=r"\[lacewing.etp.bare\] yw_to_w is not registered"):
        bare.yw_to_w(x @ weights["weight"], weights)

    etp.register_etp_rules(
        bare,
        yw_to_w=lambda g, trace: {"weight": g.unsqueeze(-2) * trace["weight"]},
        init_drtrl=lambda x, y, w, states: {"weight": torch.full((5, 4, 3, states), 2.0)},
        init_pp=lambda x, y, w, states: torch.ones(*y.shape, states),
    )

    y = bare.bind(x, weights["weight"])
    assert bare.yw_to_w(y, {"weight": torch.ones(5, 4, 3)})["weight"].shape == (5, 4, 3)
    assert bare.init_drtrl(x, y, weights, 2)["weight"].unique().item() == 2.0
    assert bare.init_pp(x, y, weights, 2).shape == (5, 3, 2)
    assert torch.equal(bare.xy_to_dw(x, y, weights)["weight"], x.t() @ y)


def test_trainable_map() -> None:
    assert etp.etp_sp_mm_p.trainable() == {"weight": 1}
    assert etp.etp_sp_mm_p.trainable(has_bias=True) == {"weight": 1, "bias": 2}
    assert etp.etp_sp_mm_p.batched
    assert not etp.etp_sp_mv_p.batched


@pytest.mark.parametrize("kind", ["dense", "elementwise"])
def test_siblings_have_the_rules_of_torchs_vjp(kind: str, device: str) -> None:
    primitive = etp.etp_mm_p if kind == "dense" else etp.etp_elementwise_p
    shape = (4, 3) if kind == "dense" else (3,)
    weights = {"weight": torch.randn(shape, dtype=F64, device=device), "bias": torch.randn(3, dtype=F64, device=device)}
    x = torch.randn(5, shape[0], dtype=F64, device=device)
    g = torch.randn(5, 3, dtype=F64, device=device)

    def plain(w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (x @ w if kind == "dense" else x * w) + b

    found = primitive.xy_to_dw(x, g, weights, has_bias=True)
    propagated = primitive.yw_to_w(g, primitive.init_drtrl(x, g, weights, 2), has_bias=True)

    for ours, theirs in zip(found.values(), torch.func.vjp(plain, *weights.values())[1](g), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(primitive.bind(x, *weights.values(), has_bias=True), plain(*weights.values()))
    assert propagated["weight"].shape == (5, *shape, 2)


def test_gradients_of_second_order(device: str) -> None:
    pattern = build("coo", device, shuffled=True)
    x = torch.randn(2, 4, dtype=F64, device=device, requires_grad=True)
    w = values_for(pattern).requires_grad_()

    assert torch.autograd.gradcheck(lambda x, w: etp.sparse_matmul(x, w, pattern), (x, w))
    assert torch.autograd.gradgradcheck(lambda x, w: etp.sparse_matmul(x, w, pattern), (x, w))


def test_compiles_without_breaks(device: str) -> None:
    pattern = build("coo", device)
    compiled = torch.compile(lambda x, w: etp.sparse_matmul(x, w, pattern), fullgraph=True, backend="aot_eager")
    x = torch.randn(5, 4, dtype=F64, device=device)
    w = values_for(pattern).requires_grad_()

    y = compiled(x, w)
    (found,) = torch.autograd.grad(y.square().sum(), w)

    expected = etp.sparse_matmul(x, w, pattern)
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(found, torch.autograd.grad(expected.square().sum(), w)[0])


@pytest.mark.parametrize("surrogate", ["triangle", "fast_sigmoid", "arctan", "gaussian", "boxcar"])
def test_spike(surrogate: str, device: str) -> None:
    x = torch.tensor([-1.7, -0.4, 0.0, 0.3, 2.0], dtype=F64, device=device, requires_grad=True)
    u = x.detach() / 0.8
    slopes = {
        "triangle": (1 - u.abs()).clamp(min=0),
        "fast_sigmoid": 1 / (1 + u.abs()) ** 2,
        "arctan": 1 / (1 + u * u),
        "gaussian": (-u * u / 2).exp(),
        "boxcar": (u.abs() < 1).double(),
    }

    z = etp.spike(x, surrogate, gain=0.5, width=0.8)
    (found,) = torch.autograd.grad(z.sum(), x)
    _, tangent = torch.func.jvp(lambda x: etp.spike(x, surrogate, 0.5, 0.8), (x.detach(),), (torch.ones_like(u),))

    assert z.tolist() == [0.0, 0.0, 0.0, 1.0, 1.0]
    torch.testing.assert_close(found, 0.5 * slopes[surrogate])
    torch.testing.assert_close(tangent, 0.5 * slopes[surrogate])
    stacked = torch.func.vmap(lambda x: etp.spike(x, surrogate, 0.5, 0.8))(x.detach().reshape(5, 1))
    assert torch.equal(stacked.flatten(), z.detach())
    torch.library.opcheck(lacewing.ops.etp_spike, (x, surrogate, 0.5, 0.8))


def test_units() -> None:
    pint = pytest.importorskip("pint")
    units = pint.UnitRegistry()
    pattern = build("coo", "cpu")
    x, w = torch.randn(2, 4), torch.randn(6)
    plain = etp.sparse_matmul(x, w, pattern)

    y = etp.sparse_matmul(units.Quantity(x, "mV"), units.Quantity(w, "nS"), pattern)
    biased = etp.sparse_matmul(
        units.Quantity(x, "mV"), units.Quantity(w, "nS"), pattern, units.Quantity(torch.ones(3), "pA")
    )
    ratio = etp.sparse_matmul(units.Quantity(x, "mV"), units.Quantity(w, "1/V"), pattern, torch.ones(3))

    assert y.units.is_compatible_with("pA")
    torch.testing.assert_close(y.magnitude, plain)
    torch.testing.assert_close(biased.to("pA").magnitude, plain + 1)
    assert isinstance(ratio, torch.Tensor)
    torch.testing.assert_close(ratio, plain / 1000 + 1)
    with pytest.raises(ValueError, match=r"bias has unit millivolt, which cannot be converted to .*nanosiemens"):
        etp.sparse_matmul(units.Quantity(x, "mV"), units.Quantity(w, "nS"), pattern, units.Quantity(w[:3], "mV"))


def _bias_trace(p: etp.SparsePattern) -> object:
    trace = {"weight": torch.ones(2, 6), "bias": torch.ones(2, 3)}
    return etp.etp_sp_mm_p.yw_to_w(torch.ones(2, 3), trace, sparse_mat=p)


def _bias_value(p: etp.SparsePattern) -> object:
    weights = {"weight": torch.ones(6), "bias": torch.ones(3)}
    return etp.etp_sp_mm_p.xy_to_dw(torch.ones(2, 4), torch.ones(2, 3), weights, sparse_mat=p)


W = torch.ones(6)
coo, csr, csc = etp.SparsePattern.coo, etp.SparsePattern.csr, etp.SparsePattern.csc
BAD = [
    (lambda p: p.with_data(W[:5]), r"values must have shape \(6,\), one for each entry of the pattern, not \(5,\)"),
    (lambda p: p.with_data(W.long()), "values must be floating, not int64"),
    (lambda p: etp.sparse_matmul(torch.ones(2, 5), W, p), r"x of shape \(2, 5\) must end with the 4 inputs"),
    (lambda p: etp.sparse_matmul(torch.ones(4).double(), W, p), "x has dtype float64, but values has dtype float32"),
    (lambda p: etp.sparse_matmul(torch.ones(4), W, p, torch.ones(4)), r"bias must have shape \(3,\), not \(4,\)"),
    (lambda p: p.yw_to_w_transposed(torch.ones(2, 3), torch.ones(3, 6)), r"y of shape \(2, 3\) and a trace of shape"),
    (lambda p: p.sampled_outer(torch.ones(2, 4), torch.ones(3, 3)), r"g must have shape \(2, 3\) beside x of shape"),
    (_bias_trace, "a bias trace is given, but no bias was declared"),
    (_bias_value, "bias is given, but none was declared"),
    (lambda p: coo([0, 4], [0, 0], (4, 3)), r"row\[1\] = 4 is out of range: there are 4"),
    (lambda p: coo([0, 1], [0], (4, 3)), "row has 2 entries, but col has 1"),
    (lambda p: csr([0, 2, 1, 1, 2], [0, 0], (4, 3)), r"crow\[2\] = 1 is less than the entry before it"),
    (lambda p: csc([0, 1, 1, 3], [0, 0], (4, 3)), "ccol must begin with 0 and end with nse = 2, not 0 and 3"),
    (lambda p: coo([0.5], [0], (4, 3)), "row must have dtype int32 or int64, not float32"),
    (lambda p: etp.spike(torch.ones(2), "square"), "surrogate must be triangle, .* or boxcar, not square"),
    (lambda p: etp.fixed_degree(4, 3, 5, seed=0), "degree must be between 0 and 4, not 5"),
    (lambda p: etp.small_world(5, 3, 0.1, seed=0), "degree must be even and less than the 5 neurons, not 3"),
]


@pytest.mark.parametrize(("call", "sentence"), BAD)
def test_bad_input_gets_a_sentence(call: object, sentence: str) -> None:
    with pytest.raises(RuntimeError, match=rf"\[lacewing\..*\] .*{sentence}"):
        call(build("coo", "cpu"))


def test_connectivity() -> None:
    fan_in = etp.fixed_degree(20, 9, 4, seed=5)
    fan_out = etp.fixed_degree(9, 9, 4, seed=5, fan_out=True, self_connections=False)
    ring = etp.small_world(12, 4, 0.0, seed=1)
    rewired = etp.small_world(50, 6, 0.5, seed=1)

    assert fan_in.col.bincount(minlength=9).tolist() == [4] * 9
    assert len({*zip(fan_in.row.tolist(), fan_in.col.tolist(), strict=True)}) == fan_in.nse
    assert torch.equal(fan_in.row, etp.fixed_degree(20, 9, 4, seed=5).row)
    assert not torch.equal(fan_in.row, etp.fixed_degree(20, 9, 4, seed=6).row)
    assert fan_out.row.bincount(minlength=9).tolist() == [4] * 9
    assert not (fan_out.row == fan_out.col).any()
    distance = (ring.row - ring.col) % 12
    assert sorted(set(distance.tolist())) == [1, 2, 10, 11]
    assert rewired.col.bincount(minlength=50).tolist() == [6] * 50
    assert not (rewired.row == rewired.col).any()
    assert ((rewired.row - rewired.col) % 50 > 3).logical_and((rewired.row - rewired.col) % 50 < 47).any()


def test_matrix_market(tmp_path: object) -> None:
    scipy_io = pytest.importorskip("scipy.io")
    path = tmp_path / "w.mtx"
    matrix = build("coo", "cpu")
    dense = matrix.with_data(values_for(matrix)).to_dense()
    scipy_io.mmwrite(path, __import__("scipy.sparse").sparse.coo_array(dense.numpy()), symmetry="general")

    pattern, values = etp.read_mtx(path)

    torch.testing.assert_close(pattern.with_data(values).to_dense(), dense)
    path.write_text("%%MatrixMarket matrix coordinate real general\n2 2 1\n3 1 0.5\n")
    with pytest.raises(RuntimeError, match=r"w.mtx: line 3: entry \(3, 1\) is outside of a matrix of 2 x 2"):
        etp.read_mtx(path)
    with pytest.raises(RuntimeError, match="cannot be opened: No such file"):
        etp.read_mtx(tmp_path / "none.mtx")


def test_network_fixture_has_all_parts(device: str) -> None:
    network = Network.random(device, recurrent=True)
    assert network.recurrent is not None
    assert network.recurrent.shape == (7, 7)
