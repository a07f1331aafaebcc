"""One contiguous span of positions."""

from types import ModuleType
from typing import Dict, Optional, Tuple

import torch
from torch import Tensor
from torch.nn import functional as F

from . import integers, linear_chain
from .backend import implementation
from .gumbel import RelaxedSample
from .gumbel_crf import relaxed_states
from .linear_chain.potentials import Potentials, mask_states
from .pairwise import broadcasts, mask_edges
from .registry import register_distribution
from .semirings import NEGATIVE_INFINITY
from .structured import StructuredDistribution, cached, split_positions

BEFORE, INSIDE, AFTER = range(3)
STATES = 3


@register_distribution("one-span")
class OneSpan(StructuredDistribution):
    """Exactly one contiguous span of one or more positions is selected.

    p(i..j) ∝ exp(unary_i + … + unary_j + stay · (j − i)). A structure is a vector over positions, 1 in the span and 0
    outside. An item of length 0 is impossible. The distribution is a linear chain with the states before, inside and
    after the span, in this order, whose algorithms and kernels compute it in O(n) time (Kim et al., "Structured
    Attention Networks", ICLR 2017, figure 2, for the chain).

    Marginals and log Z can be differentiated any number of times.

    Args:
        unary: ``[*batch, n]``, score of each position of the span.
        stay: ``[…, 1]``, score of each further position of the span; leading dimensions broadcast to ``batch``.
        lengths: integers 0..n, broadcastable against ``[*batch]``; ``None`` (default): no padding.
        validate_args: see :class:`StructuredDistribution`.

    Raises:
        TypeError: potentials that are not floating point, lengths that are not integers.
        ValueError: shapes that do not fit, lengths out of range.

    Example:
        Of three positions, the last weighs 2: the spans weigh 1, 1, 2, 1, 2, 2.

        >>> spans = OneSpan(torch.tensor([1.0, 1.0, 2.0]).log(), stay=torch.zeros(1))
        >>> spans.marginals
        tensor([0.4444, 0.6667, 0.6667])
        >>> spans.log_prob(torch.tensor([0.0, 1.0, 1.0])).exp()
        tensor(0.2222)
        >>> OneSpan(torch.tensor([1.0, -3.0, 2.0]), stay=torch.zeros(1)).argmax
        tensor([0., 0., 1.])
    """

    def __init__(
        self,
        unary: Tensor,
        stay: Tensor,
        lengths: Optional[Tensor] = None,
        validate_args: Optional[bool] = None,
    ) -> None:
        batch_shape, max_length = split_positions("unary", unary)
        super().__init__(batch_shape, max_length, lengths, validate_args, unary=unary, stay=stay)
        if stay.shape[-1:] != (1,) or not broadcasts(stay.shape[:-1], batch_shape):
            raise ValueError(
                f"stay has shape {tuple(stay.shape)}; it must be (…, 1) with leading dimensions that broadcast to "
                f"{tuple(batch_shape)}"
            )
        # Which of the marks 0 and 1 each position may have, [*batch, n, 2]; None: either.
        self._allowed: Optional[Tensor] = None
        self._validate_potentials()

    selects_segments = True
    has_rsample = True

    @classmethod
    def parameter_shapes(cls) -> Dict[str, Tuple[int, ...]]:
        """The score ``stay`` ``(1,)``, shared by all positions."""
        return {"stay": (1,)}

    @property
    def unary(self) -> Tensor:
        """The scores of positions as given, ``[*batch, n]``."""
        return self._given["unary"]

    @property
    def stay(self) -> Tensor:
        """The score of further positions as given, ``[…, 1]``."""
        return self._given["stay"]

    @property
    def support_size(self) -> Tensor:
        """n(n + 1)/2 for n positions, ``[*batch]`` in float64."""
        lengths = self.lengths.double()
        return lengths * (lengths + 1) / 2

    def as_integers(self, parts: Tensor) -> Tensor:
        """1 for the positions of the span and 0 for the others, ``[*sample, *batch, n]``; −1 in padding and if no span
        is possible."""
        marks = integers.of_marks(parts, self.position_mask)
        return marks.masked_fill(~(marks == 1).any(-1, keepdim=True), integers.NOTHING)

    def as_indicators(self, integers_: Tensor) -> Tensor:
        """Indicators ``[*sample, *batch, n]``; the inverse of :meth:`as_integers`."""
        return self._without_padding(integers_.clamp(min=0).to(self.dtype))

    # The contract

    def _num_values(self) -> int:
        return 2

    def _restricted(self, allowed: Tensor) -> "OneSpan":
        batch_shape = torch.broadcast_shapes(allowed.shape[:-2], self.batch_shape)
        unary = self.unary.expand(batch_shape + self.event_shape)
        restricted = OneSpan(unary, self.stay, self.lengths if self._has_padding else None)
        restricted._allowed = allowed
        return restricted

    def _structure_name(self) -> str:
        return f"spans of {self.max_length} positions"

    def _inference(self, dtype: torch.dtype) -> Tuple[Tensor, Tensor]:
        log_partition, states, _ = self._with_edges
        return log_partition, states[..., INSIDE]

    @cached
    def _with_edges(self) -> Tuple[Tensor, Tensor, Tensor]:
        log_partition, states, edges = self._algorithms().expectations(self._chain(), with_edges=True)
        # The chain has an empty sequence of states for no positions, which has no span.
        return log_partition.masked_fill(self.lengths == 0, NEGATIVE_INFINITY), states, edges

    def _potentials(self) -> Tuple[Tensor, ...]:
        """Scores of states ``[*batch, n, 3]`` and of edges ``[*batch, n-1, 3, 3]``."""
        edges = (max(self.max_length - 1, 0), STATES, STATES)
        pairwise = self._table()
        pairwise = (pairwise if pairwise.dim() == 2 else pairwise.unsqueeze(-3)).expand(self.batch_shape + edges)
        return self._states(), mask_edges(pairwise, self._real)

    def _expected_parts(self) -> Tuple[Tensor, ...]:
        return self._with_edges[1:]

    def _parts(self, structure: Tensor) -> Tuple[Tensor, ...]:
        inside = self._without_padding(structure.to(self.compute_dtype))
        before = (inside.cumsum(-1) == 0).to(self.compute_dtype)
        states = mask_states(torch.stack((before, inside, 1 - before - inside), -1), self.position_mask)
        # Where there is no span, nothing is chosen.
        states = states * inside.amax(-1)[..., None, None] if self.max_length > 0 else states
        return states, mask_edges(states[..., :-1, :, None] * states[..., 1:, None, :], self._real)

    def _in_support(self, structure: Tensor) -> Tensor:
        marks = self._without_padding(structure)
        begins = (marks == 1) & (F.pad(marks[..., :-1], (1, 0)) != 1) if self.max_length > 0 else marks == 1
        return ((marks == 0) | (marks == 1)).all(-1) & (begins.sum(-1) == 1)

    def _choices(self) -> Tuple[Tuple[int, ...], ...]:
        return (-1,), (-2, -1)

    def _most_parts(self) -> int:
        return 2 * self.max_length

    def _argmax(self) -> Tensor:
        with torch.no_grad():
            return (self._algorithms().argmax(self._chain()) == INSIDE).to(self.compute_dtype)

    def _sample(self, sample_shape: torch.Size, generator: Optional[torch.Generator]) -> Tensor:
        states = self._algorithms().sample(self._chain(), sample_shape.numel(), generator=generator)
        return (states == INSIDE).to(self.compute_dtype).reshape(sample_shape + states.shape[1:])

    def _relaxed_sample(
        self, sample_shape: torch.Size, temperature: float, generator: Optional[torch.Generator]
    ) -> RelaxedSample:
        log_partition, states, edges = self._with_edges
        possible = (log_partition > NEGATIVE_INFINITY)[..., None, None]
        drawn = relaxed_states(states * possible, edges, self.lengths, sample_shape, temperature, generator)
        return RelaxedSample(drawn.structures[..., INSIDE], drawn.relaxed[..., INSIDE])

    # The chain

    def _algorithms(self) -> ModuleType:
        return implementation(linear_chain.__name__, self.device)

    def _chain(self) -> Potentials:
        if self._moderate is not None:
            states, pairwise = self._usable_potentials
            return Potentials(states, pairwise, self.lengths, self._real)
        pairwise = self._table()
        if pairwise.dim() > 2:
            edges = (max(self.max_length - 1, 0), STATES, STATES)
            pairwise = mask_edges(pairwise.unsqueeze(-3).expand(self.batch_shape + edges), self._real)
        return Potentials(self._states(), pairwise, self.lengths, self._real)

    @property
    def _real(self) -> Optional[Tensor]:
        return self.position_mask if self._has_padding else None

    def _states(self) -> Tensor:
        """Scores of states, ``[*batch, n, 3]``; 0 in padding."""
        inside = self._without_padding(self.unary.to(self.compute_dtype))
        outside = torch.zeros_like(inside)
        position = torch.arange(self.max_length, device=self.device)
        not_before = position == self.lengths.unsqueeze(-1) - 1
        not_inside = torch.zeros_like(not_before)
        not_after = (position == 0) & self.position_mask
        if self._allowed is not None:
            selected, not_selected = (~self._allowed[..., mark] & self.position_mask for mark in (0, 1))
            not_before, not_inside, not_after = not_before | selected, not_inside | not_selected, not_after | selected
        forbidden = torch.stack(torch.broadcast_tensors(not_before, not_inside, not_after), -1)
        return torch.stack((outside, inside, outside), -1).masked_fill(forbidden, NEGATIVE_INFINITY)

    def _table(self) -> Tensor:
        """Scores of neighbouring states, ``[3, 3]``, or ``[…, 3, 3]`` where ``stay`` is not shared."""
        before, inside, after = torch.eye(STATES, dtype=torch.bool, device=self.device)
        # A state stays, or becomes the next one.
        possible = torch.stack((before | inside, inside | after, after))
        table = torch.zeros(STATES, STATES, dtype=self.compute_dtype, device=self.device)
        stay = self.stay.to(self.compute_dtype)
        stay = stay.reshape(1, 1) if stay.numel() == 1 else stay.unsqueeze(-1)
        scores = torch.where(inside & inside.unsqueeze(-1), stay, table)
        return scores.masked_fill(~possible, NEGATIVE_INFINITY)
