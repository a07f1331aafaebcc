"""Source attention against its formulas, sentence by sentence."""

import pytest
import torch

from fairseq_structattn.distributions import IndependentHeads, ProjectiveTree, register_distribution
from fairseq_structattn.distributions.registry import _DISTRIBUTIONS
from fairseq_structattn.modules.source_attention import (
    ArcScorer,
    BiaffineArcScorer,
    SourceAttention,
    UniformArcs,
    heads_of,
    source_attention_names,
)

EMBED, STATE = 4, 3
LENGTHS = torch.tensor([6, 1, 3, 2])  # with </s>


@pytest.fixture
def inputs():
    torch.manual_seed(0)
    # The root first.
    return torch.randn(7, 4, EMBED, dtype=torch.double), torch.randn(4, 7, STATE, dtype=torch.double)


def parser(distribution="projective-tree", roots="multi", bound="none", scorer=ArcScorer, **options):
    torch.manual_seed(1)
    return SourceAttention(scorer(EMBED, 5, bound, **options), distribution, roots).double()


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


def test_biaffine_arc_scores_follow_the_formula(inputs):
    """Dozat & Manning 2017, equations 4 to 6."""
    embedded, _ = inputs
    scorer = parser(scorer=BiaffineArcScorer, layers=2).scorer
    scores = scorer(embedded[:-1], LENGTHS - 1)
    words = 2
    states, _ = scorer.rnn(embedded[: words + 1, 2].unsqueeze(1), torch.tensor([words + 1]))
    for head in range(words + 1):
        for word in range(words):
            r = torch.relu(scorer.head_projection(states[head, 0]))
            d = torch.relu(scorer.dependent_projection(states[word + 1, 0]))
            expected = d @ scorer.energy.weight @ r + scorer.head_score.weight[0] @ r
            torch.testing.assert_close(scores[2, head, word], expected)


def test_dropout_is_that_of_training_only(inputs):
    embedded, _ = inputs
    scorer = parser(scorer=BiaffineArcScorer, layers=2, dropout=0.5).scorer
    first, second = (scorer(embedded[:-1], LENGTHS - 1) for _ in range(2))
    assert not torch.equal(first, second)
    scorer.eval()
    first, second = (scorer(embedded[:-1], LENGTHS - 1) for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize("scorer", [ArcScorer, BiaffineArcScorer])
def test_the_outer_tanh_bounds_the_scores(inputs, scorer):
    embedded, _ = inputs
    bounded, unbounded = (
        parser(bound=bound, scorer=scorer).scorer(embedded[:-1], LENGTHS - 1) for bound in ("tanh", "none")
    )
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


@pytest.mark.parametrize("distribution", source_attention_names())
@pytest.mark.parametrize("roots", ("multi", "single"))
def test_heads_are_distributions_over_words_and_root(inputs, distribution, roots):
    heads = parser(distribution, roots)(*inputs, LENGTHS)
    mass = heads.distribution.marginals.sum(1)
    expected = (torch.arange(5) < (LENGTHS - 1).unsqueeze(1)).to(mass)
    torch.testing.assert_close(mass, expected)
    if roots == "single" and distribution != "softmax":
        torch.testing.assert_close(heads.distribution.marginals[:, 0].sum(-1), (LENGTHS > 1).to(mass))


@pytest.mark.parametrize("scorer", [ArcScorer, BiaffineArcScorer])
@pytest.mark.parametrize("distribution", source_attention_names())
def test_gradients_reach_every_parameter(inputs, distribution, scorer):
    module = parser(distribution, scorer=scorer)
    module(*inputs, LENGTHS).vectors.pow(2).sum().backward()
    for name, parameter in module.named_parameters():
        assert parameter.grad.abs().max() > 0, name


def test_sentences_without_an_end_are_parsed_as_those_with_one(inputs):
    embedded, states = inputs
    module = parser()
    with_end = module(embedded, states, LENGTHS)
    distribution, vectors = module.expect(embedded[:-1], states[:, :-1], LENGTHS - 1)
    assert torch.equal(distribution.marginals, with_end.distribution.marginals)
    assert torch.equal(vectors, with_end.vectors[:, :-1])


def test_uniform_trees_need_no_words(inputs):
    module = SourceAttention(UniformArcs(EMBED, 5, "none"), "projective-tree", "multi").double()
    heads = module(*inputs, LENGTHS).distribution
    torch.testing.assert_close(heads.log_partition.exp(), heads.support_size)


def test_any_registered_distribution_over_arcs_will_do(inputs, monkeypatch):
    monkeypatch.setattr(_DISTRIBUTIONS, "_classes", dict(_DISTRIBUTIONS._classes))

    @register_distribution("near-heads")
    class NearHeads(IndependentHeads):
        """A softmax for each word, as one of somebody else's."""

    assert source_attention_names() == ["softmax", "near-heads", "projective-tree", "spanning-tree"]
    heads = parser("near-heads")(*inputs, LENGTHS)
    assert type(heads.distribution) is NearHeads
    torch.testing.assert_close(heads.vectors, parser("softmax")(*inputs, LENGTHS).vectors)


@pytest.mark.parametrize(
    "name, roots, message",
    [
        ("linear-chain", "multi", "over heads 'linear-chain'; choose one of: softmax, projective-tree"),
        ("softmax", "two", "roots is 'two'; choose one of: single, multi"),
    ],
)
def test_what_is_not_known_is_refused(name, roots, message):
    with pytest.raises(ValueError, match=message):
        heads_of(name, roots)
