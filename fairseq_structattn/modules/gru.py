"""A GRU for small batches on the CPU: its recurrence is one function with a backward pass in closed form.

For the CPU, PyTorch has no fused GRU: its own dispatches twenty operations for each word and direction, and as many in
the backward pass, which in training takes longer than to compute them if they are small. With the gates r, z and the
content n of a step,

    r, z = σ(x_r + u_r), σ(x_z + u_z),    n = tanh(x_n + r ⊙ u_n),    h' = (1 − z) ⊙ n + z ⊙ h,    u = W h + b,

every gradient of the step is a factor times the gradient g of h': with a = (1 − z)(1 − n²), that of x_n is a ⊙ g, that
of u_n is a r ⊙ g, that of x_r and u_r is a u_n r (1 − r) ⊙ g, and that of x_z and u_z is (h − n) z (1 − z) ⊙ g. The
factors of all steps are computed together. What is left for each step is one product with the factors, one with W, and
the term z ⊙ g of the gradient of h. Directions run side by side.
"""

from typing import Optional, Sequence, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_structattn.modules.cells import gru_cell

# For larger states, PyTorch's own recurrence, which needs less memory, is as fast or faster.
LARGEST_STATE = 8192


class GRU(nn.GRU):
    """PyTorch's GRU, time first and in one direction, with another recurrence where :func:`is_small`."""

    def forward(self, inputs: Tensor, state: Optional[Tensor] = None):  # type: ignore[override]
        """See :class:`torch.nn.GRU`."""
        if not is_small(inputs, self.hidden_size):
            return super().forward(inputs, state)
        finals, states = [], inputs
        for layer, weights in enumerate(self.all_weights):
            if layer > 0:
                states = F.dropout(states, self.dropout, self.training)
            start = None if state is None else state[layer : layer + 1]
            (states,) = gru_layer([states], [weights], start)
            finals.append(states[-1])
        return states, torch.stack(finals)


def is_small(inputs: Tensor, hidden_dim: int) -> bool:
    """Whether inputs ``[steps, batch, input_dim]`` are for the recurrence of this module: in training, on the CPU, and
    with up to :data:`LARGEST_STATE` numbers in a state."""
    return inputs.device.type == "cpu" and torch.is_grad_enabled() and inputs.size(1) * hidden_dim <= LARGEST_STATE


def gru_layer(
    inputs: Sequence[Tensor], weights: Sequence[Sequence[Tensor]], start: Optional[Tensor] = None
) -> Sequence[Tensor]:
    """The states of several GRUs of equal size, which run side by side.

    Args:
        inputs: of each, ``[steps, batch, input_dim]``
        weights: of each, those of a layer of :class:`torch.nn.GRU`
        start: states before the first step, ``[number, batch, hidden_dim]`` (default: 0)

    Returns:
        states of each, ``[steps, batch, hidden_dim]``, in the dtype of the weights
    """
    gates = torch.stack([F.linear(part, own[0], own[2]) for part, own in zip(inputs, weights)], 1)
    of_state, bias = torch.stack([own[1] for own in weights]), torch.stack([own[3] for own in weights])
    gates = gates.to(of_state.dtype)
    if start is None:
        start = gates.new_zeros(*gates.shape[1:3], of_state.size(-1))
    return _Recurrence.apply(gates, of_state, bias.unsqueeze(1), start.to(of_state.dtype)).unbind(1)


