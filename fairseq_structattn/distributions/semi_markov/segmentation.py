"""Semi-Markov segmentations: attention to segments, and semi-Markov conditional random fields."""

import functools
from types import ModuleType
from typing import Dict, List, Optional, Sequence, Tuple

import torch
from torch import Tensor

from .. import finite_masks
from ..backend import implementation
from ..gumbel import RelaxedSample, centred_gumbel_noise
from ..integers import NOTHING
from ..pairwise import broadcasts, check_pairwise, mask_edges
from ..registry import register_distribution
from ..semirings import NEGATIVE_INFINITY
from ..structured import StructuredDistribution, cached
from . import parts

MAX_SEGMENT_LENGTH = 8


@register_distribution("semi-markov")
class SemiMarkov(StructuredDistribution):
    """A semi-Markov conditional random field: positions are cut into consecutive segments, each with one of K labels.

    p(z) ∝ exp(Σ of the scores of the segments of z + Σ pairwise[a, b] for each two neighbours with labels a and b) over
    the sequences of segments of at most L positions that cover all positions. Neighbours may have the same label.
    Sarawagi & Cohen, "Semi-Markov Conditional Random Fields for Information Extraction" (NIPS 2004). With L = 1 it is
    :class:`LinearChain`. In attention a label says whether a segment is selected (1) or not (0), see
    :meth:`from_scores`.

    ``marginals``, ``argmax``, samples and what ``log_prob`` takes have the shape of ``segment_scores``: at ``[..., i,
    l, k]``, probability or indicator of a segment of ``l + 1`` positions with label k that begins at position i. An
    empty sequence has one segmentation, without segments, which scores 0.

    Members beyond the contract of :class:`StructuredDistribution`: ``label_marginals``, ``edge_marginals``,
    ``selected_positions``, ``log_prob_of_labels`` and the constructor :meth:`from_unary`. Inference takes O(n (L K +
    K²)) time. Marginals, edge marginals and log Z can be differentiated any number of times. There are no kernels for
    GPUs, where plain PyTorch computes, with a few operations for each position and length.

    Args:
        segment_scores: ``[*batch, n, L, K]``; scores of segments that would end after their sequence are ignored.
        pairwise: ``[K, K]``, shared by all boundaries, or ``[…, n-1, K, K]``, whose leading dimensions broadcast to
            ``batch``. ``pairwise[..., i, a, b]`` is the score of a segment with label a that ends at position i before
            one with label b.
        lengths: integers 0..n, broadcastable against ``[*batch]``; ``None`` (default): no padding.
        validate_args: see :class:`StructuredDistribution`.

    Raises:
        TypeError: potentials that are not floating point, lengths that are not integers.
        ValueError: shapes that do not fit, lengths out of range.

    Example:
        Three positions are cut in four ways, of which one has a segment of weight 3 over the first two.

        >>> scores = torch.zeros(3, 3, 1)
        >>> scores[0, 1] = torch.tensor(3.0).log()
        >>> segments = SemiMarkov(scores, pairwise=torch.zeros(1, 1))
        >>> segments.support_size
        tensor(4., dtype=torch.float64)
        >>> segments.marginals[0, :, 0]
        tensor([0.3333, 0.5000, 0.1667])
        >>> segments.argmax.nonzero().tolist()
        [[0, 1, 0], [2, 0, 0]]

        A label for each position, and K more where a segment begins:

        >>> segments.as_integers(segments.argmax)
        tensor([1, 0, 1])

        In attention, here with a reward for selected segments of two positions:

        >>> lengths = torch.tensor([[0.0, 0.0], [0.0, 3.0]])
        >>> attention = SemiMarkov.from_scores(torch.tensor([-3.0, 1.0, 1.0, -3.0]), None, lengths, torch.zeros(2, 2))
        >>> attention.position_marginals
        tensor([0.1344, 0.9249, 0.9249, 0.1344])
        >>> attention.selected_positions(attention.argmax)
        tensor([0., 1., 1., 0.])
    """

    def __init__(
        self,
        segment_scores: Tensor,
        pairwise: Tensor,
        lengths: Optional[Tensor] = None,
        validate_args: Optional[bool] = None,
    ) -> None:
        batch_shape, max_length, self.max_segment_length, self.num_labels = _split_segments(segment_scores)
        potentials = {"segment_scores": segment_scores, "pairwise": pairwise}
        super().__init__(batch_shape, max_length, lengths, validate_args, **potentials)
        check_pairwise(pairwise, batch_shape, max_length, self.num_labels)
        self._validate_potentials()

    @classmethod
    def from_unary(
        cls, unary: Tensor, length_scores: Tensor, pairwise: Tensor, lengths: Optional[Tensor] = None
    ) -> "SemiMarkov":
        """Segments whose score is the sum of the scores that their positions have for their label, and of a score of
        their length and label.

        Args:
            unary: ``[*batch, n, K]``.
            length_scores: ``[L, K]``, or ``[…, L, K]`` with leading dimensions that broadcast to ``batch``;
                ``length_scores[..., l, k]`` is the score of a segment of ``l + 1`` positions with label k.
            pairwise: as for the class.
            lengths: integers 0..n, broadcastable against ``[*batch]``; ``None`` (default): no padding.

        Raises:
            TypeError, ValueError: see the class.
        """
        for name, tensor in (("unary", unary), ("length_scores", length_scores)):
            if not isinstance(tensor, Tensor):
                raise TypeError(f"{name} is a {type(tensor).__name__}; give a floating point tensor")
        shape, of_lengths = tuple(unary.shape), tuple(length_scores.shape)
        fit = len(shape) >= 2 and len(of_lengths) >= 2 and shape[-1] == of_lengths[-1] and 0 not in of_lengths[-2:]
        if not fit or not broadcasts(of_lengths[:-2], unary.shape[:-2]):
            raise ValueError(
                f"unary has shape {shape} and length_scores {of_lengths}; they must be [*batch, n, K] and [L, K] or "
                "[…, L, K], with leading dimensions that broadcast to batch, and L and K of 1 or more"
            )
        sums = parts.sums_of_positions(unary, of_lengths[-2])
        return cls(sums + length_scores.unsqueeze(-3), pairwise, lengths)

    # Hooks of attention

    selects_segments = True
    has_rsample = True
    shape_options = ("max_segment_length",)

    @classmethod
    def parameter_shapes(cls, max_segment_length: int = MAX_SEGMENT_LENGTH) -> Dict[str, Tuple[int, ...]]:
        """A table ``length_scores`` ``(max_segment_length, 2)`` and a table ``pairwise`` ``(2, 2)``: in attention a
        segment is selected, label 1, or not, label 0."""
        return {"length_scores": (max_segment_length, 2), "pairwise": (2, 2)}

    @classmethod
    def from_scores(  # type: ignore[override]
        cls, scores: Tensor, lengths: Optional[Tensor], length_scores: Tensor, pairwise: Tensor
    ) -> "SemiMarkov":
        """:meth:`from_unary` with two labels, where positions score ``scores`` ``[*batch, n]`` if they are selected,
        and 0 otherwise."""
        return cls.from_unary(torch.stack((torch.zeros_like(scores), scores), -1), length_scores, pairwise, lengths)

    @classmethod
    def from_head_scores(  # type: ignore[override]
        cls, scores: Tensor, lengths: Optional[Tensor], length_scores: Tensor, pairwise: Tensor
    ) -> "SemiMarkov":
        """See :meth:`StructuredDistribution.from_head_scores`; the tables are ``[heads, L, 2]`` and
        ``[heads, 2, 2]``."""
        edges = max(scores.shape[-1] - 1, 0)
        per_edge = pairwise[:, None, None].expand(-1, 1, edges, -1, -1)
        return cls.from_scores(scores, lengths, length_scores.unsqueeze(1), per_edge)

    @cached
    def position_marginals(self) -> Tensor:
        """Probability that the label of each position is not 0, ``[*batch, n]``; exactly 0 in padding."""
        selected = self._labels_of(self._quick[1])[..., 1:].sum(-1)
        return self._mark_broken(selected.to(self.dtype), self.position_mask)

    def selected_positions(self, structures: Tensor) -> Tensor:
        """Which positions have another label than 0, ``[*sample, *batch, n]``, see
        :meth:`StructuredDistribution.selected_positions`."""
        return self._labels_of(structures)[..., 1:].sum(-1)

    def alignment_log_prob(self, alignment: Tensor) -> Tensor:
        """log p of selecting the aligned positions and no other, in whatever segments, see
        :meth:`StructuredDistribution.alignment_log_prob`."""
        marks = self._without_padding(alignment) > 0
        selected = torch.arange(self.num_labels, device=self.device) > 0
        log_prob = self._log_prob_of_restricted(self._allowed_labels(marks.unsqueeze(-1) == selected))
        return log_prob.masked_fill(~marks.any(-1), 0)

    # The potentials as given

    @property
    def segment_scores(self) -> Tensor:
        """Scores of segments, ``[*batch, n, L, K]``."""
        return self._given["segment_scores"]

    @property
    def pairwise(self) -> Tensor:
        """Scores of neighbouring segments, ``[K, K]`` or ``[…, n-1, K, K]``."""
        return self._given["pairwise"]

    # Quantities

    @property
    def support_size(self) -> Tensor:
        """Number of labelled segmentations, ``[*batch]`` in float64."""
        counts = [_count(n, self.max_segment_length, self.num_labels) for n in self.lengths.flatten().tolist()]
        return torch.tensor(counts, dtype=torch.double, device=self.device).reshape(self.batch_shape)

    @cached
    def label_marginals(self) -> Tensor:
        """Probability that each position lies in a segment with each label, ``[*batch, n, K]``; exactly 0 in
        padding."""
        found = self._labels_of(self._quick[1]).to(self.dtype)
        return self._mark_broken(found, self.position_mask.unsqueeze(-1).expand(found.shape))

    @cached
    def edge_marginals(self) -> Tensor:
        """Probability that a segment with label a ends at position i, before one with label b, ``[*batch, n-1, K, K]``;
        exactly 0 on edges that touch padding."""
        return self._mark_broken(self._with_edges[2].to(self.dtype), self.position_mask[..., 1:, None, None])

    def log_prob_of_labels(self, labels: Tensor) -> Tensor:
        """Log-probability that positions have given labels, in whatever segments, ``[*sample, *batch]``; −inf if no
        segmentation agrees with them.

        Args:
            labels: integers ``[*sample, *batch, n]``, or broadcastable to it: the label of each position, or −1 if it
                is unknown. Values in padding are ignored.

        Raises:
            ValueError: labels of another shape.
        """
        labels = self._broadcast_integers("labels", labels).unsqueeze(-1)
        same = labels == torch.arange(self.num_labels, device=self.device)
        return self._log_prob_of_restricted(self._allowed_labels((labels == NOTHING) | same))

    def as_integers(self, parts_: Tensor) -> Tensor:
        """An integer for each position, ``[*sample, *batch, n]``: its label k, or K + k where a segment begins; −1 in
        padding and if no segmentation is possible."""
        return parts.to_integers(parts_.masked_fill(~self._real_parts(), 0))

    def as_indicators(self, integers_: Tensor) -> Tensor:
        """Indicators in the shape of ``segment_scores`` of segmentations given as integers ``[*sample, *batch, n]``;
        the inverse of :meth:`as_integers`."""
        segments = parts.of_integers(integers_, self.max_segment_length, self.num_labels, self.lengths)
        return segments.to(self.dtype)

    # The contract

    def _num_values(self) -> int:
        return 2 * self.num_labels

    def _restricted(self, allowed: Tensor) -> "SemiMarkov":
        possible = parts.allowed_segments(allowed, self.max_segment_length)
        scores = self._masked_scores.masked_fill(~possible, NEGATIVE_INFINITY)
        return SemiMarkov(scores, self.pairwise, self.lengths if self._has_padding else None)

    def _structure_name(self) -> str:
        return (
            f"segmentations of {self.max_length} positions into segments of at most {self.max_segment_length}, each "
            f"with one of {self.num_labels} labels"
        )

    def _potentials(self) -> Tuple[Tensor, ...]:
        """Scores of segments ``[*batch, n, L, K]`` and of edges ``[*batch, n-1, K, K]``."""
        edges = (max(self.max_length - 1, 0), self.num_labels, self.num_labels)
        return self._masked_scores, self._masked_pairwise.expand(self.batch_shape + edges)

    def _inference(self, dtype: torch.dtype) -> Tuple[Tensor, Tensor]:
        return self._with_edges[:2]

    def _expected_parts(self) -> Tuple[Tensor, ...]:
        _, marginals, edges = self._with_edges
        return self._clear(marginals), edges

    def _clear(self, marginals: Tensor) -> Tensor:
        # The marginals are 0 there already. The mask keeps non-finite upstream gradients out of the backward pass.
        return marginals.masked_fill(~self._real_parts(), 0)

    def _parts(self, structure: Tensor) -> Tuple[Tensor, ...]:
        segments = structure.to(self.compute_dtype).masked_fill(~self._real_parts(), 0)
        ends, begins = parts.ends(segments)[..., :-1, :], segments.sum(-2)[..., 1:, :]
        return segments, ends.unsqueeze(-1) * begins.unsqueeze(-2)

    def _in_support(self, structure: Tensor) -> Tensor:
        segments = structure.masked_fill(~self._real_parts(), 0)
        marks = ((segments == 0) | (segments == 1)).flatten(-3).all(-1)
        covered = parts.coverage((segments == 1).to(self.compute_dtype)).sum(-1) == 1
        return marks & (covered | ~self.position_mask).all(-1)

    @cached
    def _segments_exist(self) -> Tensor:
        longest, labels = self.max_segment_length, self.num_labels
        existing = parts.within(self.lengths, self.max_length, longest).unsqueeze(-1)
        return existing.expand(existing.shape[:-1] + (labels,))

    def _real_parts(self) -> Tensor:
        return self._segments_exist

    def _bounds(self) -> finite_masks.Bounds:
        return self._bound

    def _bound(self, scores: Sequence[Tensor]) -> Tuple[List[Tensor], Tensor]:
        # Every structure covers each position once and has an edge before each segment but the first. So, if segments
        # are bounded by c for each of their positions, less d if they are not the first, and edges by d, the bounds add
        # up to n c.
        of_edges = _largest(scores[1], 3)
        of_positions = (_largest(scores[0], 3) + of_edges).clamp(min=0)
        sizes = torch.arange(1, self.max_segment_length + 1, device=self.device).to(self.compute_dtype)
        later = torch.arange(self.max_length, device=self.device).unsqueeze(-1) > 0
        of_segments = sizes * of_positions[..., None, None] - later * of_edges[..., None, None]
        return [of_segments.unsqueeze(-1), of_edges[..., None, None, None]], of_positions * self.lengths

    def _most_parts(self) -> int:
        return 2 * self.max_length

    # Inference

    def _algorithms(self) -> ModuleType:
        """The implementation under the current backend: a module with these functions of scores of segments ``[*batch,
        n, L, K]``, pairwise scores and lengths:

        * ``expectations(segments, pairwise, lengths)``: log Z ``[*batch]``, marginals of segments ``[*batch, n, L, K]``
          and of edges ``[*batch, n-1, K, K]``;
        * ``argmax(segments, pairwise, lengths)``: a best segmentation ``[*batch, n]``;
        * ``sample(segments, pairwise, lengths, count, generator)``: samples ``[count, *batch, n]``.

        Segmentations are integers as :meth:`as_integers` gives them.
        """
        return implementation(__package__, self.device)

    def _problem(self) -> Tuple[Tensor, Tensor, Tensor]:
        if self._moderate is None:
            return self._masked_scores, self._masked_pairwise, self.lengths
        scores, pairwise = self._usable_potentials
        return scores, pairwise, self.lengths

    @cached
    def _with_edges(self) -> Tuple[Tensor, Tensor, Tensor]:
        log_partition, marginals, edges = self._algorithms().expectations(*self._problem())
        return log_partition, marginals, mask_edges(edges, self._real)

    def _argmax(self) -> Tensor:
        with torch.no_grad():
            return self._indicators(self._algorithms().argmax(*self._problem()))

    def _sample(self, sample_shape: torch.Size, generator: Optional[torch.Generator]) -> Tensor:
        values = self._algorithms().sample(*self._problem(), sample_shape.numel(), generator=generator)
        return self._indicators(values.reshape(sample_shape + values.shape[1:]))

    def _relaxed_sample(
        self, sample_shape: torch.Size, temperature: float, generator: Optional[torch.Generator]
    ) -> RelaxedSample:
        scores, pairwise, _ = self._problem()
        # Each segment adds noise, so noise of another mean would prefer many segments, or few.
        perturbed = scores + centred_gumbel_noise(sample_shape + scores.shape, scores, generator)
        best = SemiMarkov(perturbed.detach(), pairwise.detach(), self.lengths).argmax
        relaxed = SemiMarkov(perturbed / temperature, pairwise / temperature, self.lengths)
        return RelaxedSample(best, relaxed.marginals)

    def _indicators(self, values: Tensor) -> Tensor:
        segments = parts.of_integers(values, self.max_segment_length, self.num_labels, self.lengths)
        return segments.to(self.compute_dtype)

    def _allowed_labels(self, allowed: Tensor) -> Tensor:
        """Which integers of :meth:`as_integers` are allowed, given which labels are, ``[*sample, *batch, n, K]``."""
        allowed = allowed | ~self.position_mask.unsqueeze(-1)
        return torch.cat((allowed, allowed), -1)

    def _labels_of(self, segments: Tensor) -> Tensor:
        """The sum over the segments that cover each position, by label."""
        return parts.coverage(self._clear(segments))

    # Potentials in the dtype of the computation

    @property
    def _real(self) -> Optional[Tensor]:
        return self.position_mask if self._has_padding else None

    @cached
    def _masked_scores(self) -> Tensor:
        """Scores of segments with −inf where a segment would end after its sequence."""
        return self.segment_scores.to(self.compute_dtype).masked_fill(~self._real_parts(), NEGATIVE_INFINITY)

    @cached
    def _masked_pairwise(self) -> Tensor:
        pairwise = self.pairwise.to(self.compute_dtype)
        return pairwise if pairwise.dim() == 2 else mask_edges(pairwise, self._real)


def _split_segments(segment_scores: Tensor) -> Tuple[torch.Size, int, int, int]:
    if not isinstance(segment_scores, Tensor):
        raise TypeError(f"segment_scores is a {type(segment_scores).__name__}; give a floating point tensor")
    shape = tuple(segment_scores.shape)
    if len(shape) < 3 or 0 in shape[-2:]:
        raise ValueError(
            f"segment_scores has shape {shape}; it must be [*batch, n, L, K]: positions, lengths of segments, labels, "
            "with L and K of 1 or more"
        )
    return segment_scores.shape[:-3], shape[-3], shape[-2], shape[-1]


def _largest(scores: Tensor, events: int) -> Tensor:
    """The largest finite score of each item, at least 0."""
    scores = scores.masked_fill(~torch.isfinite(scores), 0).flatten(-events)
    return torch.nn.functional.pad(scores, (1, 0)).amax(-1)


@functools.lru_cache(maxsize=None)
def _count(length: int, longest: int, labels: int) -> float:
    counts = [1.0]
    for n in range(1, length + 1):
        counts.append(labels * sum(counts[max(n - longest, 0) :]))
    return counts[length]
