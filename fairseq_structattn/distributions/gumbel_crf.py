"""Samples of a chain with gradients: Gumbel-CRF (Fu, Tan, Bi & Rush, "Latent Template Induction with Gumbel-CRFs",
NeurIPS 2020, section 4).

States are sampled backwards, the last one from its marginal, each other one given its right neighbour: p(z_i = a |
z_{i+1} = b) ∝ p(z_i = a, z_{i+1} = b), an edge marginal. The choice is the argmax of log-probabilities plus Gumbel
noise, which is exact; its relaxation is a softmax of the same sums. The relaxation is computed for all positions at
once, given the sampled neighbours, and its gradient is that of the edge marginals, in closed form. As in the paper, no
gradient passes through the choice of a neighbour, so it is biased.
"""

from typing import List, Optional

import torch
from torch import Tensor

from .gumbel import RelaxedSample, gumbel_noise


def relaxed_states(
    states: Tensor,
    edges: Tensor,
    lengths: Tensor,
    sample_shape: torch.Size,
    temperature: float,
    generator: Optional[torch.Generator],
) -> RelaxedSample:
    """One-hot samples of the states ``[*sample, *batch, n, K]`` and their relaxations; 0 in padding, and in items
    without possible sequences.

    Args:
        states: probabilities of states ``[*batch, n, K]``, 0 in padding.
        edges: edge marginals ``[*batch, n-1, K, K]``, likewise.
        lengths: integers ``[*batch]``.
        sample_shape: shape of ``*sample``.
        temperature: of the relaxation.
        generator: source of randomness.
    """
    states, edges = (tensor.expand(sample_shape + tensor.shape) for tensor in (states, edges))
    noise = gumbel_noise(states.shape, states, generator)
    is_last = (torch.arange(states.shape[-2], device=states.device) == lengths.unsqueeze(-1) - 1).unsqueeze(-1)
    with torch.no_grad():
        chosen = _backwards(states, edges, is_last, noise)
    given = states
    if edges.shape[-3] > 0:
        following = chosen[..., 1:, None, None].expand(edges.shape[:-1] + (1,))
        conditional = torch.nn.functional.pad(edges.gather(-1, following).squeeze(-1), (0, 0, 0, 1))
        given = torch.where(is_last, states, conditional)
    real = (given > 0).any(-1, keepdim=True)
    log_probs = given.clamp(min=torch.finfo(given.dtype).tiny).log()
    relaxed = torch.softmax((log_probs + noise) / temperature, -1).masked_fill(~real, 0)
    return RelaxedSample(torch.zeros_like(states).scatter(-1, chosen.unsqueeze(-1), 1) * real, relaxed)


def _backwards(states: Tensor, edges: Tensor, is_last: Tensor, noise: Tensor) -> Tensor:
    """The sampled states ``[*sample, *batch, n]``; any state in padding."""
    found: List[Tensor] = []
    for i in reversed(range(states.shape[-2])):
        given = states[..., i, :]
        if found:
            index = found[-1][..., None, None].expand(given.shape + (1,))
            given = torch.where(is_last[..., i, :], given, edges[..., i, :, :].gather(-1, index).squeeze(-1))
        found.append((given.log() + noise[..., i, :]).argmax(-1))
    return torch.stack(found[::-1], -1) if found else states.sum(-1).long()
