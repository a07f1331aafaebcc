"""Probabilities of given heads, all of a sentence or some, against enumeration by hand and against log_prob."""

import math

import pytest
import torch

from fairseq_structattn.distributions import ProjectiveTree, SpanningTree

TREES = [ProjectiveTree, SpanningTree]


def scores(n=4, batch=3, seed=0):
    return torch.randn(batch, n + 1, n, dtype=torch.double, generator=torch.Generator().manual_seed(seed))


def test_two_words_by_hand():
    # Trees: 1 and 2 on the root; 0→1→2; 0→2→1. Weights 2·3, 2·5, 3·7.
    weights = torch.tensor([[2.0, 3.0], [1.0, 5.0], [7.0, 1.0]])
    for kind in TREES:
        tree = kind(weights.log())
        assert tree.log_prob_of_heads(torch.tensor([0, 1])).exp().item() == pytest.approx(10 / 37)
        assert tree.log_prob_of_heads(torch.tensor([0, -1])).exp().item() == pytest.approx(16 / 37)
        assert tree.log_prob_of_heads(torch.tensor([-1, -1])).item() == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("kind", TREES)
def test_whether_heads_are_complete_may_be_said(kind):
    tree = kind(scores(), torch.tensor([4, 2, 3]))
    heads = torch.tensor([[2, 0, 2, 3], [0, 1, -1, -1], [3, 3, 0, -1]])
    expected = tree.log_prob_of_heads(heads)
    for complete in (True, False):
        torch.testing.assert_close(tree.log_prob_of_heads(heads, complete), expected)
    heads[1, 1] = -1
    assert tree.log_prob_of_heads(heads, False)[1] > expected[1]
    assert tree.log_prob_of_heads(heads, True)[1] == -math.inf


@pytest.mark.parametrize("kind", TREES)
@pytest.mark.parametrize("roots", ["multi", "single"])
def test_gradient_of_partial_heads_is_that_of_finite_differences(kind, roots):
    heads = torch.tensor([[2, -1, -1, 0], [-1, -1, -1, -1], [0, 1, -1, -1]])
    assert torch.autograd.gradcheck(lambda s: kind(s, roots=roots).log_prob_of_heads(heads), scores().requires_grad_())


@pytest.mark.parametrize("heads", [[2, 1, 0], [2, 1, -1]])
def test_what_is_no_tree_is_impossible(heads):
    arcs = scores(3, 1).requires_grad_()
    for kind in TREES:
        log_prob = kind(arcs).log_prob_of_heads(torch.tensor([heads]))
        assert log_prob.item() == -math.inf
        (gradient,) = torch.autograd.grad(log_prob.masked_fill(log_prob.isinf(), 0).sum(), arcs)
        assert torch.isfinite(gradient).all()
