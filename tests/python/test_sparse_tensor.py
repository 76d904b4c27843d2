"""SparseTensor: construction, fills, in-place ops, copies, the densify policy, torch.compile and torch.func.

Numbers in names are those of the rules in docs/tensors.md's specification.
"""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import lacewing

INDICES = [[0, 1, 2, 3], [1, 0, 4, 2]]


def example(values: torch.Tensor | None = None, fill: object = None) -> lacewing.SparseTensor:
    values = torch.tensor([0.5, -1.0, 2.0, 3.0], dtype=torch.float64) if values is None else values
    return lacewing.sparse_coo_tensor(INDICES, values, (4, 5), fill)


def test_it_prints_on_one_line() -> None:
    assert repr(example()) == "<SparseTensor coo: shape=(4, 5), nse=4, dtype=torch.float64, device=cpu, fill=0>"
    assert repr(example(fill=lacewing.undefined)).endswith("fill=undefined>")


def test_the_softmax_of_the_seed_to_its_digits() -> None:
    values = torch.tensor([[11.0, 21.0], [13.0, 23.0], [15.0, 25.0]], dtype=torch.float64)
    s = lacewing.sparse_coo_tensor([[0, 2, 4]], values, (5, 2))

    p = torch.softmax(s, 0)

    row1 = [0.01587623155697699, 0.11731036561411605, 0.8668128725087686]
    row2 = [0.01587623997608452, 0.11731042782337393, 0.8668133321764651]
    assert torch.allclose(p.values(), torch.tensor([row1, row2], dtype=torch.float64).T, rtol=1e-15, atol=0)
    fill = torch.tensor([2.651600691412856e-07, 1.2038254898669156e-11], dtype=torch.float64)
    assert torch.allclose(p.fill_value, fill, rtol=1e-15, atol=0)


def test_transposing_one_sparse_and_one_dense_dim_gives_a_strided_tensor() -> None:
    s = lacewing.sparse_coo_tensor([[0, 2]], torch.ones(2, 3), (4, 3))

    assert not lacewing.is_sparse_tensor(s.T)
    assert torch.equal(s.T, s.to_dense().T)


def test_14_fills_are_0_by_default_or_undefined() -> None:
    assert example().fill_value.item() == 0
    assert example(fill=[]).fill_value is lacewing.undefined
    assert torch.exp(example(fill=lacewing.undefined)).fill_kind == "undefined"


def test_1_an_undefined_fill_needs_one_to_be_dense() -> None:
    s = example(fill=lacewing.undefined)

    with pytest.raises(RuntimeError, match="the fill is undefined: give one by to_dense"):
        s.to_dense()
    assert s.to_dense(fill=7)[0, 0] == 7
    with pytest.raises(RuntimeError, match="aten::cumsum needs the elements without an entry"):
        s.cumsum(0)


def test_15_fills_of_another_type_are_type_errors() -> None:
    with pytest.raises(TypeError, match="cannot be cast"):
        lacewing.sparse_coo_tensor([[0]], [1], fill_value=0.5)
    with pytest.raises(TypeError, match="the fill is Double"):
        lacewing.sparse_coo_tensor([[0]], torch.ones(1, 2), fill_value=torch.ones(2, dtype=torch.float64))


def test_16_undefined_operands_meet_on_their_intersection() -> None:
    a = lacewing.sparse_coo_tensor([[0, 1, 2]], [1.0, 2.0, 3.0], (5,), lacewing.undefined)
    b = lacewing.sparse_coo_tensor([[1, 2, 4]], [10.0, 20.0, 30.0], (5,), lacewing.undefined)

    c = a + b

    assert c.indices().tolist() == [[1, 2]]
    assert c.values().tolist() == [12.0, 23.0]
    assert c.fill_value is lacewing.undefined


def test_18_and_19_prune_with_fill_and_the_additive_form() -> None:
    s = lacewing.sparse_coo_tensor([[0, 1, 3]], [2.0, 5.0, 7.0], (4,), 5.0)

    assert s.prune().indices().tolist() == [[0, 3]]
    assert s.with_fill(1.0).to_dense().tolist() == [2.0, 5.0, 1.0, 7.0]
    additive, rest = s.additive()
    assert additive.item() == 5.0
    assert rest.values().tolist() == [-3.0, 0.0, 2.0]
    assert torch.equal(lacewing.from_additive(additive, rest).to_dense(), s.to_dense())


