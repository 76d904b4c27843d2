"""SparseTensor: construction, fills, in-place ops, copies, the densify policy, torch.compile and torch.func.

Numbers in names are those of the rules in docs/tensors.md's specification.
"""

from __future__ import annotations

import copy
import io
import os
import pickle
import subprocess
import sys
import warnings
import weakref
from collections.abc import Callable
from typing import Any

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
    additive, rest = s.to_additive()
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


@pytest.mark.parametrize(
    ("indices", "values", "message"),
    [
        (
            [[0, 1], [0]],
            [1.0, 2.0],
            r"\[lacewing\.sparse_coo_tensor\] indices are no array of numbers: expected sequence",
        ),
        ([[0]], [[1.0, 2.0], [3.0]], r"\[lacewing\.sparse_coo_tensor\] values are no array of numbers"),
        ([["zero"]], [1.0], r"\[lacewing\.sparse_coo_tensor\] indices are no array of numbers"),
        ([[float("nan")]], [1.0], "indices must be integers, not Float"),
        (torch.zeros(1, 1, dtype=torch.int64, device="meta"), [1.0], "indices are on meta, but values are on cpu"),
        (torch.zeros(1, 1, dtype=torch.bool), [1.0], "indices must be integers, not Bool"),
    ],
)
def test_11_ragged_lists_nan_and_mixed_devices_get_a_sentence(indices: object, values: object, message: str) -> None:
    with pytest.raises((RuntimeError, ValueError, TypeError), match=message):
        lacewing.sparse_coo_tensor(indices, values, (3,))


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


def written(change: Callable[[torch.Tensor], object], s: torch.Tensor) -> None:
    """Writes to something of the tensor, which is looked at afterwards."""
    change(s)
    torch.linalg.norm(s)  # a composite op


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s[0][1].fill_(1),
        lambda s: s[0, 1].add_(1),
        lambda s: s.flatten()[3].zero_(),
        lambda s: s.select(0, 1).select(0, 0).copy_(torch.tensor(5.0)),
        lambda s: s.unbind(0)[1].unbind(0)[0].mul_(2),
        lambda s: s.unfold(0, 2, 1).zero_(),
        lambda s: s.detach()[0, 1].fill_(1),
    ],
)
def test_a_write_to_a_strided_copy_is_refused_at_the_next_look(change: Callable[[torch.Tensor], object]) -> None:
    s = example()
    before = s.to_dense()

    with pytest.raises(RuntimeError, match="was written to in place, but it is a copy"):
        written(change, s)

    assert torch.equal(s.to_dense(), before)


def test_a_write_to_a_densified_transpose_is_refused() -> None:
    s = lacewing.sparse_coo_tensor([[0, 2]], torch.ones(2, 3), (4, 3))

    with pytest.raises(RuntimeError, match=r"the strided result of aten::.* was written to in place"):
        written(lambda s: s.T.fill_(1), s)


def test_clones_and_real_views_of_the_values_may_be_written_to() -> None:
    s = lacewing.sparse_coo_tensor([[0, 2]], torch.ones(2, 3), (4, 3))

    written(lambda s: s.T.clone().fill_(5), s)
    written(lambda s: s[0].clone().fill_(5), s)
    written(lambda s: s.values().mul_(2), s)
    written(lambda s: s.to_dense().fill_(5), s)

    assert s.sum() == 12
    full = lacewing.sparse_coo_tensor([[0, 1]], [1.0, 2.0])
    written(lambda s: s.to_dense().fill_(5), full)
    assert full.sum() == 3


def test_reading_rows_in_a_loop_keeps_nothing() -> None:
    s = lacewing.sparse_coo_tensor([[0, 2]], torch.ones(2, 3), (4, 3))

    kept = [weakref.ref(s[i]) for i in range(4)]

    assert all(row() is None for row in kept[:-1])


