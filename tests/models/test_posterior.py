"""The distributions that a model attends with, as it hands them out."""

import building
import pytest
import torch
from building import PRESETS, batch, build, sentences

from fairseq_structattn.distributions import IndependentHeads, LinearChain, ProjectiveTree

SOURCE, TARGET = sentences([7, 3, 1, 5]), sentences([4, 6, 2, 1], seed=1)
WITH_ATTENTION = [name for name in PRESETS if name != "structattn_rnn_vanilla"]
LENGTHS = (6, 2, 5, 1)
VARIANTS = {
    "all at once": {"arch": "structattn_rnn_crf"},
    "step by step": {"arch": "structattn_rnn_crf", "input_feeding": True},
    "coverage": {"arch": "structattn_rnn_crf", "attention_coverage": "sum"},
    "previous query": {"arch": "structattn_rnn_bahdanau"},
    "trees": {"arch": "structattn_rnn_treedec"},
    "transformer": {"arch": "transformer, chains"},
}


def forward(model, sample, **asked):
    return model(**sample["net_input"], **asked)


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("left_pad", [True, False])
def test_weights_are_made_of_the_posterior(options, left_pad):
    model, sample = build(**options), batch(SOURCE, TARGET, left_pad=left_pad)
    scores, extra = forward(model, sample, return_posterior=True)
    posterior, weights = extra["posterior"], extra["attn"][0]
    assert posterior.batch_shape == weights.shape[:2]
    attention = getattr(model.decoder, "attention", None)
    marginals = posterior.position_marginals
    expected = marginals / marginals.sum(-1, keepdim=True) if attention is None else attention.weights_of(posterior)
    for index, sentence in enumerate(SOURCE):
        columns = slice(-len(sentence), None) if left_pad else slice(len(sentence))
        torch.testing.assert_close(weights[index][:, columns], expected[index][:, : len(sentence)])
    plain_scores, plain = forward(model, sample)
    assert extra.keys() - plain.keys() == {"posterior", "source_attention"}
    torch.testing.assert_close(scores, plain_scores)


def test_inference_runs_once(monkeypatch):
    runs, inference = [], LinearChain._inference
    monkeypatch.setattr(LinearChain, "_inference", lambda chain, dtype: runs.append(chain) or inference(chain, dtype))
    _, extra = forward(build("structattn_rnn_crf"), batch(SOURCE, TARGET), return_posterior=True)
    extra["posterior"].log_partition, extra["posterior"].marginals
    assert runs == [extra["posterior"]]


@pytest.mark.parametrize(
    "arch, kind",
    [
        ("structattn_rnn_tree", ProjectiveTree),
        ("structattn_rnn_flat", IndependentHeads),
        ("transformer, trees", ProjectiveTree),
    ],
)
def test_source_attention_is_that_of_the_encoder(arch, kind):
    model, sample = build(arch), batch(SOURCE, TARGET)
    _, extra = forward(model, sample, return_posterior=True)
    heads = extra["source_attention"]
    assert type(heads) is kind
    expected = model.encoder.source_attention(sample["net_input"]["src_tokens"]).distribution
    torch.testing.assert_close(heads.marginals, expected.marginals)


def test_models_without_attention_have_none():
    _, extra = forward(build("structattn_rnn_vanilla"), batch(SOURCE, TARGET), return_posterior=True)
    assert extra == {"attn": [None], "posterior": None, "source_attention": None}


@pytest.fixture(scope="module")
def sample():
    return batch(sentences(LENGTHS), sentences((3, 5, 1, 4), seed=1), width=8)


def weights_of(attention, posterior):
    """What the weights are, by their definition: marginals, normalised and scaled as asked for."""
    marginals = attention.position_marginals(posterior)
    if attention.normalize == "sum":
        total = marginals.sum(-1, keepdim=True)
        marginals = torch.where(total > 0, marginals / total, marginals)
    return attention.scale * marginals


@pytest.mark.parametrize("options", [{}, {"input_feeding": True}, {"attention_query": "previous"}], ids=str)
@pytest.mark.parametrize("arch", WITH_ATTENTION)
def test_weights_are_those_of_the_posterior_in_every_architecture(arch, options, sample):
    model = build(arch, **options)
    with torch.no_grad():
        scores, extra = model(**sample["net_input"], return_posterior=True)
        plain, stock = model(**sample["net_input"])
    assert set(stock) == {"attn"} and torch.equal(plain, scores)
    posterior, (weights,) = extra["posterior"], extra["attn"]
    assert posterior.batch_shape == weights.shape[:2]
    expected = weights_of(model.decoder.attention, posterior)
    for row, length in enumerate(LENGTHS):
        real = sample["net_input"]["src_tokens"][row].ne(building.DICTIONARY.pad())
        torch.testing.assert_close(weights[row][:, real], expected[row, :, :length], atol=1e-6, rtol=1e-5)
        assert not expected[row, :, length:].any()


def test_posterior_is_part_of_the_graph(sample):
    model = build("structattn_rnn_crf").train()
    _, extra = model(**sample["net_input"], return_posterior=True)
    extra["posterior"].entropy().sum().backward()
    assert model.decoder.attention.tables["pairwise"].grad.abs().sum() > 0
