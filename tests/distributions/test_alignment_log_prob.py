"""How distributions over source positions score an alignment."""

import math

import pytest
import torch

from fairseq_structattn.distributions import Bernoulli, Categorical, LinearChain, ProjectiveTree

SCORES = torch.tensor([0.0, math.log(2), math.log(5), 9.0])  # the last is padding
LENGTHS = torch.tensor(3)
HALVES = torch.tensor([0.5, 0.5, 0.0, 0.0])


def test_one_position_by_hand():
    # p = 1/8, 2/8, 5/8
    log_prob = Categorical(SCORES, LENGTHS).alignment_log_prob(HALVES)
    assert log_prob.item() == pytest.approx((math.log(1 / 8) + math.log(2 / 8)) / 2)


def test_independent_marks_by_hand():
    # p(1, 1, 0) = 1/2 · 2/3 · 1/6
    assert Bernoulli(SCORES, LENGTHS).alignment_log_prob(HALVES).item() == pytest.approx(math.log(1 / 18))


def test_marks_of_a_chain_by_hand():
    # Two positions with scores log 2 and log 3 which may not differ: 00 weighs 1, 11 weighs 6.
    pairwise = torch.tensor([[0.0, -math.inf], [-math.inf, 0.0]])
    chain = LinearChain(torch.tensor([math.log(2), math.log(3)]), pairwise)
    assert chain.alignment_log_prob(torch.tensor([0.5, 0.5])).item() == pytest.approx(math.log(6 / 7))
    assert chain.alignment_log_prob(torch.tensor([1.0, 0.0])).item() == -math.inf


def test_dependents_of_a_tree_by_hand():
    # Two words: 0→1→2, 0→2→1 and both on the root, all of weight 1: either word has 1/3 of a dependent.
    tree = ProjectiveTree(torch.zeros(3, 2))
    assert tree.alignment_log_prob(torch.tensor([1.0, 0.0])).item() == pytest.approx(math.log(1 / 2))


@pytest.mark.parametrize(
    "distribution",
    [
        lambda scores: Categorical(scores, LENGTHS),
        lambda scores: Bernoulli(scores, LENGTHS),
        lambda scores: LinearChain(scores, torch.zeros(2, 2), LENGTHS),
    ],
)
def test_positions_that_underflow_are_pulled_up_with_full_force(distribution):
    scores = torch.tensor([-300.0, 300.0, 0.0, math.nan], requires_grad=True)
    posterior = distribution(scores)
    assert posterior.marginals[0] == 0
    log_prob = posterior.alignment_log_prob(torch.tensor([1.0, 0.0, 0.0, 0.0]))
    (gradient,) = torch.autograd.grad(log_prob, scores)
    assert log_prob.item() == pytest.approx(-600, abs=1)
    assert gradient[:2].tolist() == pytest.approx([1, -1]) and gradient[3] == 0


def test_trees_cost_no_infinity():
    scores = torch.tensor([[900.0, 900.0], [0.0, -900.0], [-900.0, 0.0]], requires_grad=True)
    log_prob = ProjectiveTree(scores).alignment_log_prob(torch.tensor([1.0, 0.0]))
    (gradient,) = torch.autograd.grad(log_prob, scores)
    assert torch.isfinite(log_prob) and torch.isfinite(gradient).all()


@pytest.mark.parametrize("kind", [Categorical, Bernoulli])
def test_no_alignment_costs_exactly_nothing(kind):
    scores = torch.tensor([[1.0, 2.0], [-math.inf, -math.inf]], requires_grad=True)
    log_prob = kind(scores).alignment_log_prob(torch.zeros(2, 2))
    (gradient,) = torch.autograd.grad(log_prob.sum(), scores)
    assert not log_prob.any() and not gradient.any()


def test_forbidden_positions_have_minus_infinity():
    scores = torch.tensor([0.0, -math.inf])
    for kind in (Categorical, Bernoulli):
        assert kind(scores).alignment_log_prob(torch.tensor([0.0, 1.0])).item() == -math.inf


def test_chains_of_many_states_select_no_positions():
    chain = LinearChain(torch.zeros(2, 3), torch.zeros(3, 3), num_states=3)
    with pytest.raises(ValueError, match="only a binary chain selects positions"):
        chain.alignment_log_prob(torch.zeros(2))


def test_alignments_may_have_sample_dimensions():
    alignments = torch.eye(3).unsqueeze(1)
    for kind in (Categorical, Bernoulli):
        distribution = kind(torch.randn(2, 3))
        found = distribution.alignment_log_prob(alignments)
        assert found.shape == (3, 2)
        torch.testing.assert_close(found[1], distribution.alignment_log_prob(torch.tensor([[0.0, 1, 0]] * 2)))
