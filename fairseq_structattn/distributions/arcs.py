"""Distributions over the heads of words."""

from typing import Optional, Tuple

import torch
from torch import Tensor

from . import finite_masks, integers
from .semirings import NEGATIVE_INFINITY
from .structured import StructuredDistribution, cached

# Stands for the head of a word where it is unknown, in padding, or where no tree is possible.
NO_HEAD = integers.NOTHING


class ArcDistribution(StructuredDistribution):
    """p(z) ∝ exp(Σ of the scores of the arcs of z), where each of n words has one head: a word or the root.

    ``arc_scores[..., h, m]`` is the score of the arc from head h to word m + 1, where words are numbered from 1 and
    head 0 is the root: n + 1 heads by n dependents. ``marginals``, ``argmax``, samples and what ``log_prob`` takes have
    the same shape.

    A subclass says with ``_self_arcs`` whether a word may be its own head. Scores of arcs that do not exist are
    ignored.

    Args:
        arc_scores: ``[*batch, n+1, n]``.
        lengths: number of words, integers 0..n broadcastable against ``[*batch]``; ``None`` (default): no padding.
        validate_args: see :class:`StructuredDistribution`.

    Raises:
        TypeError: scores that are not floating point, lengths that are not integers.
        ValueError: shapes that do not fit, lengths out of range.
    """

    _self_arcs = False

    def __init__(
        self, arc_scores: Tensor, lengths: Optional[Tensor] = None, validate_args: Optional[bool] = None
    ) -> None:
        batch_shape, max_length = _split_arcs(arc_scores)
        super().__init__(batch_shape, max_length, lengths, validate_args, arc_scores=arc_scores)
        self._validate_potentials()

    @property
    def arc_scores(self) -> Tensor:
        """The scores as given, ``[*batch, n+1, n]``."""
        return self._given["arc_scores"]

    @property
    def position_marginals(self) -> Tensor:
        """Expected number of dependents of each word, ``[*batch, n]``."""
        return self.marginals[..., 1:, :].sum(-1)

    def selected_positions(self, structures: Tensor) -> Tensor:
        """Number of dependents of each word, ``[*sample, *batch, n]``, in arcs ``[*sample, *batch, n+1, n]``."""
        return structures[..., 1:, :].sum(-1)

    @cached
    def arc_mask(self) -> Tensor:
        """Boolean mask of the arcs that exist, ``[*batch, n+1, n]``."""
        words = self.position_mask
        heads = torch.cat((words.new_ones(self.batch_shape + (1,)), words), -1)
        between = heads.unsqueeze(-1) & words.unsqueeze(-2)
        return between if self._self_arcs else between & ~self._from_itself

    @property
    def _from_itself(self) -> Tensor:
        """Mask of arcs from a word to itself, ``[n+1, n]``."""
        return torch.eye(self.max_length + 1, dtype=torch.bool, device=self.device)[:, 1:]

    @cached
    def _forbids_nothing(self) -> bool:
        """Whether all scores are known to be finite and of moderate size."""
        return finite_masks.readable(self.arc_scores) and finite_masks.all_ordinary((self.arc_scores,))

    def _all_ordinary(self) -> bool:
        return self._forbids_nothing or super()._all_ordinary()

    @cached
    def _absent(self) -> Tensor:
        """The complement of :attr:`arc_mask`, or a mask that broadcasts to it."""
        return ~self.arc_mask if self._has_padding or self._self_arcs else self._from_itself

    @cached
    def _narrow_scores(self) -> Tensor:
        """Scores in float32, or in float64 if they are given so, with −inf where there is no arc."""
        return self.arc_scores.to(self._narrow_dtype).masked_fill(self._absent, NEGATIVE_INFINITY)

    @cached
    def _masked_scores(self) -> Tensor:
        """Scores in ``compute_dtype`` with −inf where there is no arc."""
        return self._narrow_scores.to(self.compute_dtype)

    def log_prob_of_heads(self, heads: Tensor, complete: Optional[bool] = None) -> Tensor:
        """Log-probability of given heads, ``[*sample, *batch]``. Unknown heads are summed out: the result is the
        log-probability of all structures that agree with the known heads, −inf if there are none.

        Args:
            heads: integers ``[*sample, *batch, n]``, or broadcastable to it: the head of each word, 0 for the root, or
                :data:`NO_HEAD` if it is unknown. Values in padding are ignored.
            complete: whether the heads of all words are known, which makes the computation shorter; heads that are
                unknown all the same then have log-probability −inf. ``None`` (default): the heads are looked at, for
                which an accelerator has to be waited for.

        Raises:
            ValueError: heads of another shape.
        """
        return self._log_prob_of_integers("heads", heads, complete)

    def as_integers(self, parts: Tensor) -> Tensor:
        """The head of each word, ``[*sample, *batch, n]``, 0 for the root; −1 in padding and where it has no head."""
        return integers.of_choices(self._parts(parts)[0], -2)

    def as_indicators(self, integers_: Tensor) -> Tensor:
        """Arcs ``[*sample, *batch, n+1, n]`` of heads ``[*sample, *batch, n]``; the inverse of :meth:`as_integers`."""
        return self._parts(self._arcs_of(integers_))[0].to(self.dtype)

    def _with_scores(self, arc_scores: Tensor) -> "ArcDistribution":
        """A distribution of the same kind with these scores."""
        return type(self)(arc_scores, self.lengths)

    def _arcs_of(self, heads: Tensor) -> Tensor:
        """Indicators of arcs, ``[*sample, *batch, n+1, n]``, of structures given as heads."""
        return integers.one_hot(heads, self.max_length + 1, -2, self.compute_dtype)

    def _num_values(self) -> int:
        return self.max_length + 1

    def _restricted(self, allowed: Tensor) -> "ArcDistribution":
        return self._with_scores(self._masked_scores.masked_fill(~allowed.transpose(-1, -2), NEGATIVE_INFINITY))

    def _potentials(self) -> Tuple[Tensor, ...]:
        return (self._masked_scores,)

    def _parts(self, structure: Tensor) -> Tuple[Tensor, ...]:
        return (structure.to(self.compute_dtype).masked_fill(self._absent, 0),)

    def _real_parts(self) -> Tensor:
        return self.arc_mask

    def _in_support(self, structure: Tensor) -> Tensor:
        (arcs,) = self._parts(structure)
        one_head = ((arcs == 1).sum(-2) == 1) & ((arcs != 0).sum(-2) == 1)
        return (one_head | ~self.position_mask).all(-1)


def _split_arcs(arc_scores: Tensor) -> Tuple[torch.Size, int]:
    if not isinstance(arc_scores, Tensor):
        raise TypeError(f"arc_scores is a {type(arc_scores).__name__}; give a floating point tensor")
    shape = tuple(arc_scores.shape)
    if len(shape) < 2 or shape[-2] != shape[-1] + 1:
        raise ValueError(
            f"arc_scores has shape {shape}; it must be [*batch, n+1, n]: one row per head, the root first, and one "
            "column per word"
        )
    return arc_scores.shape[:-2], shape[-1]
