"""Every distribution of the package as the attention of a decoder."""

import importlib.util

import pytest
import torch
from building import batch, build, log_probs, sentences
from contract import OWN_NAMES

from fairseq_structattn.distributions import SparseCategorical, get_distribution

SOURCES, TARGETS = sentences([6, 2, 1, 4]), sentences([2, 5, 1, 3], seed=1)


@pytest.fixture(params=OWN_NAMES)
def model(request):
    if issubclass(get_distribution(request.param), SparseCategorical) and not importlib.util.find_spec("entmax"):
        pytest.skip("needs entmax")
    return build("structattn_rnn", attention_distribution=request.param, attention_normalize="sum").double()


def test_the_others_of_a_batch_do_not_matter(model):
    together = log_probs(model, batch(SOURCES, TARGETS))
    for number, (source, target) in enumerate(zip(SOURCES, TARGETS)):
        alone = log_probs(model, batch([source], [target]))
        torch.testing.assert_close(together[number, : alone.size(1)], alone[0], rtol=0, atol=1e-9)


def test_gradients_reach_every_parameter(model):
    check_gradients(model)


@pytest.mark.parametrize("name", [name for name in OWN_NAMES if get_distribution(name).has_rsample])
def test_gradients_of_samples_reach_every_parameter(name):
    options = dict(attention_distribution=name, attention_normalize="sum", attention_estimator="rsample")
    check_gradients(build("structattn_rnn", **options).double())


def check_gradients(model):
    loss = log_probs(model.train(), batch(SOURCES, TARGETS)).sum()
    loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 0, name
