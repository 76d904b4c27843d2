"""Sparse tensors in programs: modules, copies, custom functions, tracing, collectives. Nothing is lost in silence."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import lacewing

COO = lacewing.sparse_coo_tensor
INDICES = torch.tensor([[0, 1, 2], [1, 0, 2]])


def matrix(**options: Any) -> lacewing.SparseTensor:
    return COO(INDICES, torch.tensor([1.0, 2.0, 3.0]), (3, 4), **options)


class Holder(nn.Module):
    """Holds a parameter and a sparse tensor that was made of it."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))
        self.sparse = COO(INDICES, self.w, (3, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.sparse @ x


class Maker(nn.Module):
    """Holds a parameter and the places of its values, and makes the tensor in forward."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))
        self.places = matrix()

    def forward(self, x: Tensor) -> Tensor:
        return self.places.with_values(self.w) @ x


# Tracing


TRACERS: dict[str, Callable[[Any, Tensor], Any]] = {
    "make_fx": lambda f, x: torch.fx.experimental.proxy_tensor.make_fx(f)(x),
    "make_fx of fake tensors": lambda f, x: torch.fx.experimental.proxy_tensor.make_fx(f, tracing_mode="fake")(x),
    "export": lambda f, x: torch.export.export(Called(f), (x,), strict=False),
    "jit.trace": lambda f, x: torch.jit.trace(f, x),
    "linearize": lambda f, x: torch.func.linearize(f, x),
}


class Called(nn.Module):
    def __init__(self, f: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.f = f

    def forward(self, x: Tensor) -> Tensor:
        return self.f(x)


@pytest.mark.parametrize("tracer", TRACERS)
def test_a_trace_of_a_sparse_tensor_is_refused(tracer: str) -> None:
    s, x = matrix(), torch.ones(4, 2)

    with pytest.raises(Exception, match=r"\[lacewing.SparseTensor\] a sparse tensor cannot be traced"):
        TRACERS[tracer](lambda x: s @ x, x)

    assert torch.equal(s @ x, s.to_dense() @ x)


@pytest.mark.parametrize("tracer", ["make_fx", "jit.trace"])
def test_a_sparse_tensor_made_in_a_trace_is_refused(tracer: str) -> None:
    with pytest.raises(RuntimeError, match="a sparse tensor cannot be traced"):
        TRACERS[tracer](lambda v: COO(INDICES, v, (3, 4)) @ torch.ones(4, 2), torch.ones(3))


def test_dlpack_gets_a_sentence() -> None:
    with pytest.raises(RuntimeError, match=r"\[lacewing.SparseTensor\] a sparse tensor has no memory of its own"):
        torch.utils.dlpack.to_dlpack(matrix())


# Copies, and modules that hold a sparse tensor


def test_a_copied_module_has_its_parameter_in_its_sparse_tensor() -> None:
    module, x = Holder(), torch.ones(4, 2)

    copied = copy.deepcopy(module)
    copied(x).sum().backward()
    with torch.no_grad():
        copied.w.mul_(2)

    assert copied.sparse.values() is copied.w
    assert copied.w.grad is not None
    assert module.w.grad is None
    assert torch.equal(copied(x), 2 * module(x))


def test_a_saved_module_has_its_parameter_in_its_sparse_tensor() -> None:
    module, file = Holder(), io.BytesIO()

    torch.save(module, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)

    assert loaded.sparse.values() is loaded.w
    assert torch.equal(loaded.sparse.to_dense(), module.sparse.to_dense())


def test_a_copied_fill_is_copied_once() -> None:
    fill = torch.tensor(2.0, requires_grad=True)

    s, copied = copy.deepcopy([matrix(fill_value=fill), fill])

    assert s.fill_value is copied


def test_an_averaged_model_is_that_of_its_parameters() -> None:
    module, x = Holder(), torch.ones(4, 2)
    averaged = torch.optim.swa_utils.AveragedModel(module)

    averaged.update_parameters(module)
    with torch.no_grad():
        module.w.mul_(3)
    averaged.update_parameters(module)

    assert torch.equal(averaged(x), 2 / 3 * module(x))


@pytest.mark.parametrize("copied", [copy.deepcopy, copy.copy, lambda s: torch.load(saved(s))])
def test_copies_keep_attributes(copied: Callable[[Tensor], Tensor]) -> None:
    s = matrix()
    s.note = [1, 2]  # type: ignore[attr-defined]

    found = copied(s)

    assert found.note == [1, 2]  # type: ignore[attr-defined]
    assert torch.equal(found.to_dense(), s.to_dense())


def saved(s: Tensor) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(s, file)
    file.seek(0)
    return file


def test_with_values_follows_a_parameter_that_is_exchanged() -> None:
    module, x = Maker(), torch.randn(4, 2)
    other = {"w": torch.tensor([3.0, -1.0, 2.0])}
    wanted = COO(INDICES, other["w"], (3, 4)) @ x

    swapped = torch.func.functional_call(module, other, (x,))
    module.load_state_dict(other, assign=True)

    assert torch.equal(swapped, wanted)
    assert torch.equal(module(x), wanted)


def test_a_parameter_by_with_values_trains() -> None:
    module, x = Maker(), torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    target = COO(INDICES, torch.tensor([0.5, -1.0, 0.0]), (3, 4)) @ x
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)

    losses = []
    for _ in range(300):
        optimizer.zero_grad()
        loss = (module(x) - target).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    assert losses[-1] < 1e-3 * losses[0]


def test_with_values_keeps_places_fill_and_format() -> None:
    s = matrix(fill_value=9.0).to_gcs()

    found = s.with_values(torch.tensor([5.0, 6.0, 7.0], dtype=torch.float64))

    assert (found.format, found.nse, found.dtype) == ("gcrs", 3, torch.float64)
    assert found.fill_value == 9.0
    assert torch.equal(found.to_dense() != 9, s.to_dense() != 9)


@pytest.mark.parametrize("values", [torch.ones(2), torch.ones(()), lacewing.to_sparse(torch.ones(3))], ids=str)
def test_with_values_of_another_count_are_refused(values: Tensor) -> None:
    with pytest.raises(RuntimeError, match=r"\[lacewing.with_values\] values must be a strided tensor of shape \(3, "):
        matrix().with_values(values)


def test_a_sparse_parameter_is_refused_at_once() -> None:
    with pytest.raises(TypeError, match=r"cannot be an nn.Parameter: .* use S.with_values\(w\) in forward"):
        nn.Parameter(matrix())
    with pytest.raises(TypeError, match=r"cannot be an nn.Parameter"):
        nn.Parameter(matrix(), requires_grad=False)


# Custom functions


class Product(torch.autograd.Function):
    needed: tuple[bool, ...] = ()

    @staticmethod
    def forward(ctx: Any, s: Tensor, x: Tensor) -> Tensor:
        Product.needed = ctx.needs_input_grad
        ctx.save_for_backward(s, x)
        return s @ x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:  # type: ignore[override]
        s, x = ctx.saved_tensors
        return g @ x.t(), s.t() @ g


@pytest.mark.parametrize("fill", ["number", "block", "none"])
@pytest.mark.parametrize("form", ["coo", "gcrs"])
def test_a_custom_function_gives_its_gradient_to_values_and_fill(fill: str, form: str, device: str) -> None:
    indices = torch.tensor([[0, 1, 2, 0], [1, 0, 2, 1]], device=device)
    values = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64, device=device, requires_grad=True)
    learned = torch.tensor(0.5, dtype=torch.float64, device=device, requires_grad=True)
    if fill == "block":
        indices, learned = indices[:1], torch.full((4,), 0.5, dtype=torch.float64, device=device, requires_grad=True)
        values = torch.randn(4, 4, dtype=torch.float64, device=device).requires_grad_()
    s = COO(indices, values, (5, 4), fill_value=None if fill == "none" else learned)
    s = s.to_gcs() if form == "gcrs" else s
    x = torch.randn(4, 2, dtype=torch.float64, device=device, requires_grad=True)
    leaves = [values, x] if fill == "none" else [values, x, learned]

    found = torch.autograd.grad(Product.apply(s, x).square().sum(), leaves)
    wanted = torch.autograd.grad((s.to_dense() @ x).square().sum(), leaves)

    assert Product.needed == (True, True)
    for mine, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, theirs)


class Twice(torch.autograd.Function):
    """Whose gradient is sparse."""

    @staticmethod
    def forward(ctx: Any, s: Tensor) -> Tensor:
        ctx.save_for_backward(s)
        return s.square().sum()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:  # type: ignore[override]
        return ctx.saved_tensors[0] * (2 * g)


def test_a_custom_function_may_give_a_sparse_gradient() -> None:
    values, fill = torch.tensor([1.0, 2.0, 3.0], requires_grad=True), torch.tensor(0.5, requires_grad=True)

    Twice.apply(COO(INDICES, values, (3, 4), fill_value=fill)).backward()

    assert values.grad is not None
    assert fill.grad is not None
    assert values.grad.tolist() == [2.0, 4.0, 6.0]
    assert fill.grad == 9.0


def test_a_custom_function_sees_what_requires_a_gradient_now() -> None:
    s, x = matrix(), torch.ones(4, 2)

    Product.apply(s, x)
    before = Product.needed
    s.values().requires_grad_()
    Product.apply(s, x).sum().backward()

    assert before == (False, False)
    assert Product.needed == (True, False)
    assert s.values().grad is not None


class Halved(torch.autograd.Function):
    """Whose result is sparse."""

    @staticmethod
    def forward(ctx: Any, s: Tensor) -> Tensor:
        return s / 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:  # type: ignore[override]
        return g / 2


def test_a_sparse_result_of_a_custom_function_is_refused_where_it_would_lose_its_gradient() -> None:
    s = COO(INDICES, torch.tensor([1.0, 2.0, 3.0], requires_grad=True), (3, 4))

    for use in (torch.sum, lambda t: t.to_dense(), lambda t: t @ torch.ones(4), lambda t: t.values()):
        with pytest.raises(
            RuntimeError, match=r"a sparse tensor that a custom autograd\.Function gives has no gradient"
        ):
            use(Halved.apply(s))

    assert Halved.apply(s.detach()).sum() == 3.0


# Fills


@pytest.mark.parametrize("write", ["the fill that was given", "the fill that is read"])
def test_a_fill_that_was_written_to_is_refused(write: str) -> None:
    fill = torch.tensor(2.0)
    s = matrix(fill_value=fill)
    other = s.detach()

    (fill if write == "the fill that was given" else s.fill_value).add_(1)

    for t in (s, other):
        with pytest.raises(RuntimeError, match=r"the fill of a sparse tensor was written to: it is read-only"):
            t.to_dense()


def test_an_optimizer_writes_to_a_fill_that_learns() -> None:
    fill = torch.tensor(2.0, requires_grad=True)
    s = matrix(fill_value=fill)
    optimizer = torch.optim.SGD([fill], lr=1.0)

    s.sum().backward()
    optimizer.step()

    assert fill == -7.0
    assert s.to_dense()[0, 0] == -7.0


# Tangents


PROGRAMS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "product by element": lambda s, x: (s * x).sum(),
    "sum": lambda s, x: (s * x + s).square().sum(),
    "matmul": lambda s, x: (s @ x).square().sum(),
    "linear": lambda s, x: nn.functional.linear(x, s).square().sum(),
    "sparse matmul": lambda s, x: ((s * x) @ s).square().sum(),
    "gradient": lambda s, x: torch.func.grad(lambda x: (s * x).square().sum())(x).sum(),
}


@pytest.mark.parametrize("how", PROGRAMS)
def test_tangents_form_no_tensor_of_the_whole_shape(how: str) -> None:
    n = 10**5
    generator = torch.Generator().manual_seed(0)
    indices = torch.randint(0, n, (2, 100), generator=generator)
    s = COO(indices, torch.rand(100, generator=generator), (n, n))
    x, t = torch.rand(n, generator=generator), torch.rand(n, generator=generator)

    with lacewing.densify_policy("raise", 16 << 20):
        value, tangent = torch.func.jvp(lambda x: PROGRAMS[how](s, x), (x,), (t,))

    rows, columns = indices.unique(return_inverse=True)
    small = torch.zeros(len(rows), len(rows)).index_put((columns[0], columns[1]), s.values(), accumulate=True)
    found = torch.func.jvp(lambda x: PROGRAMS[how](small, x), (x[rows],), (t[rows],))
    torch.testing.assert_close((value, tangent), found)


# Collectives


@pytest.fixture
def alone() -> Any:
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


COLLECTIVES: dict[str, Callable[[Any], Any]] = {
    "allreduce_": dist.all_reduce,
    "broadcast_": lambda s: dist.broadcast(s, 0),
    "reduce_": lambda s: dist.reduce(s, 0),
}


@pytest.mark.skipif(not dist.is_available(), reason="torch has no collectives here")
@pytest.mark.parametrize("op", COLLECTIVES)
def test_collectives_that_write_are_refused(op: str, alone: None) -> None:
    with pytest.raises(RuntimeError, match=rf"c10d::{op} does not reach a sparse tensor: give it the tensor's values"):
        COLLECTIVES[op](matrix())


@pytest.mark.skipif(not dist.is_available(), reason="torch has no collectives here")
def test_collectives_that_read_are_taken(alone: None) -> None:
    out = [torch.zeros(3, 4)]

    dist.all_gather(out, matrix())

    assert torch.equal(out[0], matrix().to_dense())


def test_products_of_torch_with_small_zeros_are_torchs_own() -> None:
    zeros = torch._efficientzerotensor((2, 3))
    other = torch.tensor([[1.0], [float("inf")], [float("nan")]])

    assert zeros.mm(other).isnan().all()
    assert zeros.mv(other[:, 0]).isnan().all()
    assert zeros[None].bmm(other[None]).isnan().all()
    assert torch.equal(zeros.mm(torch.ones(3, 4)), torch.zeros(2, 4))
