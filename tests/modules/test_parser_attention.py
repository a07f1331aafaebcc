"""Syntactic attention against its formulas, sentence by sentence."""

import pytest
import torch

from fairseq_structattn.distributions import ProjectiveTree
from fairseq_structattn.modules.parser_attention import HEADS, ArcScorer, ParserAttention, UniformArcs

EMBED, STATE = 4, 3
LENGTHS = torch.tensor([6, 1, 3, 2])  # with </s>


@pytest.fixture
def inputs():
    torch.manual_seed(0)
    # The root first.
    return torch.randn(7, 4, EMBED, dtype=torch.double), torch.randn(4, 7, STATE, dtype=torch.double)


def parser(distribution="projective-tree", roots="multi", bound="none"):
    torch.manual_seed(1)
    return ParserAttention(ArcScorer(EMBED, 5, bound), distribution, roots).double()


def test_arc_scores_follow_the_formula(inputs):
    embedded, _ = inputs
    scorer = parser().scorer
    scores = scorer(embedded[:-1], LENGTHS - 1)
    words = 2
    sentence = embedded[: words + 1, 2].unsqueeze(1)
    states, _ = scorer.rnn(sentence, torch.tensor([words + 1]))
    for head in range(words + 1):
        for word in range(words):
            hidden = scorer.head_projection(states[head, 0]) + scorer.dependent_projection(states[word + 1, 0])
            torch.testing.assert_close(scores[2, head, word], scorer.energy(torch.tanh(hidden)).squeeze())


def test_the_outer_tanh_bounds_the_scores(inputs):
    embedded, _ = inputs
    bounded, unbounded = (parser(bound=bound).scorer(embedded[:-1], LENGTHS - 1) for bound in ("tanh", "none"))
    torch.testing.assert_close(bounded, torch.tanh(unbounded))


def test_vectors_are_expected_heads_and_nothing_for_the_end_of_a_sentence(inputs):
    embedded, states = inputs
    module = parser()
    heads = module(embedded, states, LENGTHS)
    for item, words in enumerate((LENGTHS - 1).tolist()):
        scores = module.scorer(embedded[: words + 1, item : item + 1], torch.tensor([words]))
        marginals = ProjectiveTree(scores).marginals[0]
        torch.testing.assert_close(heads.vectors[item, :words], marginals.t() @ states[item, : words + 1])
        assert not heads.vectors[item, words:].any()


@pytest.mark.parametrize("distribution", HEADS)
@pytest.mark.parametrize("roots", ("multi", "single"))
def test_heads_are_distributions_over_words_and_root(inputs, distribution, roots):
    heads = parser(distribution, roots)(*inputs, LENGTHS)
    mass = heads.distribution.marginals.sum(1)
    expected = (torch.arange(5) < (LENGTHS - 1).unsqueeze(1)).to(mass)
    torch.testing.assert_close(mass, expected)
    if roots == "single" and distribution != "softmax":
        torch.testing.assert_close(heads.distribution.marginals[:, 0].sum(-1), (LENGTHS > 1).to(mass))


@pytest.mark.parametrize("distribution", HEADS)
def test_gradients_reach_every_parameter(inputs, distribution):
    module = parser(distribution)
    module(*inputs, LENGTHS).vectors.pow(2).sum().backward()
    for name, parameter in module.named_parameters():
        assert parameter.grad.abs().max() > 0, name


def test_uniform_trees_need_no_words(inputs):
    module = ParserAttention(UniformArcs(EMBED, 5, "none"), "projective-tree", "multi").double()
    heads = module(*inputs, LENGTHS).distribution
    torch.testing.assert_close(heads.log_partition.exp(), heads.support_size)
