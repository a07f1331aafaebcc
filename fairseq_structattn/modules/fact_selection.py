"""Selection of the facts of a story that answer a question: one fact at a time, or a sequence under a linear chain.

Both take K steps. At step k, fact i has the vector xᵢᵏ as a key and oᵢᵏ as a value. Kim et al., "Structured Attention
Networks" (ICLR 2017), section 4.3.
"""

from typing import List, NamedTuple, Optional

import torch
from torch import Tensor, nn

from fairseq_structattn.distributions import Categorical, LinearChain, StructuredDistribution

NEGATIVE_INFINITY = float("-inf")
NO_FACT = -1


class Selection(NamedTuple):
    """The result of all steps.

    Attributes:
        answer: sum of query and context, from which the answer is predicted, ``[batch, dim]``
        weights: weights of the facts at each step, ``[batch, steps, facts]``; 0 in padding
        distribution: distribution over sequences of facts; its ``argmax`` and ``marginals`` are ``[batch, steps,
            facts]``, 0 at steps that a question does not take
    """

    answer: Tensor
    weights: Tensor
    distribution: StructuredDistribution

    @property
    def facts(self) -> Tensor:
        """The most likely sequence of facts, as indices ``[batch, steps]``; :data:`NO_FACT` at steps that a question
        does not take."""
        chosen, fact = self.distribution.argmax.max(-1)
        return fact.masked_fill(chosen == 0, NO_FACT)


class FactSelection(nn.Module):
    """Base class of both selections.

    Args:
        dim: size of queries and facts
        steps: K
    """

    def __init__(self, dim: int, steps: int):
        super().__init__()
        self.dim, self.steps = dim, steps

    def forward(
        self,
        query: Tensor,
        looked_for: Tensor,
        read: Tensor,
        lengths: Tensor,
        linear: bool = False,
        steps: Optional[Tensor] = None,
    ) -> Selection:
        """Selects a fact for each step.

        Args:
            query: ``[batch, dim]``
            looked_for: keys x¹, …, xᴷ, ``[steps, batch, facts, dim]``; 0 in padding
            read: values o¹, …, oᴷ, likewise
            lengths: number of facts of each story, at least 1, ``[batch]``
            linear: weights are the scores themselves, without exponential and normaliser (linear start)
            steps: number of steps that each question takes, from 1 to K, ``[batch]``; None: K
        """
        raise NotImplementedError

    def _taken(self, query: Tensor, steps: Optional[Tensor]) -> Tensor:
        """Which steps each question takes, ``[batch, K]``."""
        taken = query.new_full((len(query),), self.steps) if steps is None else steps
        return torch.arange(self.steps, device=query.device) < taken.unsqueeze(1)


class SuccessiveSelection(FactSelection):
    """A softmax at each step; the contexts of earlier steps are added to the query (end-to-end memory network).

    p(zₖ = i) ∝ exp(xᵢᵏ · qᵏ), cᵏ = Σᵢ p(zₖ = i) oᵢᵏ, qᵏ⁺¹ = qᵏ + cᵏ; the answer is predicted from qᴷ⁺¹. Sukhbaatar et
    al., "End-To-End Memory Networks" (NIPS 2015), section 2. Given the queries, steps are independent, so the best
    sequence is the best fact of each step.
    """

    def forward(
        self,
        query: Tensor,
        looked_for: Tensor,
        read: Tensor,
        lengths: Tensor,
        linear: bool = False,
        steps: Optional[Tensor] = None,
    ) -> Selection:
        scores, weights = [], []
        # A step that is not taken has no facts to select.
        lengths_by_step = lengths.unsqueeze(1) * self._taken(query, steps)
        for key, value, own in zip(looked_for, read, lengths_by_step.unbind(1)):
            score = _products(key, query)
            # Keys are 0 in padding, and so are their scores.
            weight = score * (own > 0).unsqueeze(1) if linear else Categorical(score, own).marginals
            query = query + (weight.unsqueeze(1) @ value).squeeze(1)
            scores.append(score)
            weights.append(weight)
        return Selection(query, torch.stack(weights, 1), Categorical(torch.stack(scores, 1), lengths_by_step))


