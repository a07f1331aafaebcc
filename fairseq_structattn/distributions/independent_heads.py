"""A head for each word, chosen independently of the others."""

from typing import Tuple

import torch
from torch import Tensor

from .arcs import ArcDistribution
from .categorical import Categorical
from .semirings import NEGATIVE_INFINITY


class IndependentHeads(ArcDistribution):
    """Each of n words selects a head among all words, itself included, and the root: a softmax for each word.

    There is no demand that the arcs form a tree: what syntactic attention is compared with ("simple" in Kim et al.,
    "Structured Attention Networks", ICLR 2017, section 4.1).

    Args:
        arc_scores: ``[*batch, n+1, n]``, see :class:`ArcDistribution`.
        lengths: number of words, integers 0..n broadcastable against ``[*batch]``; ``None`` (default): no padding.

    Raises:
        TypeError: scores that are not floating point, lengths that are not integers.
        ValueError: shapes that do not fit, lengths out of range.
    """

    _self_arcs = True

    @property
    def support_size(self) -> Tensor:
        """(n + 1)ⁿ, ``[*batch]`` in float64."""
        return (self.lengths.double() + 1) ** self.lengths

    def _inference(self) -> Tuple[Tensor, Tensor]:
        log_partition, marginals = self._heads()._inferred
        log_partition = self._without_padding(log_partition).sum(-1)
        # One word without a head leaves none to the others.
        impossible = (log_partition == NEGATIVE_INFINITY)[..., None, None]
        return log_partition, self._of_words(marginals).masked_fill(impossible, 0)

    def _argmax(self) -> Tensor:
        return self._of_words(self._heads()._argmax()) * self._possible()

    def _sample(self, sample_shape: torch.Size) -> Tensor:
        return self._of_words(self._heads()._sample(sample_shape)) * self._possible()

    def _heads(self) -> Categorical:
        """The head of each word, ``[*batch, n]``."""
        return Categorical(self._masked_scores.transpose(-1, -2))

    def _of_words(self, heads: Tensor) -> Tensor:
        """From ``[*sample, *batch, n, n+1]`` to ``[*sample, *batch, n+1, n]``, 0 in padding."""
        return heads.transpose(-1, -2).masked_fill(~self.arc_mask, 0)

    def _possible(self) -> Tensor:
        return (self._inferred[0] > NEGATIVE_INFINITY)[..., None, None]
