"""Backpropagation through forward–backward in the signed log-space semifield: figure 2 of Kim et al. (ICLR 2017).

It runs under ``use_backend("paper")``, for comparison: the other backends use the closed form, without signed
logarithms. The right column of the figure gives gradients only after these corrections, which the authors' code has:

1. ∇α_i(c) is log g_i(c) ⊗ β_i(c) ⊗ −A, without a further log p, and ∇β likewise;
2. α̂ and β̂ are log 0 beyond both ends, not 0;
3. the whole right side of ∇θ is multiplied by the potential exp θ_{i,i+1}(y, c);
4. its last term, α_i(y) ⊗ β_{i+1}(c) ⊗ −A, has the factor −Σ_{i,c} p_i(c) g_i(c);
5. its left side is ∇θ_{i,i+1}, not ∇θ_{i-1,i}.
"""

from typing import List, Optional, Tuple

import torch
from torch import Tensor

from ..semirings import NEGATIVE_INFINITY, LogSemiring, SignedLog
from . import reference
from .potentials import Potentials, mask_states

argmax, sample = reference.argmax, reference.sample


def expectations(chain: Potentials, with_edges: bool = False) -> Tuple[Tensor, Tensor, Optional[Tensor]]:
    """log Z ``[*batch]`` and marginals in the shape of ``unary``, once differentiable.

    The paper has no gradient of edge marginals; if they are asked for, the reference computes all results.
    """
    if with_edges or chain.positions == 0:
        return reference.expectations(chain, with_edges)
    unary, pairwise, lengths = chain.states()
    n, states = unary.shape[-2:]
    log_partition, marginals = _Expectations.apply(
        unary, pairwise.expand(unary.shape[:-2] + (n - 1, states, states)), lengths
    )
    return log_partition, chain.given_form(mask_states(marginals, chain.real)), None


class _Expectations(torch.autograd.Function):
    @staticmethod
    def forward(ctx, unary: Tensor, edges: Tensor, lengths: Tensor) -> Tuple[Tensor, Tensor]:
        log_partition, marginals, edge_marginals = reference.total_and_gradients(unary, edges, lengths)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(unary, edges, lengths, marginals, edge_marginals)
        return log_partition, marginals

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_log_partition: Optional[Tensor], grad_marginals: Optional[Tensor]):
        unary, edges, lengths, marginals, edge_marginals = ctx.saved_tensors
        grad_unary, grad_edges = torch.zeros_like(unary), torch.zeros_like(edges)
        if grad_marginals is not None:
            grad_unary, grad_edges = paper_gradients(unary, edges, lengths, grad_marginals)
        if grad_log_partition is not None:
            grad_unary = grad_unary + grad_log_partition[..., None, None] * marginals
            grad_edges = grad_edges + grad_log_partition[..., None, None, None] * edge_marginals
        return grad_unary, grad_edges, None