@pytest.mark.parametrize("index", [(0, 1), (0, 0), (3, -1)])
def test_an_element_is_changed_by_an_augmented_assignment(index: tuple[int, int]) -> None:
    s, dense = example(), example().to_dense()

    s[index] += 4
    s[index] *= 3
    dense[index] += 4
    dense[index] *= 3

    assert torch.equal(s.to_dense(), dense)


@pytest.mark.parametrize(
    "index",
    [
        (1, 0),
        (-1, 2),
        (torch.tensor([0, 3]), torch.tensor([1, 1])),
        torch.eye(4, 5, dtype=torch.bool),
        (torch.tensor([0, 2]), 4),
    ],
)
def test_assignment_writes_what_it_writes_to_a_strided_tensor(index: object) -> None:
    s, dense = example(), example().to_dense()

    s[index] = 7.0
    s[index] += 2.0
    dense[index] = 9.0

    assert torch.equal(s.to_dense(), dense)


@pytest.mark.parametrize(
    "index",
    [
        0,
        -1,
        slice(1, 3),
        (0, slice(None)),
        ...,
        (..., -1),
        (slice(None, None, 2), slice(1, 4)),
        (slice(3, 1), 0),
        torch.tensor([0, 1]),
        torch.tensor([True, False, True, False]),
        (3, torch.tensor([4, 0])),
    ],
)
@pytest.mark.parametrize("fill", [0.0, 2.0])
def test_slices_are_written_as_in_a_strided_tensor(index: Any, fill: float) -> None:
    s = example(fill=fill)
    dense = s.to_dense()
    value = torch.arange(dense[index].numel(), dtype=torch.float64).view(dense[index].shape)

    for written in (7.0, value):
        s[index] = written
        dense[index] = written

        assert torch.equal(s.to_dense(), dense)
    hybrid = lacewing.sparse_coo_tensor([[0, 2]], torch.ones(2, 3), (4, 3))
    hybrid[1:3] = torch.tensor([1.0, 2.0, 3.0])
    assert hybrid.to_dense().tolist() == [[1, 1, 1], [1, 2, 3], [1, 2, 3], [0, 0, 0]]


def test_4_writing_too_many_elements_obeys_the_policy() -> None:
    s = lacewing.sparse_coo_tensor([[0], [0]], [1.0], (10**6, 10**6))

    with pytest.raises(RuntimeError, match=r"aten::index_put has no sparse form here .* above the limit of 4 GiB"):
        s[1:] = 1.0
    assert s.nse == 1
    with pytest.raises(RuntimeError, match=r"aten::copy has no sparse form here .* above the limit of 4 GiB"):
        s[:] = torch.ones(10**6)
    with pytest.raises(RuntimeError, match=r"aten::copy has no sparse form here .* above the limit of 4 GiB"):
        s.copy_(torch.ones(1, 1).expand(10**6, 10**6))
    assert s.nse == 1
    s[:] = 1.0
    assert (s.nse, s.fill_value.item()) == (1, 1.0)


@pytest.mark.parametrize("index", [(None, 0), (True, 0), ("x", 0), (..., ...)])
def test_other_assignments_are_refused(index: object) -> None:
    s = example()
    before = s.to_dense()

    with pytest.raises((RuntimeError, NotImplementedError), match=r"\[lacewing\.SparseTensor\]"):
        s[index] = 1.0

    assert torch.equal(s.to_dense(), before)


def test_in_place_transposes_are_right_or_refused() -> None:
    square = lacewing.sparse_coo_tensor([[0, 1], [2, 0]], [1.0, 2.0], (3, 3))
    expected = square.to_dense().T

    square.t_()

    assert torch.equal(square.to_dense(), expected)
    with pytest.raises(RuntimeError, match=r"in place gives shape \(5, 4\)"):
        example().t_()
    with pytest.raises(RuntimeError, match="would turn a sparse tensor into a strided one"):
        lacewing.sparse_coo_tensor([[0, 2]], torch.ones(2, 3), (3, 3)).t_()