class ChainSelection(FactSelection):
    """A sequence of facts under a linear chain, whose positions are the steps and whose states are the facts.

    log p(z) = Σₖ xᵏ[zₖ] · qᵏ + Σₖ xᵏ[zₖ] · xᵏ⁺¹[zₖ₊₁] + constant, with qᵏ⁺¹ = Q qᵏ; the context is Σₖ Σᵢ p(zₖ = i) oᵢᵏ
    and the answer is predicted from qᴷ + context. Every potential is counted once; the published formula, read
    literally, counts the node potentials of inner steps twice. No fact is selected at two successive steps, unless it
    is the only one.

    Linear weights are propagated from step to step, wᵏ⁺¹[j] = xᵏ⁺¹[j] · qᵏ⁺¹ + Σᵢ wᵏ[i] xᵏ[i] · xᵏ⁺¹[j], as in an
    end-to-end memory network without softmax.

    Edges may score oᵏ[zₖ] · xᵏ⁺¹[zₖ₊₁] instead (``edges_from_read``): the vector in which a fact is read with the one
    in which the next is looked for. This is the term by which a fact that was read changes the next score of an
    end-to-end memory network. With adjacent tying both vectors are of one table, so that facts that share words match
    from the start, which the vectors of two tables do not.

    Args:
        dim: size of queries and facts
        steps: K
        edges: whether edges score successive facts and forbid repeats; without edges, steps are independent
            ("unary")
        init_std: standard deviation of the normal distribution that initialises Q
        edges_from_read: whether the earlier fact of an edge is a value rather than a key
    """

    def __init__(self, dim: int, steps: int, edges: bool = True, init_std: float = 0.1, edges_from_read: bool = False):
        super().__init__(dim, steps)
        self.edges, self.edges_from_read = edges, edges_from_read
        if steps > 1:
            self.next_query = nn.Linear(dim, dim, bias=False)
            nn.init.normal_(self.next_query.weight, std=init_std)

    def forward(
        self,
        query: Tensor,
        looked_for: Tensor,
        read: Tensor,
        lengths: Tensor,
        linear: bool = False,
        steps: Optional[Tensor] = None,
    ) -> Selection:
        queries = self._queries(query)
        scores = torch.stack([_products(key, query) for key, query in zip(looked_for, queries)], 1)
        pairwise = self._pairwise(read if self.edges_from_read else looked_for, looked_for, lengths)
        number = torch.arange(scores.shape[2], device=scores.device)
        states = scores.masked_fill((number >= lengths.unsqueeze(1)).unsqueeze(1), NEGATIVE_INFINITY)
        chain = LinearChain(states, pairwise, steps, num_states=scores.shape[2])
        weights = self._linear_weights(scores, pairwise) if linear else chain.marginals
        weights = weights * self._taken(query, steps).unsqueeze(2)
        context = torch.einsum("bki,kbid->bd", weights, read)
        last = queries[-1] if steps is None else torch.stack(queries, 1)[torch.arange(len(query)), steps - 1]
        return Selection(last + context, weights, chain)

    def _linear_weights(self, scores: Tensor, pairwise: Tensor) -> Tensor:
        if not self._has_edges:
            return scores
        weights = [scores[:, 0]]
        for step, edges in enumerate(pairwise.masked_fill(pairwise == NEGATIVE_INFINITY, 0).unbind(1), 1):
            weights.append(scores[:, step] + (weights[-1].unsqueeze(1) @ edges).squeeze(1))
        return torch.stack(weights, 1)

    @property
    def _has_edges(self) -> bool:
        return self.edges and self.steps > 1

    def _queries(self, query: Tensor) -> List[Tensor]:
        queries = [query]
        for _ in range(self.steps - 1):
            queries.append(self.next_query(queries[-1]))
        return queries

    def _pairwise(self, earlier: Tensor, looked_for: Tensor, lengths: Tensor) -> Tensor:
        """Scores of edges ``[batch, steps - 1, facts, facts]``, or one table of zeros without edges."""
        states = looked_for.shape[2]
        if not self._has_edges:
            return looked_for.new_zeros(states, states)
        pairwise = earlier[:-1].transpose(0, 1) @ looked_for[1:].permute(1, 0, 3, 2)
        repeats = torch.eye(states, dtype=torch.bool, device=looked_for.device) & (lengths > 1)[:, None, None]
        return pairwise.masked_fill(repeats.unsqueeze(1), NEGATIVE_INFINITY)


def _products(facts: Tensor, query: Tensor) -> Tensor:
    """Inner products of facts and query, ``[batch, facts]``."""
    return (facts @ query.unsqueeze(-1)).squeeze(-1)
