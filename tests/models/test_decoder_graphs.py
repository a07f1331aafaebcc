"""--decoder-graphs: the loop over target words is replayed, on a CPU by a stand-in for CUDA graphs."""

import copy

import pytest
import torch
from building import batch, build, sentences
from recording import Recording

from fairseq_structattn.distributions import use_backend
from fairseq_structattn.models.decoder_graphs import DecoderGraphs
from fairseq_structattn.modules.captured import CudaGraphs

NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, NO_GPU])]
VARIANTS = {
    "input feeding": {"arch": "structattn_rnn_luong_general", "input_feeding": True},
    "bahdanau": {"arch": "structattn_rnn_bahdanau"},
    "chain, couplings of neighbours": {
        "arch": "structattn_rnn_crf", "attention_couplings": "neighbours", "input_feeding": True,
    },
    "trees, coverage by gru": {"arch": "structattn_rnn_treedec", "attention_coverage": "gru"},
    "coverage by fertility": {"arch": "structattn_rnn_simple", "attention_coverage": "fertility"},
    "without attention": {"arch": "structattn_rnn_vanilla", "input_feeding": True},
}  # fmt: skip
# Both have the shapes of one bucket, and lengths of their own.
BATCHES = [([6, 2, 5], [4, 7, 3]), ([8, 1, 3, 4], [5, 2, 6, 1])]


@pytest.fixture(params=DEVICES)
def device(request):
    # The operations of compiled kernels on the CPU cannot be recorded.
    with use_backend("reference" if request.param == "cpu" else "auto"):
        yield request.param


@pytest.fixture(params=VARIANTS.values(), ids=VARIANTS.keys())
def models(request, device):
    """One model twice, without and with graphs."""
    plain = build(**request.param, dropout=0.0).to(device).double().train()
    graphed = copy.deepcopy(plain)
    graphed.decoder.graphs = DecoderGraphs(Recording() if device == "cpu" else CudaGraphs())
    return plain, graphed


def inputs(lengths, device, seed=0):
    sample = batch(*(sentences(side, seed + number) for number, side in enumerate(lengths)))
    return {name: tensor.to(device) for name, tensor in sample["net_input"].items()}


def step(model, given):
    """What a training step computes: scores, attention, and the gradients of all parameters."""
    scores, extra = model(**given, return_posterior=True)
    posterior, attention = extra["posterior"], extra["attn"][0]
    loss = scores.sin().sum()
    for term in () if posterior is None else (attention.pow(2).sum(), posterior.entropy().sum()):
        loss = loss + term
    model.zero_grad()
    loss.backward()
    found = {name: parameter.grad for name, parameter in model.named_parameters()}
    return {**found, "scores": scores, **({} if attention is None else {"attention": attention})}


def test_training_steps_are_those_without_graphs(models, device):
    plain, graphed = models
    for number, lengths in enumerate(BATCHES * 2):
        given = inputs(lengths, device, seed=number)
        expected = step(plain, given)
        for name, value in step(graphed, given).items():
            torch.testing.assert_close(value, expected[name], msg=f"{name} in step {number}")
        for parameter, other in zip(plain.parameters(), graphed.parameters()):
            parameter.data -= 0.01 * parameter.grad.sign()
            other.data.copy_(parameter)  # else rounding would grow from step to step
    capture = graphed.decoder.graphs._captured.capture
    if device == "cpu":
        assert (capture.captures, capture.replays) == (2, 2 * 3)


def test_evaluation_and_generation_run_as_ever(device):
    model = build("structattn_rnn_bahdanau").to(device)
    model.decoder.graphs = DecoderGraphs(Recording())
    given = inputs(BATCHES[0], device)
    for _ in range(3):
        model(**given)
        with torch.no_grad():
            model.train()(**given)
        model.eval()
    assert model.decoder.graphs._captured.capture.captures == 0


def test_the_option():
    model = build("structattn_rnn_bahdanau", decoder_graphs=True).train()
    assert not model.decoder.graphs.takes(torch.zeros(1))
    assert build("structattn_rnn_bahdanau").decoder.graphs is None
    step(model, inputs(BATCHES[0], "cpu"))  # runs without a GPU, too


@pytest.mark.parametrize(
    "options, message",
    (
        ({"arch": "structattn_rnn_crf"}, "no effect on a decoder without a loop"),
        ({"arch": "structattn_rnn_bahdanau", "attention_estimator": "sample"}, "--attention-estimator sample"),
    ),
)
def test_options_that_cannot_work(options, message):
    with pytest.raises(ValueError, match=message):
        build(decoder_graphs=True, **options)