def test_requires_grad_is_set_and_unset_for_the_components() -> None:
    values = torch.ones(4, dtype=torch.float64)
    fill = torch.zeros((), dtype=torch.float64)
    s = example(values, fill)

    s.requires_grad = True
    assert values.requires_grad
    assert not fill.requires_grad
    s.requires_grad = False
    assert not s.requires_grad
    assert not values.requires_grad
    values.requires_grad_()
    fill.requires_grad_()
    assert s.requires_grad_(False) is s
    assert [t.requires_grad for t in (s, values, fill)] == [False] * 3
    assert s.requires_grad_().requires_grad


def test_requires_grad_of_results_cannot_be_unset() -> None:
    s = example(torch.ones(4, dtype=torch.float64, requires_grad=True) * 2)

    with pytest.raises(RuntimeError, match=r"cannot be set to false.*use detach\(\)"):
        s.requires_grad = False

    assert s.requires_grad
    assert not s.detach().requires_grad


def test_4_the_policy_warns_above_its_limit() -> None:
    s = example()

    with lacewing.densify_policy("warn", 100), pytest.warns(UserWarning, match=r"aten::cumsum .* 160 bytes, above"):
        s.cumsum(0)
    with lacewing.densify_policy("warn", 160), warnings.catch_warnings():
        warnings.simplefilter("error")
        s.cumsum(0)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("raise:100", "RuntimeError: [lacewing.densify] aten::cumsum has no sparse form"),
        ("warn:100B", "UserWarning: [lacewing.densify] aten::cumsum has no sparse form"),
        ("raise:1KiB", "nothing"),
        ("allow", "nothing"),
        ("raise:many", 'LACEWING_DENSIFY names "many", which is no number of bytes'),
        ("never", 'LACEWING_DENSIFY is "never", not allow, warn:BYTES or raise:BYTES'),
    ],
)
def test_4_the_policy_that_a_process_starts_with_is_in_the_environment(policy: str, expected: str) -> None:
    code = "import lacewing; lacewing.sparse_coo_tensor([[0]], [1.0], (50,)).cumsum(0); print('nothing')"

    run = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"LACEWING_DENSIFY": policy}, capture_output=True, text=True
    )

    assert expected in run.stdout + run.stderr
    assert ("nothing" in run.stdout) == (expected == "nothing" or "UserWarning" in expected)


def test_importing_beside_another_owner_of_the_dispatch_key_fails_with_a_sentence() -> None:
    code = (
        "import torch; library = torch.library.Library('_', 'IMPL', 'DeferredInit'); "
        "library.fallback(lambda *a, **k: None); import lacewing"
    )

    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert run.returncode == 1
    assert "ImportError: [lacewing.SparseTensor] another library has claimed the dispatch key" in run.stderr


def test_out_takes_sparse_and_strided_results() -> None:
    s, out = example(), example()
    strided = torch.empty(0, dtype=torch.float64)

    assert torch.cos(s, out=out) is not None
    torch.cumsum(s, 0, out=strided)

    assert lacewing.is_sparse_tensor(out)
    assert torch.equal(out.to_dense(), torch.cos(s.to_dense()))
    assert torch.equal(strided, s.to_dense().cumsum(0))
    with pytest.raises(RuntimeError, match=r"aten::cumsum cannot write its result to a sparse out="):
        torch.cumsum(s, 0, out=out)
    with pytest.raises(RuntimeError, match=r"cannot write its result to a sparse out= of dtype Long"):
        torch.cos(s, out=lacewing.sparse_coo_tensor([[0], [0]], [1], (4, 5)))


def test_a_densified_permutation_is_recorded() -> None:
    s = lacewing.sparse_coo_tensor([[0, 2]], torch.ones(2, 3), (4, 3))

    with lacewing.record_densified() as densified:
        s.T

    assert len(densified) == 1
    with lacewing.densify_policy("raise", 10), pytest.raises(RuntimeError, match=r"shape \(4, 3\), 48 bytes, above"):
        s.T