def test_9_products_of_uncoalesced_tensors_add_first() -> None:
    s = lacewing.sparse_coo_tensor([[1, 1]], [2.0, 3.0], (3,))

    assert (s * s).to_dense().tolist() == [0.0, 25.0, 0.0]


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        ([[0.5]], "indices must be integers"),
        ([0], r"indices must have shape \(sparse dims, nse\)"),
        ([[7]], r"indices\[0, 0\] = 7 is out of range for size \(3,\): dim 0 has 3 entries"),
        ([[-1]], r"indices\[0, 0\] = -1 is out of range"),
        ([[0, 1]], "name 2 entries, but values"),
    ],
)
def test_11_bad_indices_get_a_sentence(indices: list[object], message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        lacewing.sparse_coo_tensor(indices, [1.0], (3,))


def test_22_too_many_elements_are_refused() -> None:
    with pytest.raises(RuntimeError, match="more elements than int64 can count"):
        lacewing.sparse_coo_tensor([[0], [0], [0]], [1.0], (2**40, 2**40, 2**40))


def test_in_place_ops_write_to_the_tensor() -> None:
    s = example()
    dense = s.to_dense()

    s.add_(1).mul_(2)
    s[0, 0] = 9.0

    dense = (dense + 1) * 2
    dense[0, 0] = 9.0
    assert torch.equal(s.to_dense(), dense)


def test_writing_to_a_view_is_refused() -> None:
    with pytest.raises(RuntimeError, match="in place on a view of a sparse tensor"):
        example()[0].zero_()


def test_4_the_policy_raises_and_warns() -> None:
    s = example()

    with lacewing.densify_policy("raise", 100), pytest.raises(RuntimeError, match=r"shape \(4, 5\), 160 bytes, above"):
        s.cumsum(0)
    with lacewing.densify_policy("allow"), lacewing.record_densified() as densified:
        s.cumsum(0)
    assert densified == ["aten::cumsum"]
    with pytest.raises(ValueError, match='mode must be "allow", "warn" or "raise"'):
        lacewing.set_densify_policy("never")


def test_copies_keep_values_fill_and_requires_grad() -> None:
    s = example(torch.randn(4, dtype=torch.float64, requires_grad=True), fill=2.0)
    file = io.BytesIO()
    torch.save(s, file)
    file.seek(0)

    copies = [copy.deepcopy(s), pickle.loads(pickle.dumps(s)), torch.load(file, weights_only=False)]

    for other in copies:
        assert torch.equal(other.to_dense(), s.to_dense())
        assert other.requires_grad
        assert other.fill_value.item() == 2.0


@pytest.mark.parametrize("inside", [False, True])
def test_compiled_functions_keep_the_gradient(inside: bool) -> None:
    values = torch.randn(4, dtype=torch.float64, requires_grad=True)
    x = torch.randn(5, 2, dtype=torch.float64)
    loss = lambda s: (torch.cos(s) @ x).sin().sum()
    expected = torch.autograd.grad(loss(example(values).to_dense()), values)[0]

    if inside:
        found = torch.compile(lambda v: loss(example(v)), backend="aot_eager")(values)
    else:
        found = torch.compile(loss, backend="aot_eager")(example(values))

    assert torch.allclose(torch.autograd.grad(found, values)[0], expected)


def test_tensors_made_inside_torch_func_are_refused() -> None:
    with pytest.raises(RuntimeError, match=r"belong to a torch\.func transform"):
        torch.func.grad(lambda v: example(v).sum())(torch.randn(4, dtype=torch.float64))


def test_second_derivatives_of_a_product() -> None:
    values = torch.randn(4, dtype=torch.float64, requires_grad=True)
    x = torch.randn(5, 2, dtype=torch.float64, requires_grad=True)

    assert torch.autograd.gradgradcheck(lambda v, y: (example(v) @ y).sin(), (values, x))


def test_backward_of_a_sparse_tensor_is_refused() -> None:
    with pytest.raises(RuntimeError, match="needs a strided tensor"):
        example().backward()


@st.composite
def pairs(draw: st.DrawFn) -> tuple[lacewing.SparseTensor, lacewing.SparseTensor]:
    """Two tensors of one shape with duplicates, any split and any fill."""
    shape = draw(st.lists(st.integers(0, 4), min_size=1, max_size=4))
    made = []
    for _ in range(2):
        sparse = draw(st.integers(1, len(shape)))
        nse = 0 if 0 in shape[:sparse] else draw(st.integers(0, 8))
        columns = [[draw(st.integers(0, size - 1)) for _ in range(nse)] for size in shape[:sparse]]
        values = torch.randint(-3, 4, (nse, *shape[sparse:])).double()
        indices = torch.tensor(columns, dtype=torch.int64).reshape(sparse, nse)
        made.append(lacewing.sparse_coo_tensor(indices, values, shape, float(draw(st.integers(-1, 1)))))
    return made[0], made[1]


@given(pairs())
@settings(max_examples=60, deadline=None)
def test_1_the_law_for_random_tensors(tensors: tuple[lacewing.SparseTensor, lacewing.SparseTensor]) -> None:
    a, b = tensors
    for op in (torch.add, torch.mul, torch.maximum, torch.lt):
        assert torch.equal(dense(op(a, b)), op(a.to_dense(), b.to_dense()))
    for dim in range(a.dim()):
        assert torch.equal(dense(a.sum(dim)), a.to_dense().sum(dim))
        assert torch.equal(dense(a.transpose(0, dim)), a.to_dense().transpose(0, dim))
        assert torch.equal(dense(a.flip(dim)), a.to_dense().flip(dim))


def dense(t: torch.Tensor) -> torch.Tensor:
    return t.to_dense() if lacewing.is_sparse_tensor(t) else t
