"""The distributions that a model attends with, as it hands them out."""

import pytest
import torch
from building import batch, build, sentences

from fairseq_structattn.distributions import IndependentHeads, LinearChain, ProjectiveTree

SOURCE, TARGET = sentences([7, 3, 1, 5]), sentences([4, 6, 2, 1], seed=1)
VARIANTS = {
    "all at once": {"arch": "structattn_rnn_crf"},
    "step by step": {"arch": "structattn_rnn_crf", "input_feeding": True},
    "coverage": {"arch": "structattn_rnn_crf", "attention_coverage": "sum"},
    "previous query": {"arch": "structattn_rnn_bahdanau"},
    "trees": {"arch": "structattn_rnn_treedec"},
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
    expected = model.decoder.attention.weights_of(posterior)
    for index, sentence in enumerate(SOURCE):
        columns = slice(-len(sentence), None) if left_pad else slice(len(sentence))
        torch.testing.assert_close(weights[index][:, columns], expected[index][:, : len(sentence)])
    plain_scores, plain = forward(model, sample)
    assert plain.keys() == {"attn"}
    torch.testing.assert_close(scores, plain_scores)


def test_inference_runs_once(monkeypatch):
    runs, inference = [], LinearChain._inference
    monkeypatch.setattr(LinearChain, "_inference", lambda chain: runs.append(chain) or inference(chain))
    _, extra = forward(build("structattn_rnn_crf"), batch(SOURCE, TARGET), return_posterior=True)
    extra["posterior"].log_partition, extra["posterior"].marginals
    assert runs == [extra["posterior"]]


@pytest.mark.parametrize(
    "arch, kind", [("structattn_rnn_tree", ProjectiveTree), ("structattn_rnn_flat", IndependentHeads)]
)
def test_source_heads_are_those_of_the_encoder(arch, kind):
    model, sample = build(arch), batch(SOURCE, TARGET)
    _, extra = forward(model, sample, return_posterior=True)
    heads = extra["source_heads"]
    assert type(heads) is kind
    expected = model.encoder.source_attention(sample["net_input"]["src_tokens"]).distribution
    torch.testing.assert_close(heads.marginals, expected.marginals)


def test_models_without_attention_have_none():
    _, extra = forward(build("structattn_rnn_vanilla"), batch(SOURCE, TARGET), return_posterior=True)
    assert extra == {"attn": [None], "posterior": None, "source_heads": None}
