"""Linear chains, compiled for the CPU: :mod:`.cpu_binary` computes chains of two states, :mod:`.cpu_states` all
others."""

from typing import Optional, Tuple

import torch
from torch import Tensor

from . import cpu_binary, cpu_states, reference
from .potentials import Potentials


def expectations(chain: Potentials, with_edges: bool = False) -> Tuple[Tensor, Tensor, Optional[Tensor]]:
    """log Z ``[*batch]``, marginals in the shape of ``unary`` and, if asked, edge marginals ``[*batch, n-1, K, K]``.

    Differentiable any number of times. Computed in float64, whatever the dtype; log Z is in float64 too.
    """
    if chain.positions == 0:
        return reference.expectations(chain, with_edges)
    two = chain.num_states == 2
    if two and chain.binary and chain.start is None and chain.end is None:
        unary, pairwise, lengths = chain.unary.unsqueeze(-1), chain.pairwise, chain.lengths
    else:
        unary, pairwise, lengths = chain.scores_of_states(), chain.pairwise, chain.lengths
    log_partition, marginals, edges = (cpu_binary if two else cpu_states).expectations(
        unary, pairwise, lengths, with_edges
    )
    return log_partition, marginals[..., -1] if chain.binary else marginals, edges


def argmax(chain: Potentials) -> Tensor:
    """The states ``[*batch, n]`` of a best sequence, ``NO_STATE`` in padding and where none is possible."""
    return cpu_states.argmax(*chain.states()) if chain.positions > 0 else reference.argmax(chain)


def sample(chain: Potentials, count: int, generator: Optional[torch.Generator] = None) -> Tensor:
    """The states ``[count, *batch, n]`` of exact samples, ``NO_STATE`` in padding and where none is possible."""
    if chain.positions == 0:
        return reference.sample(chain, count, generator)
    return cpu_states.sample(*chain.states(), count, generator=generator)