def paper_gradients(unary: Tensor, pairwise: Tensor, lengths: Tensor, grad_marginals: Tensor) -> Tuple[Tensor, Tensor]:
    """Gradients of Σ g_i(c) p(z_i = c) with respect to unary ``[*batch, n, K]`` and edges ``[*batch, n-1, K, K]``.

    Args:
        unary: ``[*batch, n, K]``, n > 0, finite in padding; −inf is allowed elsewhere.
        pairwise: ``[K, K]`` or ``[*batch, n-1, K, K]``, finite in padding.
        lengths: integers ``[*batch]``.
        grad_marginals: g, ``[*batch, n, K]``, anything in padding.
    """
    n, states = unary.shape[-2:]
    real = (torch.arange(n, device=unary.device) < lengths.unsqueeze(-1)).unsqueeze(-1)
    # The paper's potential θ_{i,i+1}(y, c) is the score of an edge plus the unary score of its right end.
    potentials = pairwise.expand(unary.shape[:-2] + (n - 1, states, states)) + unary[..., 1:, None, :]
    edges = potentials.unbind(-3)
    forward = _forward(unary, edges)
    backward = _backward(unary, edges, real)
    log_partition = LogSemiring.sum(forward[0] + backward[0], -1)
    # Impossible chains have Z = 0, by which nothing can be divided.
    log_partition = log_partition.masked_fill(log_partition == NEGATIVE_INFINITY, 0)[..., None, None]

    alpha, beta = torch.stack(forward, -2), torch.stack(backward, -2)
    upstream = grad_marginals.masked_fill(~real, 0)
    share = SignedLog.of(upstream).times(SignedLog.exp(-log_partition))
    alpha_hat = _stack(_forward_hat(share.times(SignedLog.exp(alpha)), edges))
    beta_hat = _stack(_backward_hat(share.times(SignedLog.exp(beta)), edges))
    expected = ((alpha + beta - log_partition).exp() * upstream).sum((-2, -1), keepdim=True)
    factor = SignedLog.of(-expected).times(SignedLog.exp(-log_partition))

    left, right = alpha[..., :-1, :, None], beta[..., 1:, None, :]
    terms = (
        _at(alpha_hat, (..., slice(-1), slice(None), None)).times(SignedLog.exp(right)),
        _at(beta_hat, (..., slice(1, None), None, slice(None))).times(SignedLog.exp(left)),
        SignedLog.exp(left + right).times(_at(factor, (..., None))),
    )
    grad_edges = terms[0].plus(terms[1]).plus(terms[2]).times(SignedLog.exp(potentials)).real()
    grad_edges = grad_edges.masked_fill(~real[..., 1:, :, None], 0)

    # The edge from the start symbol, where α is 1 and α̂ is 0.
    first = _at(beta_hat, (..., 0, slice(None))).plus(SignedLog.exp(beta[..., 0, :]).times(_at(factor, (..., 0))))
    grad_first = first.times(SignedLog.exp(unary[..., 0, :])).real().masked_fill(~real[..., 0, :], 0)
    return torch.cat((grad_first.unsqueeze(-2), grad_edges.sum(-2)), -2), grad_edges


def _forward(unary: Tensor, edges: Tuple[Tensor, ...]) -> List[Tensor]:
    """α, which includes the score of its own position."""
    messages = [unary[..., 0, :]]
    for edge in edges:
        messages.append(LogSemiring.sum(messages[-1].unsqueeze(-1) + edge, -2))
    return messages


def _backward(unary: Tensor, edges: Tuple[Tensor, ...], real: Tensor) -> List[Tensor]:
    """β, which does not."""
    messages = [torch.zeros_like(unary[..., -1, :])]
    for i in range(len(edges) - 1, -1, -1):
        arriving = LogSemiring.sum(edges[i] + messages[0].unsqueeze(-2), -1)
        messages.insert(0, arriving.masked_fill(~real[..., i + 1, :], 0))
    return messages


def _forward_hat(grad_beta: SignedLog, edges: Tuple[Tensor, ...]) -> List[SignedLog]:
    messages = [_at(grad_beta, (..., 0, slice(None)))]
    for i, edge in enumerate(edges):
        arriving = _at(messages[-1], (..., None)).times(SignedLog.exp(edge)).sum(-2)
        messages.append(_at(grad_beta, (..., i + 1, slice(None))).plus(arriving))
    return messages


def _backward_hat(grad_alpha: SignedLog, edges: Tuple[Tensor, ...]) -> List[SignedLog]:
    # The upstream gradient is 0 in padding, and so are all terms that come from there.
    messages = [_at(grad_alpha, (..., -1, slice(None)))]
    for i in range(len(edges) - 1, -1, -1):
        arriving = SignedLog.exp(edges[i]).times(_at(messages[0], (..., None, slice(None)))).sum(-1)
        messages.insert(0, _at(grad_alpha, (..., i, slice(None))).plus(arriving))
    return messages


def _stack(messages: List[SignedLog]) -> SignedLog:
    log_sizes, signs = zip(*messages)
    return SignedLog(torch.stack(log_sizes, -2), torch.stack(signs, -2))


def _at(numbers: SignedLog, index: tuple) -> SignedLog:
    return SignedLog(numbers.log_size[index], numbers.sign[index])
