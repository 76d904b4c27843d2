"""What a product runs and what it allocates: its own kernels, its output, and a small workspace."""

from __future__ import annotations

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from lacewing import sparse_product_infos
from products_support import OPS, ROLES, Op, make_case, role_id

each_op = pytest.mark.parametrize("op", OPS.values(), ids=OPS.keys())

real_and_complex = pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=["f32", "c64"])

VIEWS = {
    "aten::transpose",
    "aten::as_strided",
    "aten::t",
    "aten::detach",
    "detach",
    "aten::view",
    "aten::expand",
    "aten::unsqueeze",
    "aten::alias",
    "aten::empty",
    "aten::empty_strided",
    "aten::promote_types",
    "aten::conj",
    "aten::_conj",
    "aten::to",
    "aten::accumulate_grad",
}
"""Ops that move no data."""


def executed(run) -> list[str]:
    """Names of the ops that ran, without autograd's own marks."""
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        run()
    names = [event.name for event in recorded.events()]
    marks = ("autograd::engine", "torch::autograd", "LacewingBackward", "ProfilerStep", "cuda", "[memory]")
    return [name for name in names if not name.startswith(marks) and ("::" in name or name in VIEWS)]


def infos_of(case, device: str):
    """Infos of the case's indices with three outputs."""
    rows = [t % 3 for t in range(case.entries)]
    in1, in2 = case.x.shape[-1 - len(case.op.x)], case.y.shape[-1 - len(case.op.y)]
    infos = sparse_product_infos(case.fields.index1, case.fields.index2, rows, case.scale, 3, in1, in2)
    return [info.to(device) for info in infos]


@each_op
@pytest.mark.parametrize("roles", ROLES, ids=role_id)
@real_and_complex
def test_forward_runs_one_kernel(op: Op, roles: tuple[bool, ...], dtype: torch.dtype, device: str) -> None:
    case = make_case(op, ("seg_out", "gather_index", "index_out"), roles, dtype, device)
    fwd, bwd1, bwd2 = infos_of(case, device)
    run = lambda: op.function(case.x, case.y, fwd, bwd1, bwd2, roles[2])
    run()

    names = executed(run)

    assert [name for name in names if name.startswith("lacewing::")] == [f"lacewing::sparse_{op.name}"]
    assert set(names) - VIEWS == {f"lacewing::sparse_{op.name}"}


@each_op
@pytest.mark.parametrize("roles", ROLES, ids=role_id)
@pytest.mark.parametrize("with_scale", [False, True], ids=["fixed_scale", "trained_scale"])
@real_and_complex
def test_backward_runs_one_kernel_for_each_gradient(
    op: Op, roles: tuple[bool, ...], with_scale: bool, dtype: torch.dtype, device: str
) -> None:
    case = make_case(op, ("seg_out", "gather_index", "index_out"), roles, dtype, device)
    fwd, bwd1, bwd2 = infos_of(case, device)
    inputs = [case.x.requires_grad_(), case.y.requires_grad_()]
    if with_scale:
        inputs.append(fwd.scale.requires_grad_())
    z = op.function(case.x, case.y, fwd, bwd1, bwd2, roles[2])
    upstream = torch.ones_like(z)
    run = lambda: torch.autograd.grad(z, inputs, upstream, retain_graph=True)
    run()

    names = executed(run)

    ours = [name for name in names if name.startswith("lacewing::")]
    assert ours.count("lacewing::sparse_product_backward") == 1
    assert len(ours) == 1 + len(inputs)
    assert set(names) - VIEWS == set(ours)


@each_op
def test_gradient_of_one_operand_runs_one_kernel(op: Op, device: str) -> None:
    case = make_case(op, dtype=torch.float32, device=device)
    x = case.x.requires_grad_()
    z = op.function(x, case.y, case.info)
    upstream = torch.ones_like(z)

    names = executed(lambda: torch.autograd.grad(z, x, upstream))

    assert len([name for name in names if name.startswith("lacewing::")]) == 1


def test_plans_of_gradients_are_derived_once(device: str) -> None:
    case = make_case(OPS["vecmat"], dtype=torch.float32, device=device)
    plan = case.info._plan
    inputs = [t.detach().requires_grad_() for t in (case.x, case.y, case.scale)]
    z = torch.ops.lacewing.sparse_vecmat(*inputs, [plan.array], plan.sizes, False)

    names = executed(lambda: torch.autograd.grad(z.square().sum(), inputs))

    assert names.count("lacewing::derive_plan") == 2


def peak_beyond(run) -> int:
    """Bytes that a call holds at its highest, beyond what was there before."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        kept = run()
    events = [e for e in recorded.profiler.kineto_results.events() if e.name() == "[memory]"]
    level = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        level += event.nbytes()
        peak = max(peak, level)
    del kept
    return peak


@each_op
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64], ids=["f32", "f64", "c64"])
def test_peak_memory_is_the_outputs(op: Op, dtype: torch.dtype, device: str) -> None:
    """Forward and backward allocate z, the two gradients, and at most a small workspace."""
    case = make_case(op, ("seg_out", "gather_index", "index_out"), (False,) * 3, dtype, device, 256, 32, 4, 1, 60, 9)
    fwd, bwd1, bwd2 = infos_of(case, device)
    x, y = case.x.requires_grad_(), case.y.requires_grad_()
    z = op.function(x, y, fwd, bwd1, bwd2)
    upstream = torch.ones_like(z)
    outputs = sum(t.numel() * t.element_size() for t in (z, x, y))

    def step():
        z = op.function(x, y, fwd, bwd1, bwd2)
        return z, torch.autograd.grad(z, (x, y), upstream)

    step()

    peak = peak_beyond(step)

    assert outputs <= peak <= outputs + 64 * 1024