class _Recurrence(torch.autograd.Function):
    """From the terms of the inputs ``[steps, number, batch, 3 · hidden]``, weights of the states ``[number, 3 · hidden,
    hidden]``, their biases ``[number, 1, 3 · hidden]`` and the states before the first step ``[number, batch, hidden]``
    to all states ``[steps, number, batch, hidden]``."""

    @staticmethod
    def forward(ctx, gates: Tensor, weight: Tensor, bias: Tensor, start: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            states, of_state, marks, content = _run(gates, weight.transpose(1, 2), bias, start)
        ctx.save_for_backward(gates, weight, bias, start, states, of_state, marks, content)
        return states[1:]

    @staticmethod
    def backward(ctx, grad: Tensor):
        inputs, (states, of_state, marks, content) = ctx.saved_tensors[:4], ctx.saved_tensors[4:]
        if torch.is_grad_enabled():
            return torch.autograd.grad(_differentiable(*inputs), inputs, grad, create_graph=True)
        with torch.autocast("cpu", enabled=False):
            slope, factors = _factors(states[:-1], of_state, marks, content)
            grads, grad_of_state = _run_back(grad, factors, marks.chunk(2, -1)[1], inputs[1])
            # The terms of input and state have the same gradients, but for that of the content.
            grad_gates = grad_of_state.clone()
            torch.mul(grads[1:], slope, out=grad_gates[..., -slope.size(-1) :])
            by_direction = grad_of_state.transpose(0, 1).flatten(1, 2)
            before = states[:-1].transpose(0, 1).flatten(1, 2)
            grad_weight = torch.bmm(by_direction.transpose(1, 2), before)
            return grad_gates, grad_weight, by_direction.sum(1, keepdim=True), grads[0]


def _run(gates: Tensor, matrix: Tensor, bias: Tensor, start: Tensor) -> Tuple[Tensor, Tensor, Tensor, Tensor]:
    """States, the first of them `start`; the terms u; reset and update gates side by side; and contents."""
    steps, width = gates.size(0), start.size(-1)
    states = gates.new_empty(steps + 1, *start.shape)
    states[0] = start
    of_state, marks = torch.empty_like(gates), gates.new_empty(*gates.shape[:-1], 2 * width)
    content = torch.empty_like(states[1:])
    split = (2 * width, width)
    parts = (states[:-1], states[1:], of_state, *of_state.split(split, -1), *gates.split(split, -1))
    for hidden, following, term, *terms, mark, reset, update, new in zip(
        *(part.unbind(0) for part in (*parts, marks, *marks.chunk(2, -1), content))
    ):
        gates_of_state, content_of_state, gates_of_input, content_of_input = terms
        torch.baddbmm(bias, hidden, matrix, out=term)
        torch.add(gates_of_input, gates_of_state, out=mark).sigmoid_()
        torch.addcmul(content_of_input, reset, content_of_state, out=new).tanh_()
        torch.lerp(new, hidden, update, out=following)
    return states, of_state, marks, content


def _factors(before: Tensor, of_state: Tensor, marks: Tensor, content: Tensor) -> Tuple[Tensor, Tensor]:
    """The factor of the gradient of x_n, and those of u_r, u_z and u_n, ``[steps, number, batch, 3, hidden]``."""
    reset, update = marks.chunk(2, -1)
    slope = (1 - update).mul_(1 - content * content)
    factors = of_state.new_empty(*content.shape[:-1], 3, content.size(-1))
    of_reset, of_update, of_content = factors.unbind(-2)
    torch.mul(slope, reset, out=of_content)
    torch.mul(of_content, 1 - reset, out=of_reset).mul_(of_state[..., -content.size(-1) :])
    torch.mul(update, 1 - update, out=of_update).mul_(before - content)
    return slope, factors


def _run_back(grad: Tensor, factors: Tensor, update: Tensor, weight: Tensor) -> Tuple[Tensor, Tensor]:
    """The gradients of all states, that before the first step first, and those of the terms u."""
    grads = torch.cat((grad.new_zeros(1, *grad.shape[1:]), grad))
    grad_of_state = torch.empty_like(factors)
    steps = zip(*(part.unbind(0) for part in (grads[1:], grads[:-1], grad_of_state, factors, update)))
    for after, before, terms, factor, kept in reversed(list(steps)):
        torch.mul(after.unsqueeze(-2), factor, out=terms)
        before.baddbmm_(terms.flatten(-2), weight).addcmul_(after, kept)
    return grads, grad_of_state.flatten(-2)


def _differentiable(gates: Tensor, weight: Tensor, bias: Tensor, start: Tensor) -> Tensor:
    """:class:`_Recurrence`, recorded by autograd."""
    states = [start]
    for of_input in gates.unbind(0):
        of_state = torch.baddbmm(bias, states[-1], weight.transpose(1, 2))
        states.append(gru_cell(of_input, of_state, states[-1]))
    return torch.stack(states[1:])
