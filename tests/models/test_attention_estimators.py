"""Attention from one structure, in models: what training and translation see, and that it can be trained."""

import pytest
import torch
from building import batch, build, generate, log_probs, sentences
from torch.testing import assert_close

SOURCE, TARGET = sentences([6, 3, 5]), sentences([4, 5, 2], seed=1)
MODELS = ["structattn_rnn_crf", "structattn_rnn_tree", "structattn_rnn_treedec", "transformer, all heads"]


def weights(model):
    return model(**batch(SOURCE, TARGET)["net_input"])[1]["attn"][0].detach()


@pytest.mark.parametrize("arch", MODELS)
def test_translation_with_the_best_structure(arch):
    model = build(arch, attention_normalize="none", attention_scale=1.0, attention_estimator_generation="argmax")
    found = weights(model)
    assert torch.equal(found, found.round()) and not torch.equal(found, weights(model.train()))
    model.eval()
    for source, hypotheses in zip(SOURCE, generate([model], batch(SOURCE))):
        forced = log_probs(model, batch([source], [hypotheses[0]["tokens"]]))[0]
        assert_close(hypotheses[0]["positional_scores"], forced, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    "arch, name",
    [
        *((arch, "straight-through") for arch in MODELS),
        ("structattn_rnn_crf", "rsample"),
        ("transformer, trees", "rsample"),
    ],
)
def test_they_train(arch, name):
    torch.manual_seed(0)
    model = build(arch, attention_estimator=name, dropout=0.0).train()
    optimizer, losses = torch.optim.Adam(model.parameters(), 0.01), []
    for _ in range(30):
        loss = -log_probs(model, batch(SOURCE, TARGET)).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert sum(losses[-5:]) < 0.7 * sum(losses[:5])
