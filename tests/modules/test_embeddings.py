"""Embeddings and the output layer that shares them: padding has no part in them."""

import copy
import math

import pytest
import torch

from fairseq_structattn.modules.embeddings import TiedOutput, WordEmbedding

PAD = 1
TOKENS = torch.tensor([[0, PAD, 3], [4, 3, PAD]])


@pytest.fixture(params=[0.0, 0.5, math.nan, math.inf, -math.inf])
def embedding(request):
    torch.manual_seed(0)
    made = WordEmbedding(6, 4, PAD)
    made.weight.data[PAD] = request.param
    return made


def test_padding_is_zero_and_gets_no_gradient(embedding):
    vectors = embedding(TOKENS)
    assert not vectors[TOKENS == PAD].any() and torch.equal(vectors[0, 0], embedding.weight[0])
    (vectors.square().sum() + vectors.sum()).backward()
    gradient = embedding.weight.grad
    assert torch.isfinite(gradient).all() and gradient[3].any() and not gradient[PAD].any()


def test_output_is_a_linear_layer_that_does_not_train_padding(embedding):
    features = torch.randn(2, 3, 4, requires_grad=True)
    scores = TiedOutput(embedding)(features)
    weight = embedding.weight.detach().clone()
    if not torch.isfinite(weight[PAD]).all():
        weight[PAD] = 0
    torch.testing.assert_close(scores, features @ weight.t())
    with torch.no_grad():
        torch.testing.assert_close(TiedOutput(embedding)(features), scores)
    scores.log_softmax(-1)[..., [0, 2, 3]].sum().backward()
    assert torch.isfinite(features.grad).all() and torch.isfinite(embedding.weight.grad).all()
    assert embedding.weight.grad[[0, 2, 3, 4, 5]].all() and not embedding.weight.grad[PAD].any()


@pytest.mark.precision
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_output_in_half_precision(dtype):
    output, features = TiedOutput(WordEmbedding(6, 4, PAD)), torch.randn(2, 4)
    for is_grad_enabled in (True, False):
        with torch.set_grad_enabled(is_grad_enabled):
            with torch.autocast("cpu", dtype):
                lowered = output(features)
            torch.testing.assert_close(lowered.float(), output(features), atol=0.05, rtol=0.05)
            half = copy.deepcopy(output).to(dtype)(features.to(dtype))
            assert half.dtype == lowered.dtype == dtype
            torch.testing.assert_close(half.float(), output(features), atol=0.05, rtol=0.05)


def test_what_awaits_weights_is_not_trained_without_them():
    model = torch.nn.Sequential(WordEmbedding(6, 4, PAD))
    model[0].await_weights("no file")
    model.eval()
    with pytest.raises(FileNotFoundError, match="no file"):
        model.train()
    model.load_state_dict({}, strict=False)
    with pytest.raises(FileNotFoundError, match="no file"):
        model.train()
    model.load_state_dict(model.state_dict())
    assert model.train().training
