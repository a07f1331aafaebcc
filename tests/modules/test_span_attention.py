"""Source attention over constituents, against its formula."""

import pytest
import torch
from contract import binary_trees

from fairseq_structattn.modules.estimators import Estimator
from fairseq_structattn.modules.source_attention import ArcScorer, BiaffineArcScorer
from fairseq_structattn.modules.span_attention import SpanAttention, span_attention_names

EMBED, STATE = 4, 3
LENGTHS = torch.tensor([5, 1, 3, 2])  # with </s>


@pytest.fixture
def inputs():
    torch.manual_seed(0)
    # The root first.
    return torch.randn(6, 4, EMBED, dtype=torch.double), torch.randn(4, 6, STATE, dtype=torch.double)


def build(scorer=ArcScorer):
    torch.manual_seed(1)
    return SpanAttention(scorer(EMBED, 5, "none"), "binary-tree").double()


def test_vectors_are_means_of_the_spans_around_a_word(inputs):
    embedded, states = inputs
    module = build()
    found = module(embedded, states, LENGTHS)
    assert found.vectors.shape == (4, 5, STATE) and found.distribution.marginals.shape == (4, 4, 4)
    for item, words in enumerate((LENGTHS - 1).tolist()):
        arcs = module.scorer(embedded[: words + 1, item : item + 1], torch.tensor([words]))[0]
        trees = binary_trees(words)
        scores = [sum(arcs[1 + i, j] for i, j in tree.ones if j > i) for tree in trees]
        probs = torch.stack([torch.as_tensor(score, dtype=torch.double) for score in scores]).softmax(0)
        for word in range(words):
            vector, number = torch.zeros(STATE).double(), 0.0
            for tree, p in zip(trees, probs):
                for i, j in tree.ones:
                    if i <= word <= j and j > i:
                        vector, number = vector + p * states[item, 1 + i : 2 + j].mean(0), number + p
            torch.testing.assert_close(found.vectors[item, word], vector / number if words > 1 else vector)
        assert not found.vectors[item, words:].any()


def test_the_most_likely_tree_may_be_all_that_counts(inputs):
    module = build()
    module.estimator = Estimator("argmax", "argmax")
    found = module(*inputs, LENGTHS)
    expected = found.distribution.word_shares(found.distribution.argmax) @ inputs[1][:, 1:-1]
    torch.testing.assert_close(found.vectors[:, :-1], expected)


@pytest.mark.parametrize("estimator", ["expectation", "rsample"])
@pytest.mark.parametrize("scorer", [ArcScorer, BiaffineArcScorer])
def test_gradients_reach_every_parameter(inputs, scorer, estimator):
    module = build(scorer)
    module.estimator = Estimator(estimator)
    module(*inputs, LENGTHS).vectors.pow(2).sum().backward()
    for name, parameter in module.named_parameters():
        assert parameter.grad.abs().max() > 0, name


def test_only_distributions_over_spans_will_do():
    assert span_attention_names() == ["binary-tree"]
    with pytest.raises(ValueError, match="over spans 'projective-tree'; choose one of: binary-tree"):
        SpanAttention(ArcScorer(EMBED, 5, "none"), "projective-tree")
