"""Line 87 of the specification of sparse tensors: they work inside torch.distributions where strided ones do."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch import distributions as d

import lacewing

ONES = torch.ones(3, 4)
CASES: dict[str, Callable[[Tensor], Tensor]] = {
    "normal": lambda t: d.Normal(t, 1.0).log_prob(ONES),
    "normal value": lambda t: d.Normal(0 * ONES, ONES).log_prob(t),
    "normal entropy": lambda t: d.Normal(t, t + 1).entropy(),
    "normal cdf": lambda t: d.Normal(t, t + 1).cdf(t),
    "normal mean": lambda t: d.Normal(t, t + 1).mean,
    "bernoulli": lambda t: d.Bernoulli(logits=t).log_prob(ONES),
    "bernoulli entropy": lambda t: d.Bernoulli(probs=t).entropy(),
    "categorical": lambda t: d.Categorical(logits=t).log_prob(torch.tensor([0, 1, 2])),
    "categorical probs": lambda t: d.Categorical(logits=t).probs,
    "poisson": lambda t: d.Poisson(t + 1).log_prob(ONES),
    "exponential": lambda t: d.Exponential(t + 1).log_prob(t),
    "gamma": lambda t: d.Gamma(t + 1, t + 1).log_prob(t + 0.5),
    "beta": lambda t: d.Beta(t + 1, t + 2).log_prob(t * 0.5 + 0.2),
    "laplace": lambda t: d.Laplace(t, 1.0).log_prob(t),
    "uniform": lambda t: d.Uniform(t, t + 1).log_prob(t + 0.5),
    "dirichlet": lambda t: d.Dirichlet(t + 1).log_prob(ONES / 4),
    "multivariate": lambda t: d.MultivariateNormal(t, torch.eye(4)).log_prob(ONES),
    "independent": lambda t: d.Independent(d.Normal(t, 1.0), 1).log_prob(t),
    "divergence": lambda t: d.kl_divergence(d.Normal(t, t + 1), d.Normal(0.0, 1.0)),
    "low rank": lambda t: d.LowRankMultivariateNormal(torch.zeros(3), t, torch.ones(3)).log_prob(ONES[:, 0]),
    "low rank entropy": lambda t: d.LowRankMultivariateNormal(torch.zeros(3), t, torch.ones(3)).entropy(),
    "sample": lambda t: d.Normal(t, 1e-12).sample(),
    "rsample": lambda t: d.Normal(t, 1e-12).rsample(),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("format", ["coo", "gccs"])
def test_line_87_distributions_of_sparse_parameters_and_values(case: str, format: str) -> None:
    values = torch.tensor([0.5, 0.25, 0.75], requires_grad=True)
    s = lacewing.sparse_coo_tensor([[0, 2, 1], [1, 0, 3]], values, (3, 4))

    found, expected = CASES[case](s if format == "coo" else s.to_gcs(compressed="columns")), CASES[case](s.to_dense())

    found = found.to_dense() if lacewing.is_sparse_tensor(found) else found
    assert torch.allclose(found, expected, atol=1e-6)
    if expected.requires_grad:
        grads = [torch.autograd.grad(t.sum(), values)[0] for t in (found, expected)]
        assert torch.allclose(*grads, atol=1e-5)
