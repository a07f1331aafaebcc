"""The LSTM under autocast, with and without a kernel in the lower precision."""

import pytest
import torch

from fairseq_structattn.modules import lstm

pytestmark = pytest.mark.precision


def run(layer, state):
    """States, final state and all gradients of `layer` over the same sentences."""
    inputs = torch.linspace(-1, 1, 5 * 2 * 3).view(5, 2, 3).requires_grad_()
    outputs, final = layer(inputs, state)
    loss = sum(part.float().pow(2).sum() for part in (outputs, *final))
    return [outputs, *final, *torch.autograd.grad(loss, [inputs, *layer.parameters()])]


@pytest.mark.parametrize("state", [None, (torch.ones(2, 2, 4) / 3, -torch.ones(2, 2, 4))], ids=["zeros", "given"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_runs_whatever_the_processor(dtype, state):
    torch.manual_seed(0)
    layer = lstm.LSTM(3, 4, 2)
    expected = run(layer, state)
    with torch.autocast("cpu", dtype):
        lowered = run(layer, state)
    for part, precise in zip(lowered, expected):
        torch.testing.assert_close(part.float(), precise, atol=0.1, rtol=0.1)


def test_without_a_kernel_autocast_does_not_touch_it(monkeypatch):
    layer = lstm.LSTM(3, 4)
    state = torch.ones(1, 2, 4) / 3, -torch.ones(1, 2, 4)
    expected = run(layer, state)
    monkeypatch.setattr(lstm, "has_kernel", lambda dtype, with_gradient: False)
    with torch.autocast("cpu", torch.bfloat16):
        lowered = run(layer, tuple(part.bfloat16() for part in state))
    for part, precise in zip(lowered[:3], expected):
        assert part.dtype == torch.float32
        torch.testing.assert_close(part, precise, atol=1e-3, rtol=0)


def test_the_trial_leaves_random_numbers_alone():
    before = torch.get_rng_state()
    lstm.has_kernel.__wrapped__(torch.bfloat16, True)
    assert torch.equal(before, torch.get_rng_state())
