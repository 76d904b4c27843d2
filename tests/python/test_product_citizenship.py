"""The ops as citizens of torch: opcheck, compile, export, torch.func, gradcheck, autocast."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.testing import CompileCounterWithBackend
from torch._functorch.aot_autograd import make_boxed_func
from torch.autograd import gradcheck, gradgradcheck
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch.fx import GraphModule

import lacewing
from lacewing import (
    SparseProductInfo,
    derive_backward,
    sparse_mul,
    sparse_product_infos,
    sparse_scale,
    sparse_scale_infos,
)
from lacewing._plan import arguments
from products_support import OPS, ROLES, Case, Op, assert_close, make_case, random_values, role_id

each_op = pytest.mark.parametrize("op", OPS.values(), ids=OPS.keys())
each_roles = pytest.mark.parametrize("roles", ROLES, ids=role_id)
SOME_ROLES = [(False, False, False), (False, True, False), (True, False, True)]
each_roles_and_some_given = pytest.mark.parametrize(
    ("roles", "given"),
    [(roles, False) for roles in ROLES] + [(roles, True) for roles in SOME_ROLES],
    ids=lambda value: role_id(value) if isinstance(value, tuple) else "given" if value else "derived",
)


def small(op: Op, roles=(False, False, False), dtype=torch.float64, device="cpu", absent=("index_out",)) -> Case:
    """A case small enough for finite differences."""
    return make_case(op, absent, roles, dtype, device, batch=2, a=2, b=2, entries=3, rows=2)


def require_expecttest() -> None:
    pytest.importorskip("expecttest", reason="torch's opcheck needs the package expecttest")


def op_arguments(case: Case, backward: bool, scale: bool = True) -> tuple:
    """What a registered product takes."""
    in1, in2 = case.x.shape[-1 - len(case.op.x)], case.y.shape[-1 - len(case.op.y)]
    plans = case.info._backward_plans(in1, in2) if backward else ()
    s = case.scale.detach().requires_grad_() if scale else None
    operands = (case.x.detach().requires_grad_(), case.y.detach().requires_grad_(), s)
    return (*operands, *arguments(case.info._plan, *plans), case.accumulated)


@each_op
@each_roles_and_some_given
def test_opcheck_of_products(op: Op, roles: tuple[bool, ...], given: bool, device: str) -> None:
    require_expecttest()
    taken = op_arguments(small(op, roles, device=device), given, scale=roles[0] == given)

    torch.library.opcheck(getattr(torch.ops.lacewing, f"sparse_{op.name}").default, taken)


@each_op
def test_opcheck_of_a_product_without_fields(op: Op, device: str) -> None:
    require_expecttest()
    case = small(op, absent=("scale", "index1", "index2", "seg_out", "gather_index", "index_out"), device=device)
    taken = (case.x.requires_grad_(), case.y.requires_grad_(), None, *arguments(case.info._plan), False)

    torch.library.opcheck(getattr(torch.ops.lacewing, f"sparse_{op.name}").default, taken)


@pytest.mark.parametrize("leading", [(), (2,), (2, 2)], ids=str)
@pytest.mark.parametrize("with_scale", [False, True])
def test_opcheck_of_sparse_scale(leading: tuple[int, ...], with_scale: bool, device: str) -> None:
    require_expecttest()
    info = sparse_scale_infos([0, 2, 2], [1, 0, 1], None, 3, 2)[0].to(device)
    x = random_values([*leading, 2, 2], torch.float64, 1, device).requires_grad_()
    scale = random_values([3], torch.float64, 2, device).requires_grad_() if with_scale else None

    torch.library.opcheck(torch.ops.lacewing.sparse_scale.default, (x, scale, *arguments(info._plan)))


@each_op
@each_roles
def test_opcheck_of_the_gradient_of_scale(op: Op, roles: tuple[bool, ...], device: str) -> None:
    require_expecttest()
    case = small(op, roles, device=device)
    z = case.run(case.x, case.y, case.scale)
    x, y, g = (t.detach().requires_grad_() for t in (case.x, case.y, random_values(z.shape, z.dtype, 4, device)))
    kind = list(OPS).index(op.name)

    torch.library.opcheck(
        torch.ops.lacewing.product_scale_grad.default,
        (kind, x, y, g, *arguments(case.info._plan), case.accumulated),
    )


@each_op
@each_roles
@pytest.mark.parametrize("wanted", [(0, 1, 2), (2, 0), (1,), ()], ids=str)
def test_opcheck_of_several_gradients(op: Op, roles: tuple[bool, ...], wanted: tuple[int, ...], device: str) -> None:
    require_expecttest()
    case = small(op, roles, device=device)
    z = case.run(case.x, case.y, case.scale)
    inputs = (case.x, case.y, case.scale, random_values(z.shape, z.dtype, 4, device))
    x, y, scale, g = (t.detach().requires_grad_() for t in inputs)
    kind = list(OPS).index(op.name)

    torch.library.opcheck(
        torch.ops.lacewing.sparse_product_backward.default,
        (kind, x, y, scale, g, *arguments(case.info._plan), case.accumulated, wanted),
    )


@each_op
@each_roles
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_gradgradcheck_of_several_gradients(op: Op, roles: tuple[bool, ...], dtype: torch.dtype, device: str) -> None:
    case = small(op, roles, dtype=dtype, device=device)
    g = random_values(case.run(case.x, case.y, case.scale).shape, dtype, 4, device)
    inputs = [t.detach().requires_grad_() for t in (case.x, case.y, case.scale, g)]
    kind = list(OPS).index(op.name)
    several = lambda *tensors: tuple(
        torch.ops.lacewing.sparse_product_backward(
            kind, *tensors, *arguments(case.info._plan), case.accumulated, (1, 2, 0)
        )
    )

    assert gradcheck(several, inputs, atol=1e-6, rtol=1e-5, check_forward_ad=True)
    assert gradgradcheck(several, inputs, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("view", [1, 2])
def test_opcheck_of_derive_plan(view: int, device: str) -> None:
    require_expecttest()
    plan = make_case(OPS["mul"], device=device).info._plan

    torch.library.opcheck(torch.ops.lacewing.derive_plan.default, (*plan, view, 9, False))


@each_op
@each_roles
def test_gradcheck(op: Op, roles: tuple[bool, ...], device: str) -> None:
    case = small(op, roles, device=device)
    inputs = [t.requires_grad_() for t in (case.x, case.y, case.scale)]

    assert gradcheck(case.run, inputs, atol=1e-6, rtol=1e-5, check_forward_ad=True, check_batched_grad=False)
    assert gradgradcheck(case.run, inputs, atol=1e-6, rtol=1e-5)


@each_op
def test_complex_gradcheck(op: Op, device: str) -> None:
    case = small(op, dtype=torch.complex128, device=device)
    inputs = [t.requires_grad_() for t in (case.x, case.y, case.scale)]

    assert gradcheck(case.run, inputs, atol=1e-6, rtol=1e-5, check_forward_ad=True)
    assert gradgradcheck(case.run, inputs, atol=1e-6, rtol=1e-5)


@each_op
def test_gradcheck_of_forward_over_reverse(op: Op, device: str) -> None:
    case = small(op, device=device)
    inputs = [t.requires_grad_() for t in (case.x, case.y, case.scale)]

    assert gradgradcheck(
        case.run, inputs, atol=1e-6, check_fwd_over_rev=True, check_rev_over_rev=False, check_undefined_grad=False
    )


def transforms() -> dict[str, object]:
    """Functions of f(x, y, scale) by torch.func; f gives a tensor."""
    total = lambda f: lambda *a: f(*a).square().sum()
    ones = lambda *a: tuple(torch.ones_like(t) for t in a)
    return {
        "grad": lambda f, *a: grad(total(f), argnums=(0, 1, 2))(*a),
        "grad_of_grad": lambda f, *a: grad(lambda x: grad(total(f))(x, *a[1:]).square().sum())(a[0]),
        "vjp": lambda f, *a: (lambda z, back: back(2 * z))(*vjp(f, *a)),
        "jvp": lambda f, *a: jvp(f, a, ones(*a)),
        "jvp_of_grad": lambda f, *a: jvp(grad(total(f), argnums=(0, 1, 2)), a, ones(*a)),
        "jacrev": lambda f, *a: jacrev(f, argnums=(0, 1, 2))(*a),
        "jacfwd": lambda f, *a: jacfwd(f, argnums=(0, 1, 2))(*a),
        "hessian": lambda f, *a: hessian(total(f), argnums=(0, 1, 2))(*a),
    }


def flat(result: object) -> list[Tensor]:
    """The tensors of a nested result."""
    return [result] if isinstance(result, Tensor) else [t for part in result for t in flat(part)]


@each_op
@pytest.mark.parametrize("roles", [(False, False, False), (False, True, False), (True, False, True)], ids=role_id)
@pytest.mark.parametrize("transform", transforms().values(), ids=transforms().keys())
def test_torch_func(op: Op, roles: tuple[bool, ...], transform, device: str) -> None:
    case = small(op, roles, device=device)
    want = flat(transform(case.oracle, case.x, case.y, case.scale))

    got = flat(transform(case.run, case.x, case.y, case.scale))

    assert len(got) == len(want)
    for one, other in zip(got, want, strict=True):
        assert_close(one, other.cpu(), 1e-10)


@each_op
@pytest.mark.parametrize(
    "in_dims", [(0, None, None), (None, 0, None), (0, 0, None), (None, None, 0), (0, 1, 0)], ids=str
)
@pytest.mark.parametrize("roles", [(False, False, False), (False, True, False), (True, True, False)], ids=role_id)
def test_vmap(op: Op, in_dims: tuple[int | None, ...], roles: tuple[bool, ...], device: str) -> None:
    case = small(op, roles, device=device)
    inputs = [
        t if dim is None else torch.stack([t, -2 * t, t + 1], dim=dim)
        for t, dim in zip((case.x, case.y, case.scale), in_dims, strict=True)
    ]
    want = vmap(case.oracle, in_dims)(*inputs)

    got = vmap(case.run, in_dims)(*inputs)

    assert_close(got, want.cpu(), 1e-12)


@each_op
def test_vmap_over_gradients(op: Op, device: str) -> None:
    case = small(op, device=device)
    batch = torch.stack([case.x, case.x + 1, 2 * case.x])
    gradients = lambda f: vmap(grad(lambda x: f(x, case.y, case.scale).square().sum()))(batch)

    assert_close(gradients(case.run), gradients(case.oracle).cpu(), 1e-11)


@pytest.mark.parametrize("in_dims", [(0, None), (None, 0), (0, 0)], ids=str)
def test_vmap_of_sparse_scale(in_dims: tuple[int | None, ...], device: str) -> None:
    info = sparse_scale_infos([0, 2, 2], [1, 0, 1], None, 3, 2)[0].to(device)
    x, scale = random_values([4, 2, 2], torch.float64, 1, device), random_values([4, 3], torch.float64, 2, device)
    inputs = [t if dim == 0 else t[0] for t, dim in zip((x, scale), in_dims, strict=True)]
    pick = lambda t, dim, i: t[i] if dim == 0 else t

    got = vmap(lambda x, s: sparse_scale(x, info.with_scale(s)), in_dims)(*inputs)

    for i in range(4):
        x_i, s_i = (pick(t, dim, i) for t, dim in zip(inputs, in_dims, strict=True))
        assert torch.equal(got[i], sparse_scale(x_i, info.with_scale(s_i)))


def step(function, *inputs: Tensor) -> list[Tensor]:
    """Value and gradients of a function of leaves."""
    fresh = [t.detach().clone().requires_grad_() for t in inputs]
    z = function(*fresh)
    z.square().sum().backward()
    return [z.detach(), *(t.grad for t in fresh)]


def assert_compiles_to_the_same(function, *inputs: Tensor, backend: str, **options: object) -> None:
    torch._dynamo.reset()
    want = step(function, *inputs)

    got = step(torch.compile(function, fullgraph=True, backend=backend, **options), *inputs)

    for one, other in zip(got, want, strict=True):
        assert_close(one, other.cpu(), 1e-11)


@each_op
@each_roles_and_some_given
def test_compile(op: Op, roles: tuple[bool, ...], given: bool, device: str) -> None:
    case = small(op, roles, device=device)
    sizes = case.x.shape[-1 - len(op.x)], case.y.shape[-1 - len(op.y)]
    backward = derive_backward(case.info, *sizes)[1:] if given else (None, None)
    function = lambda x, y, s: op.function(x, y, case.info.with_scale(s), *backward, out_accumulated=case.accumulated)

    assert_compiles_to_the_same(function, case.x, case.y, case.scale, backend="aot_eager")


@each_op
@pytest.mark.parametrize("kept", [False, True], ids=["derived_in_the_graph", "kept_by_an_eager_step"])
def test_compile_derives_only_what_is_not_kept(op: Op, kept: bool, device: str) -> None:
    case = small(op, device=device)
    function = lambda x, y: op.function(x, y, case.info)
    inputs = (case.x, case.y)
    want = step(function, *inputs)
    if not kept:
        case.info._derived.clear()
    called: list[str] = []

    def note(graph: GraphModule, _inputs: object) -> object:
        called.extend(str(node.target) for node in graph.graph.nodes)
        return make_boxed_func(graph.forward)

    torch._dynamo.reset()
    got = step(torch.compile(function, fullgraph=True, backend=aot_autograd(fw_compiler=note)), *inputs)

    assert any("derive_plan" in target for target in called) == (not kept)
    for one, other in zip(got, want, strict=True):
        assert_close(one, other.cpu(), 1e-11)


@each_op
def test_compile_with_the_info_as_an_argument(op: Op, device: str) -> None:
    case = small(op, device=device)
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, y, info: op.function(x, y, info), fullgraph=True, backend="aot_eager")

    assert torch.equal(compiled(case.x, case.y, case.info), op.function(case.x, case.y, case.info))


def test_compile_of_sparse_scale(device: str) -> None:
    info = sparse_scale_infos([0, 2, 2], [1, 0, 1], None, 3, 2)[0].to(device)
    x, scale = random_values([4, 2, 2], torch.float64, 1, device), random_values([3], torch.float64, 2, device)

    assert_compiles_to_the_same(lambda x, s: sparse_scale(x, info.with_scale(s)), x, scale, backend="aot_eager")


@pytest.mark.slow
def test_compile_with_inductor(device: str) -> None:
    case = small(OPS["vecmat"], device=device)
    function = lambda x, y, s: torch.relu(case.run(x.sin(), y, s)) * 2

    assert_compiles_to_the_same(function, case.x, case.y, case.scale, backend="inductor")


@each_op
@pytest.mark.parametrize("shared", [False, True], ids=["batched", "shared2"])
def test_compile_once_for_every_batch_size(op: Op, shared: bool, device: str) -> None:
    case = small(op, (False, shared, False), device=device)
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(lambda x, y: op.function(x, y, case.info), fullgraph=True, backend=counter, dynamic=True)

    for batch in (97, 101, 103):  # unlike all other sizes and numbers of plans, which torch would take for the same
        x = case.x[:1].expand(batch, *case.x.shape[1:]).clone().requires_grad_()
        y = case.y if shared else case.y[:1].expand(batch, *case.y.shape[1:]).clone()
        # Eagerly first: the plans of gradients are kept then, and a graph asks whether they are.
        want = op.function(x, y, case.info)
        want_grad = torch.autograd.grad(want.sum(), x)[0]
        got = compiled(x, y)
        assert torch.equal(got, want)
        assert torch.equal(torch.autograd.grad(got.sum(), x)[0], want_grad)

    assert counter.frame_count == 1


@pytest.mark.parametrize("needs_grad", [False, True], ids=["value", "gradient"])
def test_one_graph_serves_the_infos_of_one_size(needs_grad: bool, device: str) -> None:
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(sparse_mul, fullgraph=True, backend=counter)
    generator = torch.Generator().manual_seed(0)

    for _ in range(12):  # more than torch compiles of one function
        index = torch.randint(0, 4, (3, 50), generator=generator)
        infos = [info.to(device) for info in sparse_product_infos(*index, None, 4, 4, 4)]
        x = random_values([3, 4, 7], torch.float64, 1, device).requires_grad_(needs_grad)
        got, want = compiled(x, x, *infos), sparse_mul(x, x, *infos)
        assert torch.equal(got, want)
        if needs_grad:
            assert torch.equal(*(torch.autograd.grad(z.square().sum(), x)[0] for z in (got, want)))

    assert counter.frame_count <= 2
    with pytest.raises(Exception, match="does not hold the same terms as info_fwd"):
        compiled(x.requires_grad_(), x, infos[0], infos[2], infos[1])


@pytest.mark.parametrize("needs_grad", [False, True], ids=["value", "gradient"])
def test_compile_once_for_every_number_of_rows(needs_grad: bool, device: str) -> None:
    info, eager_info = (SparseProductInfo(index1=[0, 1], index2=[1, 0]).to(device) for _ in range(2))
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(lambda x: sparse_mul(x, x, info), fullgraph=True, backend=counter, dynamic=True)

    for rows in (5, 6, 9):
        x = random_values([3, rows, 7], torch.float64, rows, device).requires_grad_(needs_grad)
        got, want = compiled(x), sparse_mul(x, x, eager_info)
        assert torch.equal(got, want)
        if needs_grad:
            assert torch.equal(*(torch.autograd.grad(z.square().sum(), x)[0] for z in (got, want)))

    assert counter.frame_count == 1


class Layer(nn.Module):
    """A small model that holds infos."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(random_values([3, 4, 4], torch.float32, 1))
        self.infos = sparse_product_infos([0, 1, 2], [2, 1, 0], [0, 1, 1], [1.0, 2.0, 3.0], 2, 3, 3)
        self.mix = sparse_scale_infos([0, 1, 1], [0, 0, 1], [1.0, 2.0, 3.0], 2, 2)

    def forward(self, x: Tensor) -> Tensor:
        z = lacewing.sparse_vecmat(x, self.weight, *self.infos)
        return sparse_scale(torch.relu(z), *self.mix)


