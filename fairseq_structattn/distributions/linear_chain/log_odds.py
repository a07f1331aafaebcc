"""Binary linear chain by a recursion on log-odds, with a backward pass in closed form.

A binary chain is determined by its fields h (log-odds of a position without neighbours) and couplings J. With
sp(x) = log(1 + eˣ) and σ = sp′, the messages

    f_1 = h_1,   f_{i+1} = h_{i+1} + sp(f_i + J_i) − sp(f_i)      from the left,
    c_n = h_n,   c_i     = h_i + sp(c_{i+1} + J_i) − sp(c_{i+1})  from the right

give log Z = Σ sp(f_i) and P(z_i = 1) = σ(f_i + c_i − h_i). Increments lie between 0 and J, so messages do not grow with
the number of positions. Both messages obey the same recursion, the second in reverse order: they are stacked and run
together, with positions first so that a step is a few operations on contiguous memory.

The gradient of marginals μ for an upstream gradient g is Cov(parts) · g, and a covariance is symmetric. So the backward
pass is the forward-mode derivative of the recursion in direction g. A step is one multiply-add, whose coefficients are
differences of probabilities. (Expectation semiring: Li & Eisner, EMNLP 2009. The same products as the backpropagation
of Kim et al., ICLR 2017, figure 2, without signed logarithms.)
"""

from typing import List, Optional, Tuple

import torch
from torch import Tensor
from torch.nn import functional as F

from ..operations import Operation
from ..semirings import NEGATIVE_INFINITY
from . import reference
from .potentials import Potentials

argmax, sample = reference.argmax, reference.sample


def expectations(chain: Potentials, with_edges: bool = False) -> Tuple[Tensor, Tensor, Optional[Tensor]]:
    """log Z ``[*batch]``, marginals in the shape of ``unary`` and, if asked, edge marginals ``[*batch, n-1, K, K]``.

    Differentiable any number of times. The reference computes chains that cannot be reduced to fields.
    """
    if not chain.reduces_to_fields():
        return reference.expectations(chain, with_edges)
    unary, constant = chain.selected()
    unary, batch_shape, n = unary.to(chain.pairwise.dtype), chain.lengths.shape, chain.positions
    table = _positions_first_table(chain.pairwise, batch_shape)
    real = None if chain.real is None else _positions_first(chain.real)
    fields, coupling = _fields(_positions_first(unary), table, real), _coupling(table)
    log_partition, marginals, edges = _log_odds(fields, coupling, with_edges)
    log_partition = log_partition + _constant(table, real, n)
    if real is not None:
        # Marginals in padding are 0 already. The mask keeps upstream gradients there out of the backward recursion.
        marginals = marginals.masked_fill(~real, 0)
    if with_edges:
        edges = edges if real is None else edges.masked_fill(~real[1:], 0)
        edges = edges.permute(2, 1, 0).contiguous().reshape(batch_shape + (n - 1, 2, 2))
    log_partition = log_partition.reshape(batch_shape) + constant
    return log_partition, marginals.t().contiguous().reshape(unary.shape), edges


def _positions_first(tensor: Tensor) -> Tensor:
    """``[*batch, n]`` to contiguous ``[n, chains]``."""
    return tensor.reshape(tensor.shape[:-1].numel(), tensor.shape[-1]).t().contiguous()


def _positions_first_table(pairwise: Tensor, batch_shape: torch.Size) -> Tensor:
    """Tables as ``[2, 2, edges, chains]``, where either of the last two is 1 if the tables are shared along it."""
    if pairwise.dim() == 2:
        return pairwise[..., None, None]
    edges = pairwise.shape[-3]
    if pairwise.shape[:-3].numel() == 1:
        return pairwise.reshape(edges, 2, 2).permute(1, 2, 0).unsqueeze(-1)
    per_chain = pairwise.expand(batch_shape + (edges, 2, 2)).reshape(batch_shape.numel(), edges, 2, 2)
    return per_chain.permute(2, 3, 1, 0)


