"""The potentials of a chain, in the forms that implementations take."""

from typing import List, Optional, Tuple

import torch
from torch import Tensor

from ..operations import has_values
from ..pairwise import mask_edges
from ..semirings import NEGATIVE_INFINITY

NO_STATE = -1
# Fields and couplings are differences of pairwise scores. Beyond this size (in practice −inf or a finite mask) the
# other scores would be lost in the subtraction, even in float64, so the chain is not reduced to fields.
LARGEST_PAIRWISE = 2.0**20


class Potentials:
    """Scores of a chain as given, in float64, or in float32 on devices without it.

    The unary scores of a binary chain, or the pairwise scores of another, may be float32 if the results need no higher
    precision.

    Args:
        unary: ``[*batch, n, K]``, or ``[*batch, n]`` of a binary chain: the score of state 1, where state 0 scores 0;
            −inf is allowed, anything in padding.
        pairwise: ``[K, K]``, or ``[…, n-1, K, K]`` with leading dimensions that broadcast to ``batch``; 0 in padding.
        lengths: integers ``[*batch]``.
        real: boolean mask of positions outside padding, ``[*batch, n]``; ``None``: all.
        start: scores of the first state, broadcastable to ``[*batch, K]``; ``None``: 0.
        end: scores of the last real state, likewise.
    """

    def __init__(
        self,
        unary: Tensor,
        pairwise: Tensor,
        lengths: Tensor,
        real: Optional[Tensor] = None,
        start: Optional[Tensor] = None,
        end: Optional[Tensor] = None,
    ) -> None:
        self.unary, self.pairwise, self.lengths, self.real = unary, pairwise, lengths, real
        self.start, self.end = start, end
        self.binary = unary.dim() == lengths.dim() + 1
        self.positions = unary.shape[lengths.dim()]
        self.num_states = pairwise.shape[-1]

    def states(self) -> Tuple[Tensor, Tensor, Tensor]:
        """:meth:`scores_of_states`, pairwise scores and lengths, in one dtype."""
        unary = self.scores_of_states()
        return unary, self.pairwise.to(unary.dtype), self.lengths

    def scores_of_states(self) -> Tensor:
        """Scores of states ``[*batch, n, K]``, including those of the ends, 0 in padding; in float64, see the class."""
        unary = self.unary.to(torch.promote_types(self.unary.dtype, self.pairwise.dtype))
        unary = mask_states(torch.stack((torch.zeros_like(unary), unary), -1) if self.binary else unary, self.real)
        for scores, where in self._ends():
            unary = unary + scores.unsqueeze(-2).masked_fill(~where.unsqueeze(-1), 0)
        return unary

    def given_form(self, states: Tensor) -> Tensor:
        """States ``[*batch, n, K]`` in the shape of ``unary``."""
        return states[..., 1] if self.binary else states

    def reduces_to_fields(self) -> bool:
        """Whether this is a binary chain whose fields and couplings can be computed in float64 without loss."""
        ends = [scores for scores in (self.start, self.end) if scores is not None]
        if not self.binary or self.positions == 0 or not has_values(self.unary, self.pairwise, *ends):
            return False
        return all(map(_is_moderate, [self.pairwise] + [self._of_words(scores) for scores in ends]))

    def selected(self) -> Tuple[Tensor, Tensor]:
        """For a binary chain, scores of state 1 ``[*batch, n]``, including those of the ends, and the score of state 0
        at both ends, broadcastable to ``[*batch]``."""
        ends = self._ends()
        if not ends:
            return self.unary, self.unary.new_zeros(())
        # The scores of the ends are added up first, since they are few if chains share them.
        differences = [(scores[..., 1] - scores[..., 0]).unsqueeze(-1).masked_fill(~at, 0) for scores, at in ends]
        return self.unary + sum(differences), sum((scores[..., 0] for scores, _ in ends), self.lengths.new_zeros(()))

    def _ends(self) -> List[Tuple[Tensor, Tensor]]:
        """Scores of the first and of the last state, where given, and their positions: broadcastable to ``[*batch, K]``
        and ``[*batch, n]``."""
        if self.start is None and self.end is None:
            return []
        position, n = torch.arange(self.positions, device=self.unary.device), self.positions
        last = n - 1 if self.real is None else self.lengths.unsqueeze(-1) - 1
        first = position == 0 if self.real is None else (position == 0) & self.real
        ends = ((self.start, first), (self.end, position == last))
        return [(self._of_words(scores), where) for scores, where in ends if scores is not None]

    def _of_words(self, scores: Tensor) -> Tensor:
        """Scores of an end, 0 for empty sequences."""
        return scores if self.real is None else scores.masked_fill((self.lengths == 0).unsqueeze(-1), 0)


def both_states(selected: Tensor, log_partition: Tensor, real: Optional[Tensor]) -> Tensor:
    """Probabilities of both states, ``[*batch, n, 2]``; 0 in impossible chains and in padding."""
    states = indicators(selected, real)
    return states.masked_fill((log_partition == NEGATIVE_INFINITY)[..., None, None], 0)


def indicators(selected: Tensor, real: Optional[Tensor]) -> Tensor:
    """Indicators of both states, ``[*batch, n, 2]``; 0 in padding."""
    # Values in padding, and so their complement, may not be finite.
    selected = selected if real is None else selected.masked_fill(~real, 0)
    return mask_states(torch.stack((1 - selected, selected), -1), real)


def mask_states(states: Tensor, real: Optional[Tensor]) -> Tensor:
    """``states`` ``[*batch, n, K]`` with 0 in padding."""
    return states if real is None else states.masked_fill(~real.unsqueeze(-1), 0)


def _is_moderate(scores: Tensor) -> bool:
    return bool((scores.detach().abs() <= LARGEST_PAIRWISE).all())


# For kernels, in which all leading dimensions are flattened into one


def without_padding(unary: Tensor, edges: Tensor, lengths: Tensor) -> Tuple[Tensor, Tensor]:
    """Scores of states ``[chains, n, K]`` and of edges ``[chains, n-1, K, K]`` with 0 in padding."""
    real = torch.arange(unary.shape[1], device=unary.device) < lengths.unsqueeze(-1)
    return mask_states(unary, real), mask_edges(edges, real)
