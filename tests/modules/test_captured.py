"""Functions whose passes are captured and replayed, on the CPU by a stand-in for CUDA graphs."""

import copy

import pytest
import torch
from recording import Recording
from torch import nn

from fairseq_structattn.modules.captured import CapturedFunctions, CudaGraphs

NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, NO_GPU])]


@pytest.fixture(params=DEVICES)
def device(request):
    torch.manual_seed(0)
    return request.param


@pytest.fixture
def captured(device):
    return CapturedFunctions(Recording() if device == "cpu" else CudaGraphs())


@pytest.fixture
def linear(device):
    return nn.Linear(3, 2).to(device)


@pytest.fixture
def function(linear):
    def function(inputs, factor):
        linear.calls += 1
        return torch.tanh(linear(inputs)) * factor, inputs > 0

    linear.calls = 0
    return function


def draw(device, rows=4):
    return torch.randn(rows, 3, device=device, requires_grad=True), torch.randn(rows, 1, device=device)


def everything(function, linear, inputs, captured=None):
    """Results and gradients, as they are or captured."""
    results = function(*inputs) if captured is None else captured(function, inputs, list(linear.parameters()))
    leaves = [inputs[0], *linear.parameters()]
    upstream = torch.arange(1.0, 1 + results[0].numel(), device=results[0].device).view_as(results[0])
    return [*results, *torch.autograd.grad(results[0], leaves, upstream)]


def same(found, expected):
    for value, other in zip(found, expected):
        torch.testing.assert_close(value, other)


def test_values_and_gradients_are_those_of_the_function(captured, function, linear, device):
    for _ in range(4):
        inputs = draw(device)
        same(everything(function, linear, inputs, captured), everything(function, linear, inputs))
        with torch.no_grad():
            linear.weight.mul_(1.5)  # what an optimizer does
    assert linear.calls == 4 + 2  # python runs at the first call, and at the capture


def test_results_stay_when_another_call_follows(captured, function, linear, device):
    pairs = [draw(device) for _ in range(4)]
    found = [everything(function, linear, pair, captured) for pair in pairs]
    for pair, one in zip(pairs, found):
        same(one, everything(function, linear, pair))


def test_gradients_of_parameters_add_up(captured, function, linear, device):
    pairs = [draw(device) for _ in range(5)]
    for pair in pairs:
        captured(function, pair, list(linear.parameters()))[0].sum().backward()
    total, linear.weight.grad = linear.weight.grad, None
    for pair in pairs:
        function(*pair)[0].sum().backward()
    torch.testing.assert_close(total, linear.weight.grad)


def test_what_is_captured_anew(captured, function, linear, device):
    """Another shape, another variant, and parameters that lie elsewhere; beyond the limit nothing is."""

    def calls(pair, **options):
        before = linear.calls
        for _ in range(3):
            captured(function, pair, list(linear.parameters()), **options)
        return linear.calls - before

    assert calls(draw(device)) == 2 and calls(draw(device)) == 0
    assert calls(draw(device, 5)) == 2 and calls(draw(device), variant="other") == 2
    linear.double().float()
    pair = draw(device)
    assert calls(pair) == 2
    same(captured(function, pair, list(linear.parameters())), function(*pair))
    captured.limit = 4
    assert calls(draw(device, 6)) == 3 and calls(draw(device)) == 0


def test_a_backward_pass_whose_memory_is_overwritten(captured, function, linear, device):
    for _ in range(2):
        first = captured(function, draw(device), list(linear.parameters()))[0]
    second = captured(function, draw(device), list(linear.parameters()))[0]
    with pytest.raises(RuntimeError, match="differentiate each result once, and before the next call"):
        first.sum().backward()
    second.sum().backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="differentiate each result once"):
        second.sum().backward()


def test_a_parameter_without_a_gradient_gets_none(captured, function, linear, device):
    unused = nn.Parameter(torch.ones(1, device=device))
    linear.bias.requires_grad_(False)
    for _ in range(3):
        captured(function, draw(device), [*linear.parameters(), unused])[0].sum().backward()
    assert unused.grad is None and linear.bias.grad is None and linear.weight.grad is not None


def test_a_value_that_is_read(captured, linear, device):
    def function(inputs):
        return (inputs * (2 if inputs.sum().item() > 0 else 1),)

    inputs = torch.randn(4, 3, device=device, requires_grad=True)
    captured(function, [inputs], [])
    if device == "cpu":  # on a GPU the error would end the process's stream
        with pytest.raises(RuntimeError, match="capturing"):
            captured(function, [inputs], [])


def test_copies_have_captured_nothing(captured, function, linear, device):
    for _ in range(2):
        captured(function, draw(device), list(linear.parameters()))
    copied = copy.deepcopy(captured)
    assert copied.limit == captured.limit and not copied._captured and isinstance(copied.capture, CudaGraphs)
