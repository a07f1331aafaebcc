"""A GRU for small batches on the CPU: its recurrence is one function with a backward pass in closed form.

For the CPU, PyTorch has no fused GRU: its own dispatches twenty operations for each word and direction, and as many in
the backward pass, which in training takes longer than to compute them if they are small. With the gates r, z and the
content n of a step,

    r, z = σ(x_r + u_r), σ(x_z + u_z),    n = tanh(x_n + r ⊙ u_n),    h' = (1 − z) ⊙ n + z ⊙ h,    u = W h + b,

every gradient of the step is a factor times the gradient g of h': with a = (1 − z)(1 − n²), that of x_n is a ⊙ g, that
of u_n is a r ⊙ g, that of x_r and u_r is a u_n r (1 − r) ⊙ g, and that of x_z and u_z is (h − n) z (1 − z) ⊙ g. The
factors of all steps are computed together. What is left for each step is one product with the factors, one with W, and
the term z ⊙ g of the gradient of h. Directions run side by side. One product of a step gives r, z, x_n and u_n, which
are a fourth part because r multiplies them.
"""

from typing import Optional, Sequence, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# For larger states PyTorch's own recurrence, whose products are a quarter smaller, is as fast or faster.
LARGEST_STATE = 1024


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
    gates = torch.stack([_terms(part, own) for part, own in zip(inputs, weights)], 1)
    of_state = torch.stack([_of_state(own) for own in weights])
    gates = gates.to(of_state.dtype)
    if start is None:
        start = gates.new_zeros(*gates.shape[1:3], of_state.size(-1))
    return _Recurrence.apply(gates, of_state, start.to(of_state.dtype)).unbind(1)


def _terms(inputs: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """What is added to the products with the state, ``[steps, batch, 4 · hidden]``: x_r, x_z and x_n with their biases,
    and the bias of u_n, which the reset gate multiplies."""
    of_input, _, bias, bias_of_state = weights
    of_gates, of_content = bias_of_state.split(2 * bias.size(0) // 3)
    terms = F.linear(inputs, of_input, bias + F.pad(of_gates, (0, of_content.size(0))))
    return torch.cat((terms, of_content.to(terms.dtype).expand(*terms.shape[:2], -1)), -1)


def _of_state(weights: Sequence[Tensor]) -> Tensor:
    """W ``[4 · hidden, hidden]``, which is 0 for x_n."""
    of_gates, of_content = weights[1].split(2 * weights[1].size(1))
    return torch.cat((of_gates, torch.zeros_like(of_content), of_content))


class _Recurrence(torch.autograd.Function):
    """From terms ``[steps, number, batch, 4 · hidden]``, weights of the states ``[number, 4 · hidden, hidden]`` and the
    states before the first step ``[number, batch, hidden]`` to all states ``[steps, number, batch, hidden]``."""

    @staticmethod
    def forward(ctx, terms: Tensor, weight: Tensor, start: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            states, sums, content = _run(terms, weight.transpose(1, 2), start)
        ctx.save_for_backward(terms, weight, start, states, sums, content)
        return states[1:]

    @staticmethod
    def backward(ctx, grad: Tensor):
        inputs, (states, sums, content) = ctx.saved_tensors[:3], ctx.saved_tensors[3:]
        if torch.is_grad_enabled():
            return torch.autograd.grad(_differentiable(*inputs), inputs, grad, create_graph=True)
        with torch.autocast("cpu", enabled=False):
            grad_start, grads = _run_back(grad, _factors(states[:-1], sums, content), sums, inputs[1])
            by_direction, before = (part.transpose(0, 1).flatten(1, 2) for part in (grads, states[:-1]))
            return grads, torch.bmm(by_direction.transpose(1, 2), before), grad_start


def _run(terms: Tensor, matrix: Tensor, start: Tensor) -> Tuple[Tensor, Tensor, Tensor]:
    """States, the first of them `start`; r, z, x_n and u_n side by side; and contents."""
    sums, states, contents = torch.empty_like(terms), [start], []
    marks = sums[..., : 2 * start.size(-1)]
    for term, total, mark, reset, update, of_input, of_state in zip(
        *(part.unbind(0) for part in (terms, sums, marks, *sums.chunk(4, -1)))
    ):
        torch.baddbmm(term, states[-1], matrix, out=total)
        mark.sigmoid_()
        contents.append(torch.addcmul(of_input, reset, of_state).tanh_())
        states.append(torch.lerp(contents[-1], states[-1], update))
    return torch.stack(states), sums, torch.stack(contents)


def _factors(before: Tensor, sums: Tensor, content: Tensor) -> Tensor:
    """The factors of the gradients of r's argument, z's, x_n and u_n, ``[steps, number, batch, 4, hidden]``."""
    reset, update, _, of_state = sums.chunk(4, -1)
    factors = sums.new_empty(*content.shape[:-1], 4, content.size(-1))
    of_reset, of_update, of_input, of_product = factors.unbind(-2)
    torch.mul(1 - update, 1 - content * content, out=of_input)
    torch.mul(of_input, reset, out=of_product)
    torch.mul(of_product, 1 - reset, out=of_reset).mul_(of_state)
    torch.mul(update, 1 - update, out=of_update).mul_(before - content)
    return factors


def _run_back(grad: Tensor, factors: Tensor, sums: Tensor, weight: Tensor) -> Tuple[Tensor, Tensor]:
    """The gradients of the states before the first step and of all terms."""
    grads, update = torch.empty_like(sums), sums.chunk(4, -1)[1]
    of_states = torch.cat((grad.new_zeros(1, *grad.shape[1:]), grad)).unbind(0)
    split = grads.view_as(factors)
    steps = zip(of_states[1:], of_states, *(part.unbind(0) for part in (grads, split, factors, update)))
    for after, before, flat, parts, factor, kept in reversed(list(steps)):
        torch.mul(after.unsqueeze(-2), factor, out=parts)
        before.baddbmm_(flat, weight).addcmul_(after, kept)
    return of_states[0], grads


def _differentiable(terms: Tensor, weight: Tensor, start: Tensor) -> Tensor:
    """:class:`_Recurrence`, recorded by autograd."""
    states = [start]
    for term in terms.unbind(0):
        reset, update, of_input, of_state = torch.baddbmm(term, states[-1], weight.transpose(1, 2)).chunk(4, -1)
        content = torch.tanh(of_input + torch.sigmoid(reset) * of_state)
        states.append(torch.lerp(content, states[-1], torch.sigmoid(update)))
    return torch.stack(states[1:])