def test_export_of_a_module() -> None:
    layer, x = Layer(), random_values([5, 3, 4], torch.float32, 2)

    exported = torch.export.export(layer, (x,))

    assert torch.equal(exported.module()(x), layer(x))


def test_export_with_a_dynamic_batch_survives_saving() -> None:
    layer, x = Layer(), random_values([5, 3, 4], torch.float32, 2)
    buffer = io.BytesIO()

    exported = torch.export.export(layer, (x,), dynamic_shapes=({0: torch.export.Dim("N", min=2)},))
    torch.export.save(exported, buffer)
    buffer.seek(0)

    other = random_values([9, 3, 4], torch.float32, 3)
    assert torch.equal(torch.export.load(buffer).module()(other), layer(other))


@pytest.mark.parametrize("copier", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["deepcopy", "pickle"])
def test_modules_that_hold_infos_are_copied(copier) -> None:
    layer, x = Layer(), random_values([5, 3, 4], torch.float32, 2)
    layer(x).sum().backward()

    other = copier(layer)
    other.zero_grad()
    other(x).sum().backward()

    assert torch.equal(other.weight.grad, layer.weight.grad)


@pytest.mark.parametrize("name", ["outer", "inner", "vecmat", "mat_t_vec"])
def test_autocast_lowers_contractions(name: str, device: str) -> None:
    op = OPS[name]
    case = make_case(op, dtype=torch.float32, device=device)
    low = torch.bfloat16 if device == "cpu" else torch.float16
    x = case.x.requires_grad_()

    with torch.autocast(device, dtype=low):
        z = op.function(x, case.y, case.info)
    z.float().sum().backward()

    assert z.dtype == low
    assert torch.equal(z, op.function(case.x.to(low), case.y.to(low), case.info))
    assert x.grad.dtype == torch.float32


