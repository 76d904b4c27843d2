"""What reaches the registered ops and the builders with arguments at the edge: never a crash, never a silent answer."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

import lacewing
from lacewing._plan import arguments

LARGEST = 2**63 - 1


@pytest.fixture
def operands(device: str) -> tuple[Tensor, Tensor]:
    """Two operands of three rows."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, 4, generator=generator, dtype=torch.float64)
    y = torch.randn(2, 3, 4, generator=generator, dtype=torch.float64)
    return x.to(device), y.to(device)


def info_on(device: str) -> lacewing.SparseProductInfo:
    info: lacewing.SparseProductInfo = lacewing.sparse_product_info([0, 1, 2, 0], [1, 2, 0, 0], [0, 1, 1, 3]).to(device)
    return info


def test_an_empty_gather_index_selects_nothing(operands: tuple[Tensor, Tensor], device: str) -> None:
    info = lacewing.SparseProductInfo(index1=[0, 0], index2=[0, 0], gather_index=[], out_size=3).to(device)
    assert torch.equal(lacewing.sparse_mul(*operands, info), torch.zeros_like(operands[0]))

    none = lacewing.SparseProductInfo(index1=[0, 0], index2=[0, 0], gather_index=[]).to(device)
    assert lacewing.sparse_mul(*operands, none).shape == (2, 0, 4)
    assert lacewing.indexed_mul_scale_gather(*operands, None, [0, 0], [0, 0], None, []).shape == (2, 0, 4)
    assert lacewing.SparseProductInfo(index1=[0], index2=[0], gather_index=[], out_size=0).out_size == 0
    scale = lacewing.SparseScaleInfo(index=[0, 0], gather_index=[], out_size=0).to(device)
    assert lacewing.sparse_scale(operands[0], scale).shape == (2, 0, 4)


@pytest.mark.parametrize(
    ("argument", "build"),
    [
        ("index1", lambda: lacewing.sparse_product_info([LARGEST], [0], [0])),
        ("index", lambda: lacewing.sparse_product_infos([0, 0], [0, 0], [0, LARGEST], in1_size=3)),
        ("index2", lambda: lacewing.SparseProductInfo(index2=[LARGEST])),
        ("index_out", lambda: lacewing.SparseProductInfo(index_out=[LARGEST], out_size=3)),
        ("gather_index", lambda: lacewing.SparseProductInfo(gather_index=[LARGEST], index1=[0])),
        ("index", lambda: lacewing.SparseScaleInfo(index=[LARGEST])),
    ],
)
def test_the_largest_integer_is_no_index(argument: str, build: Callable[[], object]) -> None:
    with pytest.raises(RuntimeError, match=rf"\] {argument}\[\d\] = {LARGEST} is too large: indices must be below"):
        build()


def test_transforms_leave_nothing_behind_on_the_info(operands: tuple[Tensor, Tensor], device: str) -> None:
    x = operands[0]
    info = info_on(device)

    def energy(a: Tensor) -> Tensor:
        return lacewing.sparse_mul(a, a, info).pow(2).sum()

    first = torch.func.hessian(energy)(x)
    assert torch.equal(torch.func.hessian(energy)(x), first)
    assert torch.func.jacrev(torch.func.grad(energy))(x).shape == (*x.shape, *x.shape)
    leaf = x.clone().requires_grad_()
    energy(leaf).backward()
    assert torch.allclose(torch.func.grad(energy)(x), leaf.grad)

    scale = lacewing.SparseScaleInfo(index=[0, 2], seg_out=[0, 2]).to(device)
    for _ in range(2):
        second = torch.func.grad(
            lambda a: torch.func.grad(lambda b: lacewing.sparse_scale(b, scale).pow(3).sum())(a).sum()
        )
        assert second(x).shape == x.shape
        assert torch.func.grad(lambda a: lacewing.sparse_scale(a, scale).sum())(x).shape == x.shape


def test_a_list_of_coefficients_keeps_double_precision(operands: tuple[Tensor, Tensor], device: str) -> None:
    info = lacewing.sparse_product_info([0, 1], [0, 1], [0, 1], [1 / 3, 2 / 3]).to(device)
    x, y = operands
    thirds = torch.tensor([1 / 3, 2 / 3], dtype=torch.float64, device=device).view(2, 1)
    torch.testing.assert_close(lacewing.sparse_mul(x, y, info), thirds * x[:, :2] * y[:, :2], rtol=1e-15, atol=1e-15)
    assert lacewing.sparse_mul(x.float(), y.float(), info).dtype == torch.float32


