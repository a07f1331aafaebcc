"""Recurrent networks without packing against PyTorch's with packing."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from fairseq_structattn.modules.recurrent import (
    CELLS,
    DecoderRNN,
    SentenceRNN,
    reverse_by_length,
    stack_state,
    unstack_state,
)

LENGTHS = torch.tensor([6, 1, 4])
NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, NO_GPU])]


def test_reverse_by_length():
    tokens = torch.tensor([[1, 2, 3, 0], [4, 5, 0, 0], [6, 0, 0, 0]]).t().unsqueeze(-1)
    reversed_tokens = reverse_by_length(tokens, torch.tensor([3, 2, 1])).squeeze(-1).t()
    assert reversed_tokens.tolist() == [[3, 2, 1, 0], [5, 4, 0, 0], [6, 0, 0, 0]]


def copy_weights(reference: nn.RNNBase, rnn: SentenceRNN):
    for layer, forward in enumerate(rnn.forward_layers):
        directions = {"": forward}
        if reference.bidirectional:
            directions["_reverse"] = rnn.backward_layers[layer]
        for suffix, module in directions.items():
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
                getattr(reference, f"{name}_l{layer}{suffix}").data.copy_(getattr(module, f"{name}_l0"))


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("cell", CELLS)
def test_equals_packed_rnn(cell, bidirectional):
    torch.manual_seed(0)
    rnn = SentenceRNN(cell, 3, 4, 2, bidirectional, dropout=0.0)
    reference = getattr(nn, cell.upper())(3, 4, 2, bidirectional=bidirectional)
    copy_weights(reference, rnn)
    inputs = torch.randn(6, 3, 3)
    inputs[1:, 1] = float("nan")  # padding
    states, finals = rnn(inputs, LENGTHS)
    packed, final = reference(pack_padded_sequence(inputs, LENGTHS, enforce_sorted=False))
    expected, _ = pad_packed_sequence(packed, total_length=6)
    torch.testing.assert_close(states, expected)
    hidden = final[0] if cell == "lstm" else final
    per_layer = hidden.view(2, -1, 3, 4).transpose(1, 2).reshape(2, 3, -1)
    torch.testing.assert_close(finals.transpose(0, 1), per_layer)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("known", [0, 1, 3])
@pytest.mark.parametrize("cell", CELLS)
def test_steps_equal_one_call(cell, known, device):
    torch.manual_seed(0)
    rnn = DecoderRNN(cell, 3, 4, 2, dropout=0.0).to(device)
    inputs = torch.randn(5, 2, 3, device=device)
    state = tuple(torch.randn(2, 2, 4, device=device) for _ in range(rnn.state_size))
    outputs, final = rnn(inputs, state)
    layers, tops = unstack_state(state), []
    advance = rnn.for_steps(inputs[..., :known])
    for rest in inputs[..., known:]:
        layers = advance(rest, layers)
        tops.append(layers[-1][0])
    torch.testing.assert_close(torch.stack(tops), outputs)
    for part, expected in zip(stack_state(layers), final):
        torch.testing.assert_close(part, expected)
    by_steps = torch.autograd.grad(torch.stack(tops).pow(2).sum(), rnn.parameters())
    for gradient, expected in zip(by_steps, torch.autograd.grad(outputs.pow(2).sum(), rnn.parameters())):
        torch.testing.assert_close(gradient, expected)


def test_dropout_between_layers_only_in_training():
    torch.manual_seed(0)
    rnn = SentenceRNN("lstm", 3, 4, 2, False, dropout=0.5)
    inputs = torch.randn(6, 3, 3)
    assert not torch.equal(rnn(inputs, LENGTHS)[0], rnn(inputs, LENGTHS)[0])
    rnn.eval()
    assert torch.equal(rnn(inputs, LENGTHS)[0], rnn(inputs, LENGTHS)[0])


def test_without_layers_the_states_are_the_inputs():
    inputs = torch.randn(5, 3, 4)
    rnn = SentenceRNN("lstm", 4, 6, layers=0, bidirectional=False, dropout=0.0)
    states, finals = rnn(inputs, torch.tensor([5, 2, 1]))
    assert rnn.output_dim == 4 and finals.shape == (3, 0, 6)
    assert torch.equal(states[:, 0], inputs[:, 0]) and torch.equal(states[:2, 1], inputs[:2, 1])
    assert not states[2:, 1].any()
