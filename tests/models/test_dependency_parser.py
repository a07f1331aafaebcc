"""The parser alone: padding, rare and unknown words, and what training does to words."""

from argparse import Namespace

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.models import ARCH_MODEL_REGISTRY

import fairseq_structattn  # noqa: F401  (registers the model)
from fairseq_structattn.modules.source_attention import SCORERS, source_attention_names

WORDS = Dictionary()
for word, count in (("often", 9), ("twice", 2), ("once", 1), ("seen", 5), ("oncely", 0)):
    WORDS.add_symbol(word, n=count)
PAD = WORDS.pad()
SENTENCES = torch.tensor([[4, 5, 6, 7], [5, 4, PAD, PAD], [7, PAD, PAD, PAD]])


def build(**options):
    torch.manual_seed(1)
    cfg = Namespace(arch="structattn_parser", embed_dim=6, parser_hidden_size=5, **options)
    return ARCH_MODEL_REGISTRY["structattn_parser"].build_model(cfg, Namespace(source_dictionary=WORDS)).double().eval()


@pytest.mark.parametrize("score", SCORERS)
@pytest.mark.parametrize("heads", source_attention_names())
@pytest.mark.parametrize("roots", ["single", "multi"])
def test_padding_and_companions_change_nothing(score, heads, roots):
    model = build(arc_score=score, source_attention=heads, tree_roots=roots, affixes=True)
    marginals = model(torch.nn.functional.pad(SENTENCES, (0, 2), value=PAD)).marginals
    for item, words in enumerate((4, 2, 1)):
        alone = model(SENTENCES[item : item + 1, :words]).marginals[0]
        torch.testing.assert_close(marginals[item, : words + 1, :words], alone)
        assert not marginals[item, :, words:].any()
    assert model(torch.zeros(1, 0).long()).marginals.shape == (1, 1, 0)


def test_rare_words_are_unknown_ones_unless_affixes_tell_them_apart():
    once, never = torch.tensor([[4, 6, 7]]), torch.tensor([[4, 8, 7]])
    plain, affixes, all_known = build(), build(affixes=True), build(min_count=0)
    assert torch.equal(plain(once).arc_scores, plain(never).arc_scores)
    for model in (affixes, all_known):
        assert not torch.equal(model(once).arc_scores, model(never).arc_scores)


def test_words_are_dropped_in_training_only():
    model = build(word_dropout=0.9, dropout=0.0).train()
    scores = [model(SENTENCES).arc_scores for _ in range(4)]
    assert any(not torch.equal(scores[0], other) for other in scores[1:])
    unknown = build(word_dropout=0.0, dropout=0.0)(torch.full((1, 4), WORDS.unk())).arc_scores
    model.word_dropout = 1.0
    assert torch.equal(model(SENTENCES[:1]).arc_scores, unknown)
    model.eval()
    assert torch.equal(model(SENTENCES).arc_scores, model(SENTENCES).arc_scores)


def test_gradients_reach_every_parameter():
    model = build(affixes=True)
    (
        -model(SENTENCES).log_prob_of_heads(torch.tensor([[2, 0, 2, 3], [0, 1, -1, -1], [0, -1, -1, -1]]))
    ).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad.abs().max() > 0, name


@pytest.mark.parametrize(
    "options, message",
    [
        ({"arc_score": "triaffine"}, "--arc-score triaffine: not known, choose from parser, biaffine, uniform"),
        ({"word_dropout": 1.0}, "--word-dropout 1.0: must be at least 0"),
        ({"parser_layers": 0}, "--parser-layers 0: must be at least 1"),
    ],
)
def test_options_that_cannot_work(options, message):
    with pytest.raises(ValueError, match=message):
        build(**options)