TRANSFORMS = {
    "grad": lambda f, x: torch.func.grad(lambda y: f(y).sin().sum())(x),
    "second": lambda f, x: torch.func.hessian(lambda y: f(y).sin().sum())(x),
    "vmap": lambda f, x: torch.func.vmap(f)(torch.stack([x, 2 * x])),
    "vmap of grad": lambda f, x: torch.func.vmap(torch.func.grad(lambda y: f(y).sin().sum()))(torch.stack([x, -x])),
    "jvp": lambda f, x: torch.func.jvp(f, (x,), (x.cos(),))[1],
    "jacrev": lambda f, x: torch.func.jacrev(f)(x),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize(
    "function",
    [
        lambda s, x: s @ x,
        lambda s, x: torch.nn.functional.linear(x, torch.cos(s)),
        lambda s, x: (s * x).sum(0),
        lambda s, x: torch.softmax(s, 1).mul(x).sum(1),
        lambda s, x: torch.cat([s, s])[1:, 1:] @ x[1:],
        lambda s, x: s.cumsum(0) @ x,
        lambda s, x: s.to_dense() @ x,
        lambda s, x: (s.coalesce() if lacewing.is_sparse_tensor(s) else s) @ x,
    ],
)
def test_tensors_captured_by_torch_func_act_as_strided_ones(
    function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], transform: str
) -> None:
    values = torch.randn(4, dtype=torch.float64, requires_grad=True)
    x = torch.randn(5, dtype=torch.float64)
    s = example(values)

    found = TRANSFORMS[transform](lambda y: function(s, y), x)
    expected = TRANSFORMS[transform](lambda y: function(s.to_dense(), y), x)

    assert torch.allclose(found, expected)
    of_values = [torch.autograd.grad(t.sin().sum(), values, retain_graph=True)[0] for t in (found, expected)]
    assert torch.allclose(*of_values)


def test_the_values_of_a_captured_tensor_can_be_read() -> None:
    s = example()

    assert torch.equal(torch.func.grad(lambda x: (s.values().sum() + s.nse) * x)(torch.tensor(1.0)), torch.tensor(8.5))


def test_a_number_can_be_the_fill_inside_torch_func_and_what_it_transforms_cannot() -> None:
    s = example()
    x = torch.ones(5, dtype=torch.float64)

    found = torch.func.grad(lambda y: (s.with_fill(1.0) @ y).sum())(x)

    assert torch.equal(found, s.with_fill(1.0).to_dense().sum(0))
    with pytest.raises(RuntimeError, match=r"a fill that belongs to a torch\.func transform cannot be given"):
        torch.func.grad(lambda y: (s.with_fill(y[0]) @ y).sum())(x)


def test_a_captured_tensor_is_not_written_to_through_a_copy_in_vmap() -> None:
    s = example()

    with pytest.raises(RuntimeError, match="was written to in place, but it is a copy"):
        torch.func.vmap(lambda y: written(lambda t: t[0, 0].add_(1), s) or y)(torch.ones(2))


@pytest.mark.parametrize("read", ["values", "to_dense", "requires_grad", "nse"])
def test_compiled_functions_can_look_at_the_tensor(read: str) -> None:
    s, x = example(torch.ones(4, requires_grad=True)), torch.ones(3)
    look = {
        "values": lambda s, y: s.values().sum() * y,
        "to_dense": lambda s, y: s.to_dense().sum() * y,
        "requires_grad": lambda s, y: y * 4 if s.requires_grad else y,
        "nse": lambda s, y: y * s.nse,
    }[read]

    assert torch.equal(torch.compile(look, backend="aot_eager")(s, x), 4 * x)


@pytest.mark.parametrize("transform", [torch.func.grad, torch.func.vmap])
def test_a_sparse_input_of_a_transform_is_refused(transform: Callable[..., Callable[..., object]]) -> None:
    with pytest.raises(RuntimeError, match=r"input of a torch\.func transform \(capture the tensor"):
        transform(lambda s: s.sum())(example())


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
