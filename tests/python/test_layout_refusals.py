"""Tensors that are not strided memory: every op of the library that cannot read them says so."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import lacewing  # noqa: F401

# Ops that make or read sparse tensors, which have sentences of their own.
OF_SPARSE_TENSORS = ("tensor_", "make_", "write_", "is_sparse_tensor", "sparse_diags")
# What it takes is for a function in Python.
CALLBACK = "etp_callback"

# What an argument that is not under test is given, by its type in the schema.
FILLERS: dict[str, object] = {
    "Tensor": torch.zeros(2, 2),
    "List[Tensor]": [],
    "List[Optional[Tensor]]": [],
    "int": 0,
    "float": 1.0,
    "bool": False,
    "str": "sum",
    "List[int]": [],
    "List[float]": [],
}

LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "coo": torch.Tensor.to_sparse,
    "csr": torch.Tensor.to_sparse_csr,
    "quantized": lambda t: torch.quantize_per_tensor(t, 1.0, 0, torch.qint8),
}


def tensor_arguments() -> list[tuple[str, int]]:
    """Every op of dense tensors with the places of its tensors."""
    names = sorted(n for n in torch._C._dispatch_get_all_op_names() if n.startswith("lacewing::"))
    found = []
    for name in (n.removeprefix("lacewing::") for n in names):
        for place, argument in enumerate(getattr(torch.ops.lacewing, name).default._schema.arguments):
            if "Tensor" in str(argument.type) and name != CALLBACK and not name.startswith(OF_SPARSE_TENSORS):
                found.append((name, place))
    return found


def filler(op: torch._ops.OpOverload, argument: torch._C.Argument) -> object:
    """A value that passes for an argument: a list of plans has one, with as many numbers as one has."""
    kind = str(argument.type)
    one_plan = any(a.name == "plan" and str(a.type) == "List[Tensor]" for a in op._schema.arguments)
    if one_plan and argument.name == "plan":
        return [torch.zeros(4, dtype=torch.int32)]
    if one_plan and argument.name == "sizes":
        return [0] * 10
    return None if kind.startswith("Optional") else FILLERS[kind]


def call_with(name: str, place: int, tensor: torch.Tensor) -> object:
    op = getattr(torch.ops.lacewing, name).default
    arguments, keywords = [], {}
    for i, argument in enumerate(op._schema.arguments):
        kind = str(argument.type)
        if i == place:
            value: object = [tensor] if kind.startswith("List") else tensor
        else:
            value = filler(op, argument)
        if argument.kwarg_only:
            keywords[argument.name] = value
        else:
            arguments.append(value)
    return op(*arguments, **keywords)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
@pytest.mark.parametrize(("name", "place"), tensor_arguments(), ids=lambda value: str(value))
def test_every_op_refuses(name: str, place: int, layout: Callable[[torch.Tensor], torch.Tensor]) -> None:
    tensor = layout(torch.eye(2))
    argument = getattr(torch.ops.lacewing, name).default._schema.arguments[place].name

    with pytest.raises(RuntimeError, match=rf"^\[lacewing\.\w+\] {argument} must be a dense tensor, not "):
        call_with(name, place, tensor)


def test_the_ops_are_found() -> None:
    names = {name for name, _ in tensor_arguments()}

    assert {"sparse_mul", "gather_rows", "sparse_conv_weight_grad", "etp_trace_", "sparse_pool"} <= names


@pytest.mark.parametrize("name", ["is_view", "watch_copy"])
def test_what_is_kept_of_a_sparse_tensor_is_not_asked_of_a_strided_one(name: str) -> None:
    op = getattr(torch.ops.lacewing, f"tensor_{name}").default
    tensors = [torch.eye(2)] * len(op._schema.arguments)

    with pytest.raises(RuntimeError, match=rf"^\[lacewing\.{name}\] the tensor must be a sparse tensor, not a strided"):
        op(*tensors)


def test_a_copy_is_not_forgotten_by_a_strided_tensor() -> None:
    sparse = torch.ops.lacewing.tensor_from_dense(torch.eye(2), None, 0, None)

    with pytest.raises(RuntimeError, match=r"^\[lacewing\.forget_copy\] the tensor must be a sparse tensor"):
        torch.ops.lacewing.tensor_forget_copy(torch.eye(2), sparse)
