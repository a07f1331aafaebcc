"""Linear chains: segmentation attention, and conditional random fields with K states."""

from types import ModuleType
from typing import Dict, Optional, Tuple

import torch
from torch import Tensor
from torch.nn import functional as F

from .. import finite_masks, integers
from ..backend import implementation, prefers_float32
from ..gumbel import RelaxedSample
from ..gumbel_crf import relaxed_states
from ..pairwise import broadcasts, check_pairwise, mask_edges
from ..registry import register_distribution
from ..semirings import NEGATIVE_INFINITY
from ..structured import StructuredDistribution, cached, log_prob_of_marks, split_positions
from .potentials import Potentials, indicators, mask_states


@register_distribution("linear-chain")
class LinearChain(StructuredDistribution):
    """A linear-chain conditional random field: each position has a state, which depends on those of its neighbours.

    Without ``num_states`` the chain is binary, p(z) ∝ exp(Σ_i unary_i z_i + Σ_i pairwise_i[z_i, z_{i+1}]) over z in
    {0, 1}ⁿ: positions are selected or not. Kim et al., "Structured Attention Networks" (ICLR 2017), sections 3.1 and
    4.2 (segmentation attention). Each unary score counts once, as in the authors' code; the formula of section 4.2,
    read literally, would count those of inner positions twice.

    With ``num_states=K``, p(z) ∝ exp(Σ_i unary_i[z_i] + Σ_i pairwise_i[z_i, z_{i+1}]) over z in {0, …, K-1}ⁿ. ``start``
    and ``end`` add start[z_1] + end[z_n] in both forms; an empty sequence scores 0.

    Members beyond the contract of :class:`StructuredDistribution`: ``edge_marginals``, ``num_states`` and the
    constructor :meth:`from_fields`. ``marginals``, ``argmax``, samples and what ``log_prob`` takes have the shape of
    ``unary``: probability or indicator of state 1 in a binary chain, of each state (one-hot) in the other form.

    Marginals, edge marginals and log Z can be differentiated any number of times. Three kinds of binary chains are
    computed as chains of two states, which takes longer: those with −inf or scores as large as a mask in ``pairwise``,
    ``start`` or ``end``; those with a coupling beyond ±75; and those whose values cannot be read, under
    ``torch.compile`` or ``torch.func``. On a GPU, one implementation for scores of any size serves binary chains and
    those with ``num_states=2``; the reference computes chains with more states.

    Args:
        unary: ``[*batch, n]``, score of state 1, where state 0 scores 0; with ``num_states``, ``[*batch, n, K]``.
        pairwise: ``[K, K]``, shared by all edges, or ``[…, n-1, K, K]``, one table per edge, whose leading dimensions
            broadcast to ``batch``. ``pairwise[..., a, b]`` is the score of z_i = a and z_{i+1} = b.
        lengths: integers 0..n, broadcastable against ``[*batch]``; ``None`` (default): no padding.
        start: score of the first state, ``[K]`` or broadcastable to ``[*batch, K]``; ``None`` (default): 0.
        end: score of the last real state, likewise.
        num_states: K; ``None`` (default): binary, K = 2.
        validate_args: see :class:`StructuredDistribution`.

    Raises:
        TypeError: potentials that are not floating point, lengths that are not integers.
        ValueError: shapes that do not fit, lengths out of range, ``num_states`` that is not a positive integer.

    Example:
        Two selected neighbours weigh 3.

        >>> chain = LinearChain(unary=torch.zeros(3), pairwise=torch.tensor([[1.0, 1.0], [1.0, 3.0]]).log())
        >>> chain.marginals
        tensor([0.7000, 0.8000, 0.7000])
        >>> chain.edge_marginals[0]
        tensor([[0.1000, 0.2000],
                [0.1000, 0.6000]])
        >>> chain.argmax
        tensor([1., 1., 1.])
        >>> chain.log_prob_of_states(torch.tensor([1, 1, -1])).exp()
        tensor(0.6000)

        Two sentences of three words and one, with four tags:

        >>> tags = LinearChain(torch.zeros(2, 3, 4), torch.zeros(4, 4), torch.tensor([3, 1]), num_states=4)
        >>> tags.support_size
        tensor([64.,  4.], dtype=torch.float64)
    """

    def __init__(
        self,
        unary: Tensor,
        pairwise: Tensor,
        lengths: Optional[Tensor] = None,
        start: Optional[Tensor] = None,
        end: Optional[Tensor] = None,
        num_states: Optional[int] = None,
        validate_args: Optional[bool] = None,
    ) -> None:
        if num_states is not None and (type(num_states) is not int or num_states < 1):
            raise ValueError(f"num_states is {num_states!r}; it must be a positive integer, or None for a binary chain")
        self._binary = num_states is None
        self.num_states = 2 if num_states is None else num_states
        batch_shape, max_length = self._split_unary(unary)
        boundaries = {name: scores for name, scores in (("start", start), ("end", end)) if scores is not None}
        super().__init__(batch_shape, max_length, lengths, validate_args, unary=unary, pairwise=pairwise, **boundaries)
        check_pairwise(pairwise, batch_shape, max_length, self.num_states)
        for name, scores in boundaries.items():
            _check_boundary(name, scores, batch_shape, self.num_states)
        self._validate_potentials()

    @classmethod
    def from_fields(cls, fields: Tensor, couplings: Tensor, lengths: Optional[Tensor] = None) -> "LinearChain":
        """The binary chain p(z) ∝ exp(Σ_i fields_i z_i + Σ_i couplings_i z_i z_{i+1}).

        Args:
            fields: ``[*batch, n]``.
            couplings: ``[]``, shared by all edges, or ``[…, n-1]``, one per edge, whose leading dimensions broadcast to
                ``batch``.
            lengths: integers 0..n, broadcastable against ``[*batch]``; ``None`` (default): no padding.

        Raises:
            TypeError, ValueError: see the class.
        """
        batch_shape, n = split_positions("fields", fields)
        if not isinstance(couplings, Tensor):
            raise TypeError(f"couplings is a {type(couplings).__name__}; give a floating point tensor")
        shape = tuple(couplings.shape)
        if shape and not (shape[-1] == max(n - 1, 0) and broadcasts(shape[:-1], batch_shape)):
            raise ValueError(
                f"couplings has shape {shape}; it must be () or (…, {max(n - 1, 0)}) with leading dimensions that "
                f"broadcast to {tuple(batch_shape)}"
            )
        return cls(fields, F.pad(couplings[..., None, None], (1, 0, 1, 0)), lengths)

    selects_segments = True
    has_rsample = True

    @classmethod
    def parameter_shapes(cls) -> Dict[str, Tuple[int, ...]]:
        """One table ``pairwise`` ``(2, 2)``, shared by all positions: attention uses the binary chain."""
        return {"pairwise": (2, 2)}

    @classmethod
    def from_head_scores(cls, scores: Tensor, lengths: Optional[Tensor], **parameters: Tensor) -> "LinearChain":
        """See :meth:`StructuredDistribution.from_head_scores`; ``pairwise`` is ``[heads, 2, 2]``."""
        pairwise = parameters.pop("pairwise")
        if pairwise.shape[0] == 1:
            return cls(scores, pairwise[0], lengths, **parameters)  # type: ignore[arg-type]
        edges = max(scores.shape[-1] - 1, 0)
        per_edge = pairwise[:, None, None].expand(-1, 1, edges, -1, -1)
        return cls(scores, per_edge, lengths, **parameters)  # type: ignore[arg-type]

    # The potentials as given

    @property
    def unary(self) -> Tensor:
        """Scores of states, ``[*batch, n]``, or ``[*batch, n, K]`` with ``num_states``."""
        return self._given["unary"]

    @property
    def pairwise(self) -> Tensor:
        """Scores of edges, ``[K, K]`` or ``[…, n-1, K, K]``."""
        return self._given["pairwise"]

    @property
    def start(self) -> Optional[Tensor]:
        """Scores of the first state, ``[…, K]``, or ``None``."""
        return self._given.get("start")

    @property
    def end(self) -> Optional[Tensor]:
        """Scores of the last real state, ``[…, K]``, or ``None``."""
        return self._given.get("end")

    # Quantities

    @property
    def support_size(self) -> Tensor:
        """K to the length, ``[*batch]`` in float64."""
        return torch.pow(float(self.num_states), self.lengths.double())

    @cached
    def edge_marginals(self) -> Tensor:
        """p(z_i = a, z_{i+1} = b), ``[*batch, n-1, K, K]``; exactly 0 on edges that touch padding."""
        dtype = self.compute_dtype if prefers_float32(self.device) else self._quick_dtype()
        exact = dtype == self.compute_dtype
        edges = (self._with_edges if exact else self._expectations(dtype))[2]
        return self._mark_broken(edges.to(self.dtype), self.position_mask[..., 1:, None, None])

    def alignment_log_prob(self, alignment: Tensor) -> Tensor:
        """log p of selecting the aligned positions and no other, see
        :meth:`StructuredDistribution.alignment_log_prob`.

        Raises:
            ValueError: a chain with ``num_states``, in which no state means that a position is selected.
        """
        if not self._binary:
            raise ValueError(f"this is {self._form()}; only a binary chain selects positions")
        return log_prob_of_marks(self, alignment)

    def log_prob_of_states(self, states: Tensor) -> Tensor:
        """Log-probability of given states, ``[*sample, *batch]``. Unknown states are summed out: the result is the
        log-probability of all sequences that agree with the known states, −inf if there are none.

        Args:
            states: integers ``[*sample, *batch, n]``, or broadcastable to it: the state of each position, 0 or 1 in a
                binary chain, or −1 if it is unknown. Values in padding are ignored.

        Raises:
            ValueError: states of another shape.
        """
        return self._log_prob_of_integers("states", states)

    def as_integers(self, parts: Tensor) -> Tensor:
        """The state of each position, ``[*sample, *batch, n]``, 0 or 1 in a binary chain; −1 in padding and if no
        sequence is possible."""
        if self._binary:
            return integers.of_marks(parts, self.position_mask)
        return integers.of_choices(mask_states(parts, self._real), -1)

    def as_indicators(self, integers_: Tensor) -> Tensor:
        """Indicators in the shape of ``unary`` of sequences given as states ``[*sample, *batch, n]``; the inverse of
        :meth:`as_integers`."""
        if self._binary:
            return self._without_padding(integers_.to(self.dtype))
        return mask_states(integers.one_hot(integers_, self.num_states, -1, self.dtype), self._real)

    # The contract

    def _num_values(self) -> int:
        return self.num_states

    def _restricted(self, allowed: Tensor) -> "LinearChain":
        # Either of the two states may be forbidden.
        states = self._potentials()[0].masked_fill(~allowed, NEGATIVE_INFINITY)
        lengths = self.lengths if self._has_padding else None
        return LinearChain(states, self.pairwise, lengths, self.start, self.end, self.num_states)

    def _structure_name(self) -> str:
        kind = "vectors of {} zeros and ones" if self._binary else "one-hot states ({1}) of {0} positions"
        return kind.format(self.max_length, self.num_states)

    def _settings(self) -> Dict[str, object]:
        return {} if self._binary else {"num_states": self.num_states}

    def _inference(self, dtype: torch.dtype) -> Tuple[Tensor, Tensor]:
        chain = self._scores(dtype)
        log_partition, marginals, _ = self._algorithms().expectations(chain)
        return log_partition, marginals[..., 1] if self._binary and not chain.binary else marginals

    def _quick_dtype(self) -> torch.dtype:
        # The CPU kernels compute in float64 whatever they read. On a GPU the scores of states are sums, which float32
        # would round. Of a shared table nothing is to be saved.
        narrow = self._binary or (self.pairwise.dim() > 2 and not prefers_float32(self.device))
        return self._narrow_dtype if narrow else self.compute_dtype

    def _log_normaliser(self) -> Tensor:
        if prefers_float32(self.device):
            return self._inferred[0]
        # All others compute log Z in float64, with or without edges: what is there already serves.
        return (self._with_edges if self._has_computed("_with_edges") else self._quick)[0]

    def _cross_entropy(self, parts: Tuple[Tensor, ...]) -> Tensor:
        if not self._is_plain:
            return super()._cross_entropy(parts if len(parts) > 2 else self._all_parts(*parts))
        selected, edges = parts[0] if len(parts) == 2 else parts[0][..., 1], parts[1].sum(-3)
        unary = self._without_padding(self.unary.to(self.compute_dtype))
        score = self._score((unary,), (selected,)) + (self._masked_pairwise * edges).sum((-2, -1))
        return self._log_normaliser() - score

    def _potentials(self) -> Tuple[Tensor, ...]:
        """Scores of states ``[*batch, n, K]``, of edges ``[*batch, n-1, K, K]``, of the first and of the last state."""
        unary = self.unary.to(self.compute_dtype)
        if self._binary:
            unary = self._without_padding(unary)
            unary = torch.stack((torch.zeros_like(unary), unary), -1)
        else:
            unary = mask_states(unary, self._real)
        edges = (max(self.max_length - 1, 0), self.num_states, self.num_states)
        pairwise = mask_edges(self.pairwise.to(self.compute_dtype).expand(self.batch_shape + edges), self._real)
        return unary, pairwise, self._boundary(self.start), self._boundary(self.end)

    def _expected_parts(self) -> Tuple[Tensor, ...]:
        log_partition, marginals, edges = self._with_edges
        if self._is_plain:
            return marginals, edges
        if not self._binary or self._moderate is not None:
            return (marginals, edges) + self._first_and_last(marginals)
        parts = self._all_parts(marginals, edges, log_partition == NEGATIVE_INFINITY)
        # 1 − P(z_i = 1) may differ from 0 by a rounding error where state 0 is impossible.
        return tuple(part.masked_fill(s == NEGATIVE_INFINITY, 0) for part, s in zip(parts, self._usable_potentials))

    def _all_parts(self, selected: Tensor, edges: Tensor, impossible: Optional[Tensor] = None) -> Tuple[Tensor, ...]:
        """The parts of a binary chain, given the probabilities of state 1; 0 in impossible chains."""
        states = indicators(selected, self._real)
        states = states if impossible is None else states.masked_fill(impossible[..., None, None], 0)
        return (states, edges) + self._first_and_last(states)

    @cached
    def _is_plain(self) -> bool:
        """Whether this is a binary chain with a shared ``pairwise`` that forbids nothing. Its score has fewer terms
        than that of a chain of states: ``_expected_parts`` are its marginals and edge marginals."""
        if not self._binary or self.pairwise.dim() != 2 or self.start is not None or self.end is not None:
            return False
        readable = self._moderate is None and finite_masks.readable(self.pairwise)
        return readable and finite_masks.all_ordinary((self.pairwise,))

    def _parts(self, structure: Tensor) -> Tuple[Tensor, ...]:
        states = self._states(structure.to(self.compute_dtype))
        edges = mask_edges(states[..., :-1, :, None] * states[..., 1:, None, :], self._real)
        return (states, edges) + self._first_and_last(states)

    def _in_support(self, structure: Tensor) -> Tensor:
        if self._binary:
            return ((structure == 0) | (structure == 1) | ~self.position_mask).all(-1)
        one_hot = ((structure == 1).sum(-1) == 1) & ((structure != 0).sum(-1) == 1)
        return (one_hot | ~self.position_mask).all(-1)

    def _real_parts(self) -> Tensor:
        real = self.position_mask
        return real if self._binary else real.unsqueeze(-1).expand(real.shape + (self.num_states,))

    def _choices(self) -> Tuple[Tuple[int, ...], ...]:
        return (-1,), (-2, -1), (-1,), (-1,)

    def _most_parts(self) -> int:
        return 2 * self.max_length + 1

    def _all_ordinary(self) -> bool:
        if not self._binary or self.unary.numel() == 0:
            return super()._all_ordinary()
        others = [scores for name, scores in self._given.items() if name != "unary"]
        if not finite_masks.all_ordinary(others):
            return super()._all_ordinary()
        # With ordinary pairwise scores and ends, state 0 is always possible: no sequence has to use a masked state 1.
        return self.unary.detach().amax().item() <= finite_masks.LARGEST_ORDINARY

    def _argmax(self) -> Tensor:
        with torch.no_grad():
            return self._indicator(self._algorithms().argmax(self._scores(self.compute_dtype)))

    def _sample(self, sample_shape: torch.Size, generator: Optional[torch.Generator]) -> Tensor:
        chain, count = self._scores(self.compute_dtype), sample_shape.numel()
        numbers = self._algorithms().sample(chain, count, generator=generator)
        return self._indicator(numbers.reshape(sample_shape + numbers.shape[1:]))

    def _relaxed_sample(
        self, sample_shape: torch.Size, temperature: float, generator: Optional[torch.Generator]
    ) -> RelaxedSample:
        states = self._states(self.marginals.to(self.compute_dtype))
        edges = self.edge_marginals.to(self.compute_dtype)
        possible = (self._log_normaliser() > NEGATIVE_INFINITY)[..., None, None]
        drawn = relaxed_states(states * possible, edges, self.lengths, sample_shape, temperature, generator)
        if not self._binary:
            return drawn
        return RelaxedSample(drawn.structures[..., 1], drawn.relaxed[..., 1])

    def _check_comparable(self, other: StructuredDistribution) -> None:
        super()._check_comparable(other)
        if isinstance(other, LinearChain) and (self._binary, self.num_states) != (other._binary, other.num_states):
            raise ValueError(f"other is {other._form()}; it must be {self._form()}")

    # Inference

    def _algorithms(self) -> ModuleType:
        """The implementation under the current backend: a module with these functions of :class:`Potentials`:

        * ``expectations(chain, with_edges=False)``: log Z ``[*batch]``, marginals in the shape of ``chain.unary``, and
          edge marginals ``[*batch, n-1, K, K]`` or ``None``;
        * ``argmax(chain)``: the states ``[*batch, n]`` of a best sequence;
        * ``sample(chain, count, generator)``: the states ``[count, *batch, n]`` of samples.

        States are integers 0..K-1, and ``NO_STATE`` in padding and where no sequence is possible.
        """
        return implementation(__package__, self.device)

    def _scores(self, dtype: torch.dtype) -> Potentials:
        """The argument of implementations, with the unary scores of a binary chain, or the pairwise scores of another,
        in ``dtype``."""
        if self._moderate is None:
            wide = self.compute_dtype
            unary, pairwise = self.unary.to(dtype if self._binary else wide), self._masked_pairwise_in(dtype)
            start, end = (None if scores is None else scores.to(wide) for scores in (self.start, self.end))
        else:
            unary, pairwise, start, end = self._usable_potentials
        return Potentials(unary, pairwise, self.lengths, self._real, start, end)

    @cached
    def _with_edges(self) -> Tuple[Tensor, Tensor, Tensor]:
        return self._expectations(self.compute_dtype)

    def _expectations(self, dtype: torch.dtype) -> Tuple[Tensor, Tensor, Tensor]:
        """log Z, marginals and edge marginals, at least as precise as ``dtype``. The marginals are those of states,
        except for a binary chain whose given potentials are used."""
        return self._algorithms().expectations(self._scores(dtype), with_edges=True)

    # The two forms: structures in the shape of unary, and states [*sample, *batch, n, K]

    def _split_unary(self, unary: Tensor) -> Tuple[torch.Size, int]:
        if self._binary:
            return split_positions("unary", unary)
        if isinstance(unary, Tensor) and (unary.dim() < 2 or unary.shape[-1] != self.num_states):
            raise ValueError(
                f"unary has shape {tuple(unary.shape)}; with num_states={self.num_states} it must be "
                f"[*batch, n, {self.num_states}]"
            )
        leading, _ = split_positions("unary", unary)
        return leading[:-1], leading[-1]

    def _states(self, structure: Tensor) -> Tensor:
        return indicators(structure, self._real) if self._binary else mask_states(structure, self._real)

    def _indicator(self, numbers: Tensor) -> Tensor:
        """The indicator of a sequence of states, given as integers."""
        if self._binary:
            return (numbers == 1).to(self.compute_dtype)
        return (numbers.unsqueeze(-1) == torch.arange(self.num_states, device=numbers.device)).to(self.compute_dtype)

    def _first_and_last(self, states: Tensor) -> Tuple[Tensor, Tensor]:
        """Indicators of the first and last state, ``[*sample, *batch, K]``; 0 for an empty sequence."""
        if self.max_length == 0:
            nothing = states.sum(-2)
            return nothing, nothing
        last = (self.lengths - 1).clamp(min=0)[..., None, None].expand(states.shape[:-2] + (1, self.num_states))
        return states[..., 0, :], states.gather(-2, last).squeeze(-2)

    def _form(self) -> str:
        return "a binary chain" if self._binary else f"a chain with num_states={self.num_states}"

    # Potentials in the dtype of the computation, 0 in padding

    @property
    def _real(self) -> Optional[Tensor]:
        return self.position_mask if self._has_padding else None

    @cached
    def _masked_pairwise(self) -> Tensor:
        pairwise = self.pairwise.to(self.compute_dtype)
        return pairwise if pairwise.dim() == 2 else mask_edges(pairwise, self._real)

    def _masked_pairwise_in(self, dtype: torch.dtype) -> Tensor:
        if self._binary or dtype == self.compute_dtype:
            return self._masked_pairwise
        return mask_edges(self.pairwise.to(dtype), self._real)

    def _boundary(self, scores: Optional[Tensor]) -> Tensor:
        shape = self.batch_shape + (self.num_states,)
        if scores is None:
            return torch.zeros((), dtype=self.compute_dtype, device=self.device).expand(shape)
        scores = scores.to(self.compute_dtype)
        scores = scores.masked_fill((self.lengths == 0).unsqueeze(-1), 0) if self._has_padding else scores
        return scores.expand(shape)


def _check_boundary(name: str, scores: Tensor, batch_shape: torch.Size, states: int) -> None:
    shape = tuple(scores.shape)
    if shape[-1:] != (states,) or not broadcasts(shape[:-1], batch_shape):
        raise ValueError(
            f"{name} has shape {shape}; it must be ({states},) or (…, {states}) with leading dimensions that "
            f"broadcast to {tuple(batch_shape)}"
        )
