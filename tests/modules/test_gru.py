"""The GRU for small batches on the CPU against PyTorch's."""

import pytest
import torch
from counting import Counter
from torch import nn

from fairseq_structattn.modules import gru
from fairseq_structattn.modules.gru import GRU, gru_layer

F64 = torch.float64


def pair(layers=1, dtype=F64):
    """A GRU of this package and PyTorch's with the same weights."""
    torch.manual_seed(0)
    own, reference = GRU(3, 4, layers).to(dtype), nn.GRU(3, 4, layers).to(dtype)
    reference.load_state_dict(own.state_dict())
    return own, reference


def results(rnn, inputs, state):
    """States, final states and all gradients."""
    tensors = [inputs, *([] if state is None else [state]), *rnn.parameters()]
    states, finals = rnn(inputs, state)
    loss = states.sin().sum() + finals.cos().sum()
    return [states, finals, *torch.autograd.grad(loss, tensors)]


@pytest.mark.parametrize("steps, batch", [(5, 3), (1, 3), (4, 1)])
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("given", [False, True])
def test_values_and_gradients(given, layers, steps, batch):
    own, reference = pair(layers)
    inputs = torch.randn(steps, batch, 3, dtype=F64, requires_grad=True)
    state = torch.randn(layers, batch, 4, dtype=F64, requires_grad=True) if given else None
    for found, expected in zip(results(own, inputs, state), results(reference, inputs, state)):
        torch.testing.assert_close(found, expected)


def test_gates_that_are_saturated():
    own, reference = pair()
    inputs = 1e3 * torch.randn(5, 3, 3, dtype=F64, requires_grad=True)
    for found, expected in zip(results(own, inputs, None), results(reference, inputs, None)):
        torch.testing.assert_close(found, expected)


def test_second_derivatives():
    own, _ = pair()
    weights = own.all_weights[0]
    inputs = torch.randn(3, 2, 3, dtype=F64, requires_grad=True)
    start = torch.randn(1, 2, 4, dtype=F64, requires_grad=True)
    assert torch.autograd.gradgradcheck(
        lambda inputs, start, *weights: gru_layer([inputs], [weights], start)[0], (inputs, start, *weights)
    )


def test_two_side_by_side():
    (first, _), inputs = pair(), torch.randn(5, 2, 3, dtype=F64)
    second = GRU(3, 4).double()
    found = gru_layer([inputs, inputs.flip(0)], [first.all_weights[0], second.all_weights[0]])
    torch.testing.assert_close(found[0], first(inputs)[0])
    torch.testing.assert_close(found[1], second(inputs.flip(0))[0])


def dispatched(function):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        function()
    return {event.name for event in profile.events()}


def test_when_it_runs(monkeypatch):
    own, _ = pair()
    inputs = torch.randn(5, 3, 3, dtype=F64)
    assert "aten::gru" not in dispatched(lambda: own(inputs))
    with torch.no_grad():
        assert "aten::gru" in dispatched(lambda: own(inputs))
    monkeypatch.setattr(gru, "LARGEST_STATE", 11)
    assert "aten::gru" in dispatched(lambda: own(inputs))


def test_a_step_has_few_operations():
    """Forward, a product, the gates, two for the content, and the state; backward, the product with the factors, that
    with the weights, and a sum."""
    own, _ = pair()
    counts = []
    for steps in (4, 12):
        counter = Counter()
        with counter:
            own(torch.randn(steps, 2, 3, dtype=F64))[0].sum().backward()
        counts.append(counter.count)
    assert (counts[1] - counts[0]) / 8 < 9


@pytest.mark.precision
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype):
    own, reference = pair(dtype=torch.float32)
    inputs = torch.randn(5, 3, 3, requires_grad=True)
    with torch.autocast("cpu", dtype):
        lowered = results(own, inputs, None)
    for found, expected in zip(lowered, results(reference, inputs, None)):
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, expected, atol=0.1, rtol=0.1)


def test_dropout_between_layers_in_training_only():
    own = GRU(3, 4, 2, dropout=0.5)
    inputs = torch.randn(5, 3, 3)
    assert not torch.equal(own(inputs)[0], own(inputs)[0])
    own.eval()
    assert torch.equal(own(inputs)[0], own(inputs)[0])
