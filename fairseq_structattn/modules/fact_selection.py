"""Which facts of a story answer a question: one after the other, or as one sequence under a linear chain.

Both take K steps. At step k a fact i has the vector xᵢᵏ where it is looked for and oᵢᵏ where it is read, and under
adjacent tying oᵏ is xᵏ⁺¹. Kim et al., "Structured Attention Networks" (ICLR 2017), section 4.3.
"""

from typing import List, NamedTuple

import torch
from torch import Tensor, nn

from fairseq_structattn.distributions import Categorical, LinearChain, StructuredDistribution

NEGATIVE_INFINITY = float("-inf")


class Selection(NamedTuple):
    """What the steps have found.

    Attributes:
        answer: query and context, from which the answer is predicted, ``[batch, dim]``
        weights: what the facts were multiplied by at each step, ``[batch, steps, facts]``; 0 in padding
        distribution: over sequences of facts; ``argmax`` has the most likely one, and ``marginals`` the probabilities,
            both ``[batch, steps, facts]``
    """

    answer: Tensor
    weights: Tensor
    distribution: StructuredDistribution

    @property
    def facts(self) -> Tensor:
        """The most likely sequence of facts, by number, ``[batch, steps]``."""
        return self.distribution.argmax.argmax(-1)


class FactSelection(nn.Module):
    """Base of both.

    Args:
        dim: size of queries and facts
        steps: K
    """

    def __init__(self, dim: int, steps: int):
        super().__init__()
        self.dim, self.steps = dim, steps

    def forward(self, query: Tensor, facts: Tensor, lengths: Tensor, linear: bool = False) -> Selection:
        """Selects a fact for each step.

        Args:
            query: ``[batch, dim]``
            facts: ``[steps + 1, batch, facts, dim]``: x¹, …, xᴷ, and oᴷ; 0 in padding
            lengths: facts of each story, at least 1, ``[batch]``
            linear: weights are the scores themselves (linear start), where the selection has such a form
        """
        raise NotImplementedError


class SuccessiveSelection(FactSelection):
    """A softmax at each step, whose query knows what the steps before have read (end-to-end memory network).

    p(zₖ = i) ∝ exp(xᵢᵏ · qᵏ), cᵏ = Σᵢ p(zₖ = i) oᵢᵏ, qᵏ⁺¹ = qᵏ + cᵏ; the answer is predicted from qᴷ⁺¹. Sukhbaatar et
    al., "End-To-End Memory Networks" (NIPS 2015), section 2. The steps are greedy: the best sequence is the best fact
    of each.
    """

    def forward(self, query: Tensor, facts: Tensor, lengths: Tensor, linear: bool = False) -> Selection:
        scores, weights = [], []
        for looked_for, read in zip(facts[:-1], facts[1:]):
            score = _products(looked_for, query)
            # Facts are 0 in padding, and so are their scores.
            weight = score if linear else Categorical(score, lengths).marginals
            query = query + (weight.unsqueeze(1) @ read).squeeze(1)
            scores.append(score)
            weights.append(weight)
        return Selection(query, torch.stack(weights, 1), Categorical(torch.stack(scores, 1), lengths.unsqueeze(1)))


class ChainSelection(FactSelection):
    """One sequence of facts, under a linear chain over the steps whose states are the facts.

    log p(z) = Σₖ xᵏ[zₖ] · qᵏ + Σₖ xᵏ[zₖ] · xᵏ⁺¹[zₖ₊₁] + constant, with qᵏ⁺¹ = Q qᵏ; the context is Σₖ Σᵢ p(zₖ = i) oᵢᵏ
    and the answer is predicted from qᴷ + context. Every potential is counted once; the published formula, read
    literally, counts the node potentials of inner steps twice. No fact is taken twice in succession, unless there is
    only one.

    Args:
        dim: size of queries and facts
        steps: K
        edges: whether successive facts are scored together, and repeats forbidden; without, each step is on its own
            ("unary")
        init_std: Q starts normal with this standard deviation
    """

    def __init__(self, dim: int, steps: int, edges: bool = True, init_std: float = 0.1):
        super().__init__(dim, steps)
        self.edges = edges
        if steps > 1:
            self.next_query = nn.Linear(dim, dim, bias=False)
            nn.init.normal_(self.next_query.weight, std=init_std)

    def forward(self, query: Tensor, facts: Tensor, lengths: Tensor, linear: bool = False) -> Selection:
        """As of the base class; a chain has no linear form, it is the same with and without `linear`."""
        queries = self._queries(query)
        states = torch.stack([_products(looked_for, query) for looked_for, query in zip(facts, queries)], 1)
        number = torch.arange(facts.shape[2], device=facts.device)
        states = states.masked_fill((number >= lengths.unsqueeze(1)).unsqueeze(1), NEGATIVE_INFINITY)
        chain = LinearChain(states, self._pairwise(facts, lengths), num_states=facts.shape[2])
        context = torch.einsum("bki,kbid->bd", chain.marginals, facts[1:])
        return Selection(queries[-1] + context, chain.marginals, chain)

    def _queries(self, query: Tensor) -> List[Tensor]:
        queries = [query]
        for _ in range(self.steps - 1):
            queries.append(self.next_query(queries[-1]))
        return queries

    def _pairwise(self, facts: Tensor, lengths: Tensor) -> Tensor:
        """``[batch, steps - 1, facts, facts]``, or a table for all edges where facts are not scored together."""
        _, batch, states, _ = facts.shape
        if not self.edges or self.steps == 1:
            return facts.new_zeros(states, states)
        looked_for = facts[:-1].transpose(0, 1)
        pairwise = looked_for[:, :-1] @ looked_for[:, 1:].transpose(-1, -2)
        repeats = torch.eye(states, dtype=torch.bool, device=facts.device) & (lengths > 1)[:, None, None]
        return pairwise.masked_fill(repeats.unsqueeze(1), NEGATIVE_INFINITY)


def _products(facts: Tensor, query: Tensor) -> Tensor:
    """``[batch, facts]``"""
    return (facts @ query.unsqueeze(-1)).squeeze(-1)