def _coupling(table: Tensor) -> Tensor:
    return table[1, 1] - table[1, 0] - table[0, 1] + table[0, 0]


def _fields(unary: Tensor, table: Tensor, real: Optional[Tensor]) -> Tensor:
    """Fields ``[n, chains]``, −inf in padding: a position that is 0 for certain passes no message."""
    edges = unary.shape[0] - 1
    on_left = table[1, 0] - table[0, 0]
    on_right = table[0, 1] - table[0, 0]
    if real is None:
        fields = unary
    else:
        fields = unary.masked_fill(~real, NEGATIVE_INFINITY)
        # The last real position is the left end of an edge into padding, which does not exist.
        on_left = torch.where(real[1:], on_left, on_left.new_zeros(()))
    return fields + _pad(on_left, edges, (0, 1)) + _pad(on_right, edges, (1, 0))


def _pad(scores: Tensor, edges: int, around: Tuple[int, int]) -> Tensor:
    return F.pad(scores.expand(edges, scores.shape[1]), (0, 0) + around)


def _constant(table: Tensor, real: Optional[Tensor], n: int) -> Tensor:
    """The score of the sequence of zeros, ``[chains]``, which fields and couplings leave out of log Z."""
    stay = table[0, 0].expand(n - 1, table.shape[-1])
    return (stay if real is None else torch.where(real[1:], stay, stay.new_zeros(()))).sum(0)


class _LogOdds(Operation):
    """fields ``[n, chains]``, coupling ``[n-1 or 1, chains or 1]`` → log Z ``[chains]``, marginals ``[n, chains]`` and
    edge marginals ``[4, n-1, chains]`` in the order of states 00, 01, 10, 11 (or ``None``)."""

    name = "binary_chain_in_pytorch"
    arguments = "Tensor fields, Tensor coupling, bool with_edges"
    potentials, results, outputs, kept = 2, 3, 4, (1, 3)
    wide = False

    def forward(self, fields: Tensor, coupling: Tensor, with_edges: bool):
        messages, log_partition, marginals = _messages(fields, coupling)
        edges = _edge_marginals(messages, coupling) if with_edges else None
        return log_partition, marginals, edges, messages

    def gradient(self, inputs, outputs, upstream):
        (_, coupling, _), (_, marginals, _, messages) = inputs, outputs
        grad_log_partition, grad_marginals, grad_edges = upstream
        alone, joined = torch.sigmoid(messages[:-1]), torch.sigmoid(messages[:-1] + _both_ways(coupling))
        # P(z_i = z_{i+1} = 1) = P(z_i = 1) P(z_{i+1} = 1 | z_i = 1).
        both = marginals[:-1] * joined[:, 1].flip(0)
        grad_fields, grad_coupling = torch.zeros_like(marginals), torch.zeros_like(both)
        if grad_marginals is not None or grad_edges is not None:
            direction, edge_direction = _direction(marginals, grad_marginals, grad_edges)
            left, right = _tangents(alone, joined, direction, edge_direction)
            rest = 1 - marginals
            torch.mul(marginals * rest, left + right - direction, out=grad_fields)
            torch.mul(rest[:-1], left[:-1], out=grad_coupling).addcmul_(rest[1:], right[1:])
            if edge_direction is not None:
                grad_coupling.addcmul_(1 - both, edge_direction)
            grad_coupling.mul_(both)
        if grad_log_partition is not None:
            grad_fields.addcmul_(marginals, grad_log_partition)
            grad_coupling.addcmul_(both, grad_log_partition)
        return grad_fields, grad_coupling.sum_to_size(coupling.shape)

    def shapes(self, fields, coupling, with_edges):
        n, chains = fields.shape
        edges = fields.new_empty((4, n - 1, chains) if with_edges else 0)
        return fields.new_empty(chains), fields.new_empty(n, chains), edges, fields.new_empty(n, 2, chains)

    def parts(self, fields, coupling):
        both = coupling.expand(fields.shape[0] - 1, fields.shape[1])
        return fields, torch.stack((torch.zeros_like(both),) * 3 + (both,))

    def log_partition(self, fields, edges, with_edges):
        n, chains = fields.shape
        states = torch.stack((torch.zeros_like(fields), fields), -1).transpose(0, 1)
        return reference.total(states, edges.permute(2, 1, 0).reshape(chains, n - 1, 2, 2), _lengths(fields))

    def all_results(self, fields, coupling, with_edges):
        return fields, coupling, True

    def weigh(self, weights, part):
        return weights * part


