"""Operations that a decoder with a loop dispatches for each target position: on a GPU each costs a launch."""

import pytest
import torch
from building import batch, build, sentences
from counting import Counter

from fairseq_structattn.modules import cells, coverage

ONE_LAYER = {"encoder_layers": 1, "decoder_layers": 1, "encoder_bidirectional": True}
# The largest numbers for forward and backward pass together.
CASES = [
    ("structattn_rnn_luong_general", {"input_feeding": True, **ONE_LAYER}, 19),
    ("structattn_rnn_bahdanau", {}, 25),
    ("structattn_rnn_simple", {"attention_coverage": "sum", **ONE_LAYER}, 15),
    ("structattn_rnn_simple", {"attention_coverage": "fertility", **ONE_LAYER}, 20),
    ("structattn_rnn_simple", {"attention_coverage": "gru", **ONE_LAYER}, 32),
]


class AsOne(torch.autograd.Function):
    """A function of tensors that counts as one operation in each direction, as the fused cells of a GPU do."""

    @staticmethod
    def forward(ctx, counter, function, *inputs):
        ctx.counter, counter.paused = counter, True
        ctx.inputs = [part.detach().requires_grad_() for part in inputs]
        with torch.enable_grad():
            ctx.results = function(*ctx.inputs)
        found = [part.detach() for part in ctx.results]
        counter.paused, counter.count = False, counter.count + 1
        return tuple(found)

    @staticmethod
    def backward(ctx, *gradients):
        ctx.counter.paused = True
        found = torch.autograd.grad(ctx.results, ctx.inputs, gradients)
        ctx.counter.paused, ctx.counter.count = False, ctx.counter.count + 1
        return (None, None, *found)


@pytest.fixture
def counter(monkeypatch):
    counter, lstm_cell, gru_cell = Counter(), cells.lstm_cell, cells.gru_cell

    def lstm(gates, nothing, cell):
        return AsOne.apply(counter, lambda gates, cell: lstm_cell(gates, nothing, cell), gates, cell)

    def gru(*terms):
        return AsOne.apply(counter, lambda *terms: (gru_cell(*terms),), *terms)[0]

    monkeypatch.setattr(cells, "lstm_cell", lstm)
    for module in (cells, coverage):
        monkeypatch.setattr(module, "gru_cell", gru)
    return counter


def operations(counter, model, target_length):
    sample = batch(sentences([6, 6]), sentences([target_length] * 2))
    counter.count = 0
    with counter:
        model(**sample["net_input"])[0].sum().backward()
    return counter.count


@pytest.mark.parametrize("arch, options, most", CASES)
def test_operations_for_each_target_position(counter, arch, options, most):
    model = build(arch, **options)  # in evaluation mode, without dropout: its one operation is several on a CPU
    operations(counter, model, 4)
    assert (operations(counter, model, 12) - operations(counter, model, 4)) / 8 <= most


def test_what_is_counted(counter):
    with counter:
        one = torch.ones(2, 2, requires_grad=True)
        counter.count = 0
        (one.t() + 1).exp().unbind(0)
        assert counter.count == 2
