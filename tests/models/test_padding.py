"""The padding symbol's embedding: what it holds reaches nothing, and training does not move it."""

import math

import pytest
import torch
from building import DICTIONARY, PRESETS, batch, build, log_probs, sentences

PAD = DICTIONARY.pad()
SAMPLE = batch(sentences([6, 2, 1, 4]), sentences([2, 5, 1, 3], seed=1))
TIED = {"share_all_embeddings": True}
VARIANTS = {
    **{preset: {"arch": preset} for preset in PRESETS},
    "tied": {"arch": "structattn_rnn_crf", "share_decoder_input_output_embed": True},
    "all tied": {"arch": "structattn_rnn_tree", **TIED},
    "all tied, step by step": {"arch": "structattn_rnn_luong_general", "input_feeding": True, **TIED},
    "coverage": {"arch": "structattn_rnn_crf", "attention_coverage": "gru"},
    "maxout": {"arch": "structattn_rnn", "decoder_readout": "maxout"},
    "spans": {"arch": "structattn_rnn", "source_attention": "binary-tree"},
    "trees on either side": {"arch": "structattn_rnn_treedec", "source_attention": "spanning-tree"},
}


@pytest.fixture(params=VARIANTS.values(), ids=VARIANTS.keys())
def model(request):
    return build(**request.param).train()


def tables(model):
    return {model.encoder.embed_tokens.weight, model.decoder.embed_tokens.weight}


def loss_and_gradients(model):
    torch.manual_seed(0)
    model.zero_grad()
    loss = -log_probs(model, SAMPLE).sum()
    loss.backward()
    return [loss.detach(), *(parameter.grad.clone() for parameter in model.parameters())]


@pytest.mark.parametrize("value", [math.nan, math.inf, 3.0])
def test_what_it_holds_reaches_nothing(model, value):
    expected = loss_and_gradients(model)
    is_tied = model.decoder.embed_tokens.weight is model.decoder.output_projection.weight
    if is_tied and math.isfinite(value):
        pytest.skip("as a word that is never right it takes part in the softmax")
    for table in tables(model):
        table.data[PAD] = value
    for part, clean in zip(loss_and_gradients(model), expected):
        torch.testing.assert_close(part, clean)


@pytest.mark.parametrize("start", [0.0, 0.25])
def test_training_does_not_move_it(model, start):
    for table in tables(model):
        table.data[PAD] = start
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(3):
        loss_and_gradients(model)
        optimizer.step()
    for table in tables(model):
        assert (table[PAD] == start).all() and table[PAD + 1].ne(start).all()
