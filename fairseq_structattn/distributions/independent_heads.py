"""A head for each word, chosen independently of the others."""

from typing import Optional, Tuple

import torch
from torch import Tensor

from . import categorical
from .arcs import ArcDistribution
from .gumbel import RelaxedSample, relaxed_choice
from .semirings import NEGATIVE_INFINITY, LogSemiring, one_hot_sample
from .structured import cached


class IndependentHeads(ArcDistribution):
    """Each of n words selects a head among all words, itself included, and the root: a softmax for each word.

    The arcs need not form a tree. This is the baseline of syntactic attention ("simple" in Kim et al., "Structured
    Attention Networks", ICLR 2017, section 4.1).

    Args:
        arc_scores: ``[*batch, n+1, n]``, see :class:`ArcDistribution`.
        lengths: number of words, integers 0..n broadcastable against ``[*batch]``; ``None`` (default): no padding.
        validate_args: see :class:`StructuredDistribution`.

    Raises:
        TypeError: scores that are not floating point, lengths that are not integers.
        ValueError: shapes that do not fit, lengths out of range.

    Example:
        >>> heads = IndependentHeads(torch.tensor([[1.0, 2.0], [1.0, 1.0], [2.0, 1.0]]).log())
        >>> heads.marginals
        tensor([[0.2500, 0.5000],
                [0.2500, 0.2500],
                [0.5000, 0.2500]])
        >>> heads.as_integers(heads.argmax)
        tensor([2, 0])
    """

    _self_arcs = True
    has_rsample = True

    @property
    def support_size(self) -> Tensor:
        """(n + 1)ⁿ, ``[*batch]`` in float64."""
        return (self.lengths.double() + 1) ** self.lengths

    @cached
    def log_partition(self) -> Tensor:
        """log Z, ``[*batch]``."""
        return self._public(self._inferred[0])

    @cached
    def marginals(self) -> Tensor:
        """Probability of each arc, ``[*batch, n+1, n]``; exactly 0 in padding."""
        return self._public_parts(self._expected_arcs(self._scores_of_heads(self._narrow_dtype)))

    def _inference(self, dtype: torch.dtype) -> Tuple[Tensor, Tensor]:
        scores = self._scores_of_heads(self.compute_dtype)
        return self._without_padding(LogSemiring.sum(scores, -1)).sum(-1), self._expected_arcs(scores)

    def _cross_entropy(self, parts: Tuple[Tensor, ...]) -> Tensor:
        terms = categorical.cross_entropy(self._scores_of_heads(self.compute_dtype), parts[0].transpose(-1, -2))
        return self._without_padding(terms).sum(-1)

    def _argmax(self) -> Tensor:
        return self._arcs(categorical.best_choice(self._scores_of_heads(self.compute_dtype)))

    def _sample(self, sample_shape: torch.Size, generator: Optional[torch.Generator]) -> Tensor:
        probabilities = categorical.probabilities(self._scores_of_heads(self.compute_dtype))
        return self._arcs(one_hot_sample(probabilities.expand(sample_shape + probabilities.shape), -1, generator))

    def _relaxed_sample(
        self, sample_shape: torch.Size, temperature: float, generator: Optional[torch.Generator]
    ) -> RelaxedSample:
        scores = self._scores_of_heads(self.compute_dtype)
        drawn = relaxed_choice(scores.expand(sample_shape + scores.shape), temperature, generator)
        return RelaxedSample(self._arcs(drawn.structures), self._arcs(drawn.relaxed))

    def _structure_name(self) -> str:
        return f"heads of {self.max_length} words"

    def _expected_arcs(self, scores: Tensor) -> Tensor:
        return self._arcs(categorical.probabilities(scores))

    def _scores_of_heads(self, dtype: torch.dtype) -> Tensor:
        """Scores of the heads of each word, ``[*batch, n, n+1]``, −inf where there is no arc."""
        scores = self.arc_scores if self._moderate is None else self._moderate.potentials[0]
        return scores.to(dtype).masked_fill(self._absent, NEGATIVE_INFINITY).transpose(-1, -2)

    def _arcs(self, heads: Tensor) -> Tensor:
        """From ``[*sample, *batch, n, n+1]`` to ``[*sample, *batch, n+1, n]``; 0 in padding and in impossible items, in
        which some word can have no head."""
        without_head = ~(self._scores_of_heads(self.compute_dtype) > NEGATIVE_INFINITY).any(-1) & self.position_mask
        possible = self.arc_mask & ~without_head.any(-1)[..., None, None]
        return heads.transpose(-1, -2).masked_fill(~possible, 0)
