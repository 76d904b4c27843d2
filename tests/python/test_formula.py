"""The whole formula against an oracle of its own: values, gradients, second gradients, gradients of scale."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import lacewing
from formula_support import oracle, random_case

CASES = 3000
GROUPS = 60


def _loss(value: Tensor, weight: Tensor) -> Tensor:
    product = value.cpu() * weight.conj()
    return (product.real if product.is_complex() else product).sum()


def _results(value: Tensor, inputs: list[Tensor], generator: torch.Generator) -> list[Tensor]:
    """The value, the gradients of a random sum of it, and a product with the Hessian of that."""
    weight = torch.randn(value.shape, dtype=value.dtype, generator=generator)
    gradients = _gradients([_loss(value, weight)], inputs)
    directions = [torch.randn(x.shape, dtype=x.dtype, generator=generator) for x in inputs]
    second = _gradients([_loss(g, d) for g, d in zip(gradients, directions, strict=True)], inputs)
    return [value, *gradients, *second]


def _gradients(losses: list[Tensor], inputs: list[Tensor]) -> list[Tensor]:
    """The gradients of a sum of losses; zero where nothing depends on an input."""
    kept = [loss for loss in losses if loss.requires_grad]
    if not kept:
        return [torch.zeros_like(x) for x in inputs]
    return list(torch.autograd.grad(sum(kept), inputs, create_graph=True, materialize_grads=True))


@pytest.mark.parametrize("group", range(GROUPS))
def test_random_products(group: int, device: str) -> None:
    for seed in range(group, CASES, GROUPS):
        case = random_case(seed)
        generator = torch.Generator().manual_seed(seed)
        operands = case.operands(generator)
        scale = case.scale(generator)
        inputs = [x.requires_grad_() for x in [*operands, *([] if scale is None else [scale])]]
        expected = _results(oracle(case, operands, scale), inputs, torch.Generator().manual_seed(seed))
        moved = [x.detach().to(device).requires_grad_() for x in inputs]
        plan, edges = case.plan().to(device), case.edge_plan().to(device)

        value = lacewing.product(plan, moved[: len(operands)], edges, moved[-1] if case.scaled else None)
        got = _results(value, moved, torch.Generator().manual_seed(seed))

        for name, ours, right in zip(_names(len(inputs)), got, expected, strict=True):
            torch.testing.assert_close(
                ours.cpu(), right, rtol=1e-10, atol=1e-10, msg=lambda m, n=name: f"seed {seed}, {case.form}, {n}: {m}"
            )


def _names(inputs: int) -> list[str]:
    return ["value", *(f"gradient {i}" for i in range(inputs)), *(f"second {i}" for i in range(inputs))]
