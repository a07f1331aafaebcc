"""Probabilities of given heads, all of a sentence or some, against enumeration by hand and against log_prob."""

import math

import pytest
import torch

from fairseq_structattn.distributions import IndependentHeads, ProjectiveTree, SpanningTree

KINDS = [IndependentHeads, ProjectiveTree, SpanningTree]
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


@pytest.mark.parametrize("kind", KINDS)
def test_single_heads_have_their_marginals(kind):
    distribution = kind(scores(batch=1))
    for word in range(4):
        for head in set(range(5)) - {word + 1}:
            heads = torch.full((1, 4), -1)
            heads[0, word] = head
            expected = distribution.marginals[0, head, word].log()
            torch.testing.assert_close(distribution.log_prob_of_heads(heads)[0], expected)


@pytest.mark.parametrize("kind", KINDS)
def test_whole_structures_have_their_probability_in_any_company(kind):
    lengths = torch.tensor([4, 3, 4])
    distribution = kind(scores(), lengths)
    whole = distribution.argmax.argmax(-2)
    expected = distribution.log_prob(distribution.argmax)
    torch.testing.assert_close(distribution.log_prob_of_heads(whole), expected)
    partly = whole.clone()
    partly[2, 1] = -1  # another sentence whose heads are not all known
    partly[1, 3] = 77  # padding
    result = distribution.log_prob_of_heads(partly)
    torch.testing.assert_close(result[:2], expected[:2])
    assert expected[2] < result[2] < 0


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


def test_shape_is_checked():
    with pytest.raises(ValueError, match=r"heads has shape \(1, 2\); it must be \(1, 4\)"):
        ProjectiveTree(scores(batch=1)).log_prob_of_heads(torch.tensor([[-1, 0]]))
