"""Recurrent networks, as one call and layer by layer, against each other and PyTorch's with packing."""

import doctest

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from fairseq_structattn.modules import packing, recurrent
from fairseq_structattn.modules.packing import Packing
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


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("cell", CELLS)
def test_single_steps_equal_one_call(cell, device):
    torch.manual_seed(0)
    rnn = DecoderRNN(cell, 3, 4, 2, dropout=0.5).to(device).eval()
    inputs = torch.randn(3, 2, 3, device=device)
    state = tuple(torch.randn(2, 2, 4, device=device) for _ in range(rnn.state_size))
    expected, _ = rnn(inputs, state)
    layers = unstack_state(state)
    for given, output in zip(inputs, expected):
        layers = rnn.one_step(given, layers)
        torch.testing.assert_close(layers[-1][0], output)
    assert not torch.equal(rnn.train().one_step(given, layers)[1][0], rnn.one_step(given, layers)[1][0])


def as_on_a_gpu(monkeypatch):
    monkeypatch.setattr(recurrent, "reads_packed", lambda device: True)


def results(rnn, inputs, lengths):
    """States, final states and the gradients of inputs and parameters."""
    inputs = inputs.clone().requires_grad_()
    states, finals = rnn(inputs, lengths)
    loss = states.pow(2).sum() + finals.mul(torch.linspace(1, 2, finals.numel()).view_as(finals)).sum()
    return [states, finals, *torch.autograd.grad(loss, [inputs, *rnn.parameters()])]


@pytest.mark.parametrize("layers, bidirectional", [(1, True), (2, True), (3, False)])
@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize(
    "lengths, width",
    [([6, 1, 4], 6), ([2, 6, 6, 3], 6), ([3, 2], 6), ([4, 4, 4], 4), ([4, 4], 6), ([5], 5), ([1], 1), ([1, 1], 1)]
    + [([3, 0, 2], 3)],
    ids=str,
)
def test_one_call_on_a_gpu(lengths, width, cell, layers, bidirectional, monkeypatch):
    torch.manual_seed(0)
    rnn = SentenceRNN(cell, 3, 4, layers, bidirectional, dropout=0.0, reads_lengths=True).double()
    inputs, lengths = torch.randn(width, len(lengths), 3, dtype=torch.float64), torch.tensor(lengths)
    monkeypatch.setattr(rnn, "reads_lengths", False)
    expected = results(rnn, inputs, lengths)
    monkeypatch.setattr(rnn, "reads_lengths", True)
    as_on_a_gpu(monkeypatch)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        rnn(inputs, lengths)
    assert sum(event.name in ("aten::lstm", "aten::gru") for event in profile.events()) == 1
    for part, other in zip(results(rnn, inputs, lengths), expected):
        torch.testing.assert_close(part, other, atol=1e-6, rtol=0)


def test_one_call_on_a_cpu_without_padding_only():
    rnn = SentenceRNN("lstm", 3, 4, 2, True, dropout=0.0, reads_lengths=True)
    calls = []
    for lengths in ([6, 6, 6], [6, 6, 5], [5, 5, 5]):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            rnn(torch.randn(6, 3, 3), torch.tensor(lengths))
        calls.append(sum(event.name == "aten::lstm" for event in profile.events()))
    assert calls == [1, 4, 4]


def test_packed_padding_is_not_read(monkeypatch):
    as_on_a_gpu(monkeypatch)
    rnn = SentenceRNN("lstm", 3, 4, 2, True, dropout=0.0, reads_lengths=True)
    inputs = torch.randn(6, 3, 3)
    expected = rnn(inputs, LENGTHS)
    inputs[1:, 1] = float("nan")
    for part, other in zip(rnn(inputs, LENGTHS), expected):
        assert torch.equal(part, other)


def test_packing_is_that_of_pytorch():
    failures, tries = doctest.testmod(packing)
    assert tries and not failures
    inputs = torch.randn(6, 3, 2)
    expected = pack_padded_sequence(inputs, LENGTHS, enforce_sorted=False)
    found = Packing.of(LENGTHS, inputs.device)
    assert torch.equal(found.pack(inputs), expected.data)
    assert torch.equal(found.batch_sizes, expected.batch_sizes)
    assert torch.equal(found.places, expected.unsorted_indices)
    assert torch.equal(found.unpack(expected.data, 7)[:6], pad_packed_sequence(expected)[0])


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("cell", CELLS)
def test_one_block_holds_the_weights_in_the_order_of_pytorch(cell, bidirectional, monkeypatch):
    rnn, blocks = SentenceRNN(cell, 3, 4, 3, bidirectional, dropout=0.0, reads_lengths=True), []
    monkeypatch.setattr(nn.RNNBase, "flatten_parameters", lambda block: blocks.append(list(block._flat_weights)))
    random_numbers = torch.get_rng_state()
    rnn._flatten()
    assert torch.equal(torch.get_rng_state(), random_numbers)
    of_new, weights = blocks
    assert [tuple(weight.shape) for weight in weights] == [tuple(weight.shape) for weight in of_new]
    reference = getattr(nn, cell.upper())(3, 4, 3, bidirectional=bidirectional)
    copy_weights(reference, rnn)
    assert all(torch.equal(weight, other) for weight, other in zip(weights, reference.parameters()))


@pytest.mark.gpu
@NO_GPU
@pytest.mark.parametrize("cell", CELLS)
def test_weights_on_a_gpu_are_one_block(cell):
    rnn = SentenceRNN(cell, 3, 4, 2, True, dropout=0.0, reads_lengths=True)
    inputs = torch.randn(6, 3, 3)
    expected = rnn(inputs, LENGTHS)
    rnn, inputs = rnn.cuda(), inputs.cuda()
    for part, other in zip(rnn(inputs, LENGTHS.cuda()), expected):
        torch.testing.assert_close(part.cpu(), other, atol=1e-5, rtol=0)
    assert len({weight.untyped_storage().data_ptr() for weight in rnn.parameters()}) == 1


@pytest.mark.parametrize("path", ["layer by layer", "one call", "packed"])
def test_dropout_of_states_between_layers(path, monkeypatch):
    torch.manual_seed(0)
    rnn = SentenceRNN("lstm", 3, 8, 2, False, dropout=0.25, reads_lengths=path != "layer by layer")
    if path == "packed":
        as_on_a_gpu(monkeypatch)
    for name, weight in rnn.forward_layers[1].named_parameters():
        weight.data.zero_()
        if name == "weight_ih_l0":
            weight.data[16:24] = torch.eye(8)  # of the content of cells, by which a state of 0 stays 0
    lengths = torch.full((200,), 2)
    lengths[:100] = 1 if path == "packed" else 2
    inputs = torch.randn(2, 200, 3)
    states, finals = rnn(inputs, lengths)
    below = rnn.forward_layers[0](inputs)[0][0]
    torch.testing.assert_close(finals[:100, 0], rnn.eval()(inputs, lengths)[1][:100, 0])
    kept = states[0] != 0
    expected = torch.tanh(torch.tanh(below / 0.75) / 2) / 2
    torch.testing.assert_close(states[0][kept], expected[kept])
    assert abs(kept.float().mean() - 0.75) < 0.05  # four deviations of 1,600 draws


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
