"""Pairwise potentials of a chain that depend on the source or the query.

In Kim et al. 2017, θ_{i,i+1}(z_i, z_{i+1}) may be any function of the source and the query (section 3.1), but is one
table b in practice (section 4.2). Here a small layer adds a term to that table.
"""

from typing import Dict, Optional, Type

import torch
from torch import Tensor, nn

SHARED_COUPLINGS = "shared"


class Couplings(nn.Module):
    """Base class of added pairwise potentials.

    Args:
        query_dim: size of a query
        source_dim: size of a source state
        states: K, number of states of a position
    """

    def __init__(self, query_dim: int, source_dim: int, states: int):
        super().__init__()
        self.states = states

    def prepare(self, source: Tensor) -> Tensor:
        """Computes once per sentence whatever depends on the source only.

        Args:
            source: source states ``[batch, src_len, source_dim]``

        Returns:
            ``[batch, 1, src_len - 1, K, K]``
        """
        raise NotImplementedError

    def forward(self, query: Tensor, prepared: Tensor) -> Tensor:
        """Potentials to be added to the table.

        Args:
            query: ``[batch, tgt_len, query_dim]``
            prepared: from :meth:`prepare`

        Returns:
            ``[batch, tgt_len or 1, src_len - 1, K, K]``
        """
        raise NotImplementedError

    def _as_tables(self, potentials: Tensor) -> Tensor:
        return potentials.unflatten(-1, (self.states, self.states))


class QueryCouplings(Couplings):
    """b(q) = b + W q: one table per target word, shared by all edges."""

    def __init__(self, query_dim: int, source_dim: int, states: int):
        super().__init__(query_dim, source_dim, states)
        self.projection = nn.Linear(query_dim, states * states, bias=False)

    def prepare(self, source: Tensor) -> Tensor:
        return source.new_zeros(source.size(0), 1, max(source.size(1) - 1, 0), self.states, self.states)

    def forward(self, query: Tensor, prepared: Tensor) -> Tensor:
        return prepared + self._as_tables(self.projection(query)).unsqueeze(2)


class NeighbourCouplings(Couplings):
    """b_i = b + W tanh(U h_i + V h_{i+1}): one table per edge, shared by all target words."""

    def __init__(self, query_dim: int, source_dim: int, states: int, hidden_dim: int = 64):
        super().__init__(query_dim, source_dim, states)
        self.left = nn.Linear(source_dim, hidden_dim)
        self.right = nn.Linear(source_dim, hidden_dim, bias=False)
        self.projection = nn.Linear(hidden_dim, states * states, bias=False)

    def prepare(self, source: Tensor) -> Tensor:
        hidden = torch.tanh(self.left(source[:, :-1]) + self.right(source[:, 1:]))
        return self._as_tables(self.projection(hidden)).unsqueeze(1)

    def forward(self, query: Tensor, prepared: Tensor) -> Tensor:
        return prepared


COUPLINGS: Dict[str, Optional[Type[Couplings]]] = {
    SHARED_COUPLINGS: None,
    "query": QueryCouplings,
    "neighbours": NeighbourCouplings,
}
