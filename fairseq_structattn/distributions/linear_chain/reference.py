"""Linear chain with K states in plain PyTorch: the specification that the fast implementations are tested against.

It is one recursion over a semiring, whose gradients are marginals, the best sequence or a sample. It runs on any device
and dtype, takes −inf anywhere and can be differentiated any number of times.
"""

from typing import Optional, Tuple

import torch
from torch import Tensor

from ..operations import value_and_marginals
from ..pairwise import mask_edges
from ..semirings import LogSemiring, MaxSemiring, SamplingSemiring, Semiring
from .potentials import NO_STATE, Potentials, mask_states


def expectations(chain: Potentials, with_edges: bool = False) -> Tuple[Tensor, Tensor, Optional[Tensor]]:
    """log Z ``[*batch]``, marginals in the shape of ``unary`` and, if asked, edge marginals ``[*batch, n-1, K, K]``."""
    log_partition, states, edges = total_and_gradients(*chain.states())
    # Marginals in padding are 0 already. The mask stops upstream gradients there that are not finite.
    states = chain.given_form(mask_states(states, chain.real))
    return log_partition, states, mask_edges(edges, chain.real) if with_edges else None


def argmax(chain: Potentials) -> Tensor:
    """The states ``[*batch, n]`` of a best sequence, :data:`NO_STATE` in padding and where none is possible."""
    return _numbers(total_and_gradients(*chain.states(), MaxSemiring)[1])


def sample(chain: Potentials, count: int, generator: Optional[torch.Generator] = None) -> Tensor:
    """The states ``[count, *batch, n]`` of exact samples, :data:`NO_STATE` in padding and where none is possible."""
    unary, pairwise, lengths = chain.states()
    copies = unary.detach().expand(count, *unary.shape), pairwise.detach(), lengths.expand(count, *lengths.shape)
    return _numbers(total_and_gradients(*copies, SamplingSemiring(generator))[1])


def total(unary: Tensor, pairwise: Tensor, lengths: Tensor, semiring: Semiring = LogSemiring) -> Tensor:
    """Semiring sum over all state sequences, ``[*batch]``: log Z in the log semiring. A sequence of length 0 scores 0.

    The forward recursion of Kim et al. (ICLR 2017), figure 2.

    Args:
        unary: ``[*batch, n, K]``, score of each state at each position; finite in padding.
        pairwise: ``[*batch, n-1, K, K]`` or ``[K, K]``, score of state a at i and b at i+1 in ``[..., a, b]``; finite
            in padding.
        lengths: integers ``[*batch]``.
    """
    batch_shape, n = unary.shape[:-2], unary.shape[-2]
    if n == 0:
        return unary.sum((-2, -1))
    nothing = unary.new_zeros(batch_shape)
    # unbind instead of indexing, whose gradient would be a tensor of the full size for every position.
    positions = unary.unbind(-2)
    edges = _per_edge(unary, pairwise).unbind(-3)
    message = positions[0]
    for i in range(1, n):
        arriving = semiring.sum(message.unsqueeze(-1) + edges[i - 1], -2) + positions[i]
        message = torch.where((lengths > i).unsqueeze(-1), arriving, message)
    return torch.where(lengths > 0, semiring.sum(message, -1), nothing)


def total_and_gradients(
    unary: Tensor, pairwise: Tensor, lengths: Tensor, semiring: Semiring = LogSemiring
) -> Tuple[Tensor, Tensor, Tensor]:
    """The total ``[*batch]`` and its gradients with respect to unary ``[*batch, n, K]`` and edge scores
    ``[*batch, n-1, K, K]``: marginals in the log semiring, indicators of a sequence in the others.

    Arguments as for :func:`total`. The results carry a graph where gradients are enabled and the potentials need them.
    """
    # torch.autograd.grad would not find a view that was made while gradients were disabled.
    with torch.enable_grad():
        edges = _per_edge(unary, pairwise)
    value, (grad_unary, grad_edges) = value_and_marginals(
        lambda nodes, pairs: total(nodes, pairs, lengths, semiring), unary, edges
    )
    return value, grad_unary, grad_edges


def _numbers(indicators: Tensor) -> Tensor:
    return indicators.argmax(-1).masked_fill(indicators.sum(-1) == 0, NO_STATE)


def _per_edge(unary: Tensor, pairwise: Tensor) -> Tensor:
    n, states = unary.shape[-2:]
    return pairwise.expand(unary.shape[:-2] + (max(n - 1, 0), states, states))
