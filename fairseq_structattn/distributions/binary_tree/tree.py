"""Binary trees over the words of a sentence: constituents."""

import functools
import math
import sys
from types import ModuleType
from typing import List, Optional, Sequence, Tuple

import torch
from torch import Tensor

from .. import finite_masks
from ..backend import implementation
from ..gumbel import RelaxedSample, gumbel_noise
from ..registry import register_distribution
from ..semirings import NEGATIVE_INFINITY
from ..structured import StructuredDistribution, cached
from . import spans


@register_distribution("binary-tree")
class BinaryTree(StructuredDistribution):
    """A conditional random field over binary trees: a sentence is divided in two, as is each part of two words or more.

    p(z) ∝ exp(Σ of the scores of the spans of z) over the binary trees with the n words as leaves. A tree has 2n − 1
    spans: the words, whose scores only add a constant, the whole sentence, and n − 2 others. It is a weighted
    context-free grammar with a score for each span (Stern, Andreas & Klein, "A Minimal Span-Based Neural Constituency
    Parser", ACL 2017, with one label); inside–outside (Baker 1979) and CKY take O(n³) time and O(n²) memory.

    ``span_scores[..., i, j]`` is the score of the span from word i to word j, both included, where words are numbered
    from 0; entries with i > j are ignored. ``marginals``, ``argmax``, samples and what ``log_prob`` takes have the same
    shape. A sentence of length 0 has one tree, the empty one, which scores 0. In attention see :meth:`from_scores`.

    Marginals and log Z can be differentiated any number of times. There are no kernels for GPUs, where plain PyTorch
    computes.

    Members beyond the contract of :class:`StructuredDistribution`: method ``word_shares``.

    Args:
        span_scores: ``[*batch, n, n]``.
        lengths: number of words, integers 0..n broadcastable against ``[*batch]``; ``None`` (default): no padding.
        validate_args: see :class:`StructuredDistribution`.

    Raises:
        TypeError: scores that are not floating point, lengths that are not integers.
        ValueError: shapes that do not fit, lengths out of range.

    Example:
        Of the two trees over three words, the one with the span of the last two weighs 3.

        >>> scores = torch.zeros(3, 3)
        >>> scores[1, 2] = torch.tensor(3.0).log()
        >>> trees = BinaryTree(scores)
        >>> trees.marginals
        tensor([[1.0000, 0.2500, 1.0000],
                [0.0000, 1.0000, 0.7500],
                [0.0000, 0.0000, 1.0000]])
        >>> trees.support_size
        tensor(2., dtype=torch.float64)

        For each word, the first word of the longest span that ends with it:

        >>> trees.as_integers(trees.argmax)
        tensor([0, 1, 0])
    """

    def __init__(
        self, span_scores: Tensor, lengths: Optional[Tensor] = None, validate_args: Optional[bool] = None
    ) -> None:
        batch_shape, max_length = _split_spans(span_scores)
        super().__init__(batch_shape, max_length, lengths, validate_args, span_scores=span_scores)
        self._validate_potentials()

    @property
    def span_scores(self) -> Tensor:
        """The scores as given, ``[*batch, n, n]``."""
        return self._given["span_scores"]

    has_rsample = True

    # Hooks of attention

    @classmethod
    def from_scores(  # type: ignore[override]
        cls, scores: Tensor, lengths: Optional[Tensor]
    ) -> "BinaryTree":
        """Trees whose spans of two words or more score the sum of the scores ``[*batch, n]`` of their words. So the
        score of a word counts once for each such span around it: the words that match a query are deep in the tree,
        and log Z has the weights of attention, ``position_marginals``, as its gradient.

        Args:
            scores: ``[*batch, n]``, how well each word matches a query.
            lengths: broadcastable against ``[*batch]``.
        """
        # A sum over a span is a sum of its words, never a difference of longer sums: a mask in front changes nothing.
        below = scores.unsqueeze(-2).expand(scores.shape + scores.shape[-1:]).triu().cumsum(-1)
        return cls(below.triu(1), lengths)

    @cached
    def position_marginals(self) -> Tensor:
        """Expected number of spans of two words or more that contain each word, ``[*batch, n]``."""
        depth = self.selected_positions(self._clear(self._quick[1]))
        return self._mark_broken(depth.to(self.dtype), self.position_mask)

    def selected_positions(self, structures: Tensor) -> Tensor:
        """Number of spans of two words or more that contain each word, ``[*sample, *batch, n]``, of trees ``[*sample,
        *batch, n, n]``."""
        return spans.containing(structures.triu(1)).diagonal(0, -2, -1)

    def word_shares(self, parts: Tensor) -> Tensor:
        """How much each word has of the spans around each word, ``[*sample, *batch, n, n]``: for a span drawn from
        those of two words or more that contain word m, in proportion to their probabilities, the probability that a
        word drawn from it is word k. Rows sum to 1; they are 0 for a sentence of one word, and in padding.

        Args:
            parts: probabilities of spans, or trees, ``[*sample, *batch, n, n]``: ``marginals``, ``argmax`` or samples.
        """
        return spans.shares_of_words(parts)

    # Quantities

    @property
    def support_size(self) -> Tensor:
        """Number of binary trees, ``[*batch]`` in float64: the Catalan number C(2n − 2, n − 1) / n for n words."""
        counts = [_count(n) for n in self.lengths.flatten().tolist()]
        return torch.tensor(counts, dtype=torch.double, device=self.device).reshape(self.batch_shape)

    def as_integers(self, parts: Tensor) -> Tensor:
        """The first word of the longest span that ends with each word, ``[*sample, *batch, n]``, counted from 0; −1 in
        padding and if no tree is possible."""
        return spans.to_integers(parts.masked_fill(~self._real_parts(), 0))

    def as_indicators(self, integers_: Tensor) -> Tensor:
        """Spans ``[*sample, *batch, n, n]`` of trees given as integers ``[*sample, *batch, n]``; the inverse of
        :meth:`as_integers`."""
        return self._spans_of(integers_).to(self.dtype)

    # The contract

    def _best_values(self, k: int) -> Tuple[Tensor, Tensor]:
        with torch.no_grad():
            found, exists = spans.best_trees(*self._problem(), k)
        return found.reshape((k,) + self.batch_shape + (self.max_length,)), exists.reshape((k,) + self.batch_shape)

    def _structure_name(self) -> str:
        return f"binary trees over {self.max_length} words"

    def _inference(self, dtype: torch.dtype) -> Tuple[Tensor, Tensor]:
        log_partition, marginals = self._algorithms().expectations(*self._problem())
        return log_partition.reshape(self.batch_shape), marginals.reshape(self.span_scores.shape)

    def _clear(self, marginals: Tensor) -> Tensor:
        # The marginals are 0 there already. The mask keeps non-finite upstream gradients out of the backward pass.
        return marginals.masked_fill(self._usable_potentials[0] == NEGATIVE_INFINITY, 0)

    def _argmax(self) -> Tensor:
        with torch.no_grad():
            found = self._algorithms().argmax(*self._problem())
        return self._spans_of(found.reshape(self.batch_shape + (self.max_length,))).to(self.compute_dtype)

    def _sample(self, sample_shape: torch.Size, generator: Optional[torch.Generator]) -> Tensor:
        found = self._algorithms().sample(*self._problem(), sample_shape.numel(), generator=generator)
        found = found.reshape(sample_shape + self.batch_shape + (self.max_length,))
        return self._spans_of(found).to(self.compute_dtype)

    def _relaxed_sample(
        self, sample_shape: torch.Size, temperature: float, generator: Optional[torch.Generator]
    ) -> RelaxedSample:
        (scores,) = self._usable_potentials
        perturbed = scores + gumbel_noise(sample_shape + scores.shape, scores, generator)
        best = BinaryTree(perturbed.detach(), self.lengths).argmax
        return RelaxedSample(best, BinaryTree(perturbed / temperature, self.lengths).marginals)

    def _potentials(self) -> Tuple[Tensor, ...]:
        scores = self.span_scores.to(self.compute_dtype)
        return (scores.masked_fill(~self._real_parts(), NEGATIVE_INFINITY),)

    def _parts(self, structure: Tensor) -> Tuple[Tensor, ...]:
        return (structure.to(self.compute_dtype).masked_fill(~self._real_parts(), 0),)

    def _in_support(self, structure: Tensor) -> Tensor:
        values = structure.masked_fill(~self._real_parts(), 0)
        marks = ((values == 0) | (values == 1)).flatten(-2).all(-1)
        return marks & spans.are_trees(values == 1, self.lengths)

    @cached
    def _spans_exist(self) -> Tensor:
        return spans.within(self.lengths, self.max_length)

    def _real_parts(self) -> Tensor:
        return self._spans_exist

    def _bounds(self) -> finite_masks.Bounds:
        return self._bound

    def _bound(self, scores: Sequence[Tensor]) -> Tuple[List[Tensor], Tensor]:
        # Every tree of n words has 2n − 1 spans.
        best = scores[0].masked_fill(~torch.isfinite(scores[0]), 0).flatten(-2).amax(-1).clamp(min=0)
        return [best[..., None, None]], best * (2 * self.lengths - 1).clamp(min=0)

    def _most_parts(self) -> int:
        return 2 * self.max_length

    # Inference

    def _algorithms(self) -> ModuleType:
        """The implementation under the current backend: a module with these functions of scores ``[batch, n, n]``, −inf
        where there is no span, and lengths ``[batch]``:

        * ``expectations(scores, lengths)``: log Z ``[batch]`` and marginals ``[batch, n, n]``;
        * ``argmax(scores, lengths)``: a best tree ``[batch, n]``;
        * ``sample(scores, lengths, count, generator)``: samples ``[count, batch, n]``.

        Trees are integers as :meth:`as_integers` gives them.
        """
        return implementation(__package__, self.device)

    def _problem(self) -> Tuple[Tensor, Tensor]:
        (scores,) = self._usable_potentials
        n = self.max_length
        return scores.reshape(self.batch_shape.numel(), n, n), self.lengths.reshape(-1)

    def _spans_of(self, first: Tensor) -> Tensor:
        return spans.of_integers(self._without_padding(first, -1)) & self._real_parts()


def _split_spans(span_scores: Tensor) -> Tuple[torch.Size, int]:
    if not isinstance(span_scores, Tensor):
        raise TypeError(f"span_scores is a {type(span_scores).__name__}; give a floating point tensor")
    shape = tuple(span_scores.shape)
    if len(shape) < 2 or shape[-2] != shape[-1]:
        raise ValueError(
            f"span_scores has shape {shape}; it must be [*batch, n, n]: one row per first word and one column per last "
            "word"
        )
    return span_scores.shape[:-2], shape[-1]


@functools.lru_cache(maxsize=None)
def _count(n: int) -> float:
    count = math.comb(2 * n - 2, n - 1) // n if n > 0 else 1
    return float(count) if count.bit_length() <= sys.float_info.max_exp else math.inf