_log_odds = _LogOdds()


def _lengths(fields: Tensor) -> Tensor:
    """The full length for every chain, since fields are −inf in padding."""
    return torch.full(fields.shape[1:], fields.shape[0], device=fields.device)


def _both_ways(per_edge: Tensor) -> Tensor:
    """Stack ``[n-1 or 1, …]`` in left-to-right and right-to-left order: ``[n-1 or 1, 2, …]``."""
    return torch.stack((per_edge, per_edge.flip(0)), 1)


def _per_step(per_edge: Tensor, edges: int) -> List[Tensor]:
    return list(per_edge.expand((edges,) + per_edge.shape[1:]).unbind(0))


def _messages(fields: Tensor, coupling: Tensor) -> Tuple[Tensor, Tensor, Tensor]:
    """Messages ``[n, 2, chains]`` (f in order, c from the right end), log Z and marginals."""
    messages = _both_ways(fields)
    couplings = _per_step(_both_ways(coupling), fields.shape[0] - 1)
    arrived = torch.empty_like(messages)
    arrived[0] = 0
    steps, increments = messages.unbind(0), arrived.unbind(0)
    for message, following, increment, joint in zip(steps, steps[1:], increments[1:], couplings):
        torch.sub(_softplus(message + joint), _softplus(message), out=increment)
        following.add_(increment)
    # f + (c − h) is computed from the increment c − h, because h may be −inf.
    marginals = torch.sigmoid(messages[:, 0] + arrived[:, 1].flip(0))
    return messages, _softplus(messages[:, 0]).sum(0), marginals


def _edge_marginals(messages: Tensor, coupling: Tensor) -> Tensor:
    left, right = messages[:-1, 0], messages[:-1, 1].flip(0)
    return torch.softmax(torch.stack((torch.zeros_like(left), right, left, left + right + coupling)), 0)


def _direction(
    marginals: Tensor, grad_marginals: Optional[Tensor], grad_edges: Optional[Tensor]
) -> Tuple[Tensor, Optional[Tensor]]:
    """The upstream gradient as a direction in fields and couplings: a linear function of edge marginals is one of
    P(z_i = 1), P(z_{i+1} = 1) and P(both = 1)."""
    direction = torch.zeros_like(marginals)
    if grad_marginals is not None:
        direction += grad_marginals
    if grad_edges is None:
        return direction, None
    g00, g01, g10, g11 = grad_edges
    direction[:-1] += g10 - g00
    direction[1:] += g01 - g00
    return direction, g11 - g10 - g01 + g00


def _tangents(
    alone: Tensor, joined: Tensor, direction: Tensor, edge_direction: Optional[Tensor]
) -> Tuple[Tensor, Tensor]:
    """Derivatives of the messages f and c in the given direction, each ``[n, chains]``."""
    tangents = _both_ways(direction)
    if edge_direction is not None:
        tangents[1:].addcmul_(joined, _both_ways(edge_direction))
    steps = tangents.unbind(0)
    for tangent, following, gate in zip(steps, steps[1:], (joined - alone).unbind(0)):
        following.addcmul_(gate, tangent)
    return tangents[:, 0], tangents[:, 1].flip(0)


def _softplus(scores: Tensor) -> Tensor:
    # The error of softplus with its default threshold of 20 is visible in float64.
    return F.softplus(scores, 1, 40)