def test_descriptions_that_do_not_fit_the_plan_are_refused(operands: tuple[Tensor, Tensor], device: str) -> None:
    x, y = operands
    plan = info_on(device)._plan
    with pytest.raises(
        RuntimeError, match=r"\[lacewing.sparse_mul\] sizes do not describe the plan, an array of 1 int"
    ):
        lacewing.ops.sparse_mul(x, y, None, [plan.array[:1]], plan.sizes, False)
    with pytest.raises(RuntimeError, match=r"\[lacewing.sparse_mul\] sizes do not describe the plan"):
        lacewing.ops.sparse_mul(x, y, None, [plan.array.long()], plan.sizes, False)
    ten = r"\[lacewing.sparse_mul\] sizes must have 10 integers for each array of the plan, not "
    with pytest.raises(RuntimeError, match=ten + "3 for 1"):
        lacewing.ops.sparse_mul(x, y, None, [plan.array], plan.sizes[:3], False)
    leaf = x.clone().requires_grad_()
    with pytest.raises(RuntimeError, match=ten + "12 for 2"):
        lacewing.ops.sparse_mul(leaf, y, None, [plan.array] * 2, [*plan.sizes, 1, 2], False)
    with pytest.raises(RuntimeError, match=r"\[lacewing.sparse_mul\] plan must be 1 to 3 arrays, not 0"):
        lacewing.ops.sparse_mul(x, y, None, [], [], False)
    with pytest.raises(RuntimeError, match=r"\[lacewing.sparse_mul\] plan must begin with the plan of the value"):
        lacewing.ops.sparse_mul(x, y, None, [plan.array], [-2] * 10, False)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda x: lacewing.ops.plan_rows([]), "sizes must have 10 integers, not 0"),
        (lambda x: lacewing.ops.plan_fields(torch.zeros(3), [1, 2]), "sizes must have 10 integers, not 2"),
        (lambda x: lacewing.ops.plan_serves([0] * 10, [], 1), "sizes must have 10 integers, not 0"),
        (lambda x: lacewing.ops.backward_plans(x, [], 3, 3), "sizes must have 10 integers, not 0"),
        (lambda x: lacewing.ops.backward_plans_by_term(x, [], 3, 3), "sizes must have 10 integers, not 0"),
        (lambda x: lacewing.ops.derive_plan(x, [0] * 9, 1, 3, False), "sizes must have 10 integers, not 9"),
        (lambda x: lacewing.ops.derive_plan(x, [0] * 10, 7, 3, False), "view must be 1 or 2, not 7"),
        (
            lambda x: lacewing.ops.product_workspace(99, x, x, [info_on("cpu")._plan.array], [0] * 10, False),
            r"kind must lie in \[0, \d+\], not 99",
        ),
        (
            lambda x: lacewing.ops.product_scale_grad(
                -1, x.clone().requires_grad_(), x, x, *arguments(info_on("cpu")._plan), False
            ),
            r"kind must lie in \[0, \d+\], not -1",
        ),
    ],
)
def test_raw_ops_refuse_what_they_cannot_read(call: Callable[[Tensor], object], sentence: str) -> None:
    with pytest.raises(RuntimeError, match=sentence):
        call(torch.ones(1, 3, 2))


def test_absent_segments_count_as_many_as_there_are_terms(operands: tuple[Tensor, Tensor], device: str) -> None:
    x = operands[0]
    with pytest.raises(ValueError, match="seg_out has 2 segments but out_size is 5"):
        lacewing.indexed_scale_segment(x, None, [0, 1], None, out_size=5)
    assert torch.equal(lacewing.indexed_scale_segment(x, None, None, None, out_size=3), x)
    out = torch.empty_like(x)
    assert torch.equal(lacewing.indexed_scale_segment(x, None, None, None, out=out), x)


def test_an_info_of_a_size_alone_needs_operands_of_equal_rows(device: str) -> None:
    x, y = torch.ones(2, 3, 4, device=device), torch.ones(2, 4, 4, device=device)
    with pytest.raises(ValueError, match="as many rows of input1 as of input2, not 3 and 4"):
        lacewing.sparse_mul(x, y, lacewing.SparseProductInfo(out_size=5).to(device))


@pytest.mark.parametrize(
    "call",
    [
        lambda x, info: lacewing.derive_backward(None, 1, 1),
        lambda x, info: lacewing.derive_backward(info, None, 3),
        lambda x, info: lacewing.derive_backward(info, -1, 3),
        lambda x, info: lacewing.workspace_bytes("sparse_mul", x, None, info),
        lambda x, info: lacewing.workspace_bytes("sparse_mul", x, x, None),
        lambda x, info: lacewing.indexed_mul_scale_gather([1.0], x),
        lambda x, info: lacewing.indexed_scale_segment([1.0], None, [0], [0, 1]),
        lambda x, info: lacewing.indexed_scale_segment(x, None, [0], [0, 1], out=[1]),
    ],
)
def test_arguments_of_another_type_get_a_sentence(call: Callable[[Tensor, object], object]) -> None:
    with pytest.raises((TypeError, ValueError), match=r"^\[lacewing\.\w+\] \w+ must be "):
        call(torch.ones(1, 3, 2), info_on("cpu"))


def test_infos_are_not_built_from_tensors_without_values() -> None:
    with pytest.raises(RuntimeError, match="index1 has no values here: an info is built from them"):
        lacewing.sparse_product_info(torch.zeros(3, dtype=torch.long, device="meta"))