@pytest.mark.parametrize("name", ["mul", "vecsca", "scavec"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
def test_autocast_leaves_elementwise_products_to_promotion(name: str, dtype: torch.dtype, device: str) -> None:
    op = OPS[name]
    case = make_case(op, dtype=torch.float32, device=device)
    y = case.y.to(dtype)

    with torch.autocast(device, dtype=torch.bfloat16):
        z = op.function(case.x, y, case.info)

    assert z.dtype == torch.float32
    assert torch.equal(z, op.function(case.x, y, case.info))


def test_autocast_leaves_sparse_scale_alone(device: str) -> None:
    info = sparse_scale_infos([0, 1], [1, 0], [1.0, 2.0])[0].to(device)
    x = random_values([2, 2, 3], torch.float32, 1, device)

    with torch.autocast(device, dtype=torch.bfloat16):
        z = sparse_scale(x, info)

    assert torch.equal(z, sparse_scale(x, info))


def test_infos_pass_through_pytrees() -> None:
    info = SparseProductInfo([1.0, 2.0], [0, 1], [1, 0], [0, 2])

    doubled = torch.utils._pytree.tree_map(lambda t: t.clone() if isinstance(t, Tensor) else t, info)

    assert isinstance(doubled, SparseProductInfo)
    assert repr(doubled) == repr(info)
