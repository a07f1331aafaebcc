"""Additive scores against their definition, by tanh."""

import doctest

import pytest
import torch
from torch import nn

from fairseq_structattn.modules import additive
from fairseq_structattn.modules.additive import additive_scores
from fairseq_structattn.modules.scores import build_score


def energy(dtype=torch.float64, dim=5):
    torch.manual_seed(0)
    return nn.Linear(dim, 1, bias=False).to(dtype)


def definition(first, second, weight):
    return (torch.tanh(first + second) * weight).sum(-1)


def test_example():
    failures, tries = doctest.testmod(additive)
    assert tries and not failures


def test_values_and_derivatives():
    layer = energy()
    first, second = torch.randn(2, 3, 1, 5, dtype=torch.float64), torch.randn(2, 1, 4, 5, dtype=torch.float64)
    torch.testing.assert_close(additive_scores(first, second, layer), definition(first, second, layer.weight))
    inputs = [part.requires_grad_() for part in (first, second)]

    def scores(first, second, weight):
        layer = nn.Linear(5, 1, bias=False)
        del layer.weight
        layer.weight = weight
        return additive_scores(first, second, layer)

    weight = layer.weight.detach().clone().requires_grad_()
    assert torch.autograd.gradcheck(scores, (*inputs, weight))
    assert torch.autograd.gradgradcheck(scores, (*inputs, weight))


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e4])
@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-6), (torch.bfloat16, 2e-2), (torch.float16, 2e-3)])
def test_error_in_each_precision(dtype, tolerance, size):
    layer = energy(dtype)
    first, second = (size * torch.randn(7, 5)).to(dtype), (size * torch.randn(7, 5)).to(dtype)
    expected = definition(first.double(), second.double(), layer.weight.double())
    error = (additive_scores(first, second, layer).double() - expected).abs().max()
    # In lower precision, small values keep their digits.
    assert error <= tolerance * (1 if dtype == torch.float32 else min(1, size))


@pytest.mark.parametrize("masked", [False, True])
def test_steps_equal_one_call(masked):
    torch.manual_seed(0)
    score = build_score("additive", 3, 4, 5).double()
    states = torch.randn(2, 6, 4, dtype=torch.float64)
    queries = torch.randn(2, 3, 3, dtype=torch.float64, requires_grad=True)
    keys = score.key_projection(states)
    mask = torch.randn(2, 1, 6, dtype=torch.float64) if masked else None
    expected = score(queries, keys) + (mask if masked else 0)
    compare = score.for_steps(keys, 3, mask)
    found = torch.cat([compare(query) for query in queries.split(1, 1)], 1)
    torch.testing.assert_close(found, expected)
    wanted = [queries, *score.parameters()]
    gradients = torch.autograd.grad(found.sin().sum(), wanted, retain_graph=True)
    for gradient, other in zip(gradients, torch.autograd.grad(expected.sin().sum(), wanted)):
        torch.testing.assert_close(gradient, other)