def test_fields_are_copies(device: str) -> None:
    info = lacewing.sparse_product_info([1, 0], torch.tensor([0, 2**33]), [0, 0]).to(device)
    for name in ("seg_out", "gather_index", "index1", "index2"):
        field = getattr(info, name)
        if field is not None:
            field.fill_(7)
    assert info.seg_out.tolist() == [0, 2]
    assert info.index1.tolist() == [1, 0]
    assert info.index2.tolist() == [0, 2**33]


def test_torch_load_takes_infos_with_its_default(device: str) -> None:
    for info in (info_on(device), lacewing.SparseScaleInfo([0.5], [0], [0, 1]).to(device)):
        file = io.BytesIO()
        torch.save(info, file)
        file.seek(0)
        assert repr(torch.load(file)) == repr(info)


def test_export_with_an_info_as_argument(operands: tuple[Tensor, Tensor], device: str) -> None:
    class Module(torch.nn.Module):
        def forward(self, x: Tensor, y: Tensor, info: lacewing.SparseProductInfo) -> Tensor:
            return lacewing.sparse_mul(x, y, info)

    arguments = (*operands, info_on(device))
    program = torch.export.export(Module(), arguments)
    assert torch.equal(program.module()(*arguments), lacewing.sparse_mul(*arguments))


def test_infos_as_one_argument(operands: tuple[Tensor, Tensor], device: str) -> None:
    class Module(torch.nn.Module):
        def forward(self, x: Tensor, y: Tensor, infos: lacewing.SparseProductInfos) -> Tensor:
            return lacewing.sparse_mul(x, y, infos)

    x, y = (operand.clone().requires_grad_() for operand in operands)
    infos = lacewing.derive_backward(info_on(device), x.shape[1], y.shape[1])
    want = lacewing.sparse_mul(x, y, *infos)
    file = io.BytesIO()

    got = Module()(x, y, infos)
    torch.export.save(torch.export.export(Module(), (x, y, infos)), file)
    file.seek(0)
    loaded = torch.export.load(file).module()(x, y, infos)

    assert torch.equal(got, want)
    assert torch.equal(loaded, want)
    assert torch.equal(*(torch.autograd.grad(z.sum(), x)[0] for z in (got, want)))
    for wrong in (tuple(infos), [infos]):
        with pytest.raises(TypeError, match="info_fwd must be a SparseProductInfo, or SparseProductInfos alone, not "):
            lacewing.sparse_mul(x, y, wrong)
    with pytest.raises(TypeError, match="info_fwd must be a SparseProductInfo, or SparseProductInfos alone, not "):
        lacewing.sparse_mul(x, y, infos, infos.bwd1)


def test_the_infos_of_a_scale_as_one_argument(device: str) -> None:
    infos = lacewing.sparse_scale_infos([0, 2, 2], [1, 0, 3], [1.0, 2.0, 3.0], 3, 4)
    moved = type(infos)(*(info.to(device) for info in infos))
    x = torch.ones(2, 4, 3, device=device)

    assert torch.equal(lacewing.sparse_scale(x, moved), lacewing.sparse_scale(x, *moved))
    with pytest.raises(TypeError, match="info_fwd must be a SparseScaleInfo, or SparseScaleInfos alone, not "):
        lacewing.sparse_scale(x, moved, moved.bwd)


def test_plans_are_kept_for_a_few_sizes_only(device: str) -> None:
    info = info_on(device)
    for rows in range(3, 103):
        x = torch.ones(1, rows, 2, device=device, requires_grad=True)
        lacewing.sparse_mul(x, x, info).sum().backward()
    assert len(info._derived) <= 32


def test_leading_dims_without_a_common_stride_are_counted(device: str) -> None:
    x = torch.ones(2, 5, 3, 8, device=device).transpose(0, 1)
    info = lacewing.SparseScaleInfo(index=[0, 1, 2, 0], seg_out=[0, 2, 4]).to(device)
    assert lacewing.workspace_bytes("sparse_scale", x, None, info) == x.nbytes
    assert lacewing.workspace_bytes("sparse_scale", x.contiguous(), None, info) == 0


@pytest.mark.parametrize(
    ("variable", "value", "sentence"),
    [
        ("LACEWING_CPU_ISA", "foo", "LACEWING_CPU_ISA must be baseline, avx2 or avx512, not foo"),
        ("LACEWING_BACKEND", "foo", "LACEWING_BACKEND must be automatic or reference, not foo"),
        ("LACEWING_CPU_ISA", "", None),
        ("LACEWING_BACKEND", "", None),
    ],
)
def test_environment_variables(variable: str, value: str, sentence: str | None) -> None:
    program = "import lacewing; print(lacewing.cpu_isa(), lacewing.get_backend())"
    package = str(Path(lacewing.__file__).parent.parent)
    environment = {**os.environ, "PYTHONPATH": package, variable: value}
    run = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    if sentence is None:
        assert run.returncode == 0, run.stderr
        assert run.stdout.split()[1] == "automatic"
    else:
        assert run.returncode != 0
        assert sentence in run.stderr
