"""The contract of a distribution over structures, and what all of them share."""

from abc import ABC, abstractmethod
from contextlib import contextmanager
from typing import Callable, Dict, Iterator, Optional, Sequence, Tuple

import torch
from torch import Tensor

from .semirings import NEGATIVE_INFINITY


class cached:
    """A property computed once, with autocast off.

    A value made while gradients were disabled has no graph, so the two modes have a cache each: looking at the
    marginals under ``torch.no_grad()`` does not cut them off from a later loss.
    """

    def __init__(self, compute: Callable):
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance, owner=None):
        if instance is None:
            return self
        key = (self._name, torch.is_grad_enabled(), torch.is_inference_mode_enabled())
        if key not in instance._cache:
            with instance._full_precision():
                instance._cache[key] = self._compute(instance)
        return instance._cache[key]


class StructuredDistribution(ABC):
    """A distribution p(z) ∝ exp(Σ of the potentials of the parts of z), with exact inference.

    What a user sees is listed below. Leading dimensions ``*batch`` are arbitrary; padding is on the right, described
    by ``lengths``, and whatever lies in it (NaN, infinities) reaches neither values nor gradients. A potential of −inf
    forbids its part. An item without any possible structure has ``log_partition`` −inf and zero ``marginals``,
    ``argmax``, samples and ``entropy``, and leaves the other items alone. Float16 and bfloat16 potentials are computed
    with in float32, and autocast is switched off; results have the dtype of the potentials. Quantities are computed
    once and share a graph: add the losses made of them before calling ``backward``.

    A subclass calls ``super().__init__`` and provides, in ``compute_dtype``, ``_inference``, ``_potentials``,
    ``_argmax``, ``_sample`` and ``support_size``; where a structure is more than one tensor of parts, also
    ``_expected_parts`` and ``_parts``. Attention uses it through ``parameter_shapes``, ``from_scores`` and
    ``position_marginals``, and learns from given alignments through ``alignment_log_prob``.

    Args:
        batch_shape: the leading dimensions.
        max_length: number of positions including padding.
        lengths: integers 0..``max_length``, broadcastable against ``batch_shape``; ``None`` (no padding) by default.
        potentials: the tensors that come from the caller; the first decides the dtype of results, and the device.

    Raises:
        TypeError: potentials that are not floating point, lengths that are not integers.
        ValueError: lengths that do not fit the batch, or, where they are on the CPU, lie outside 0..``max_length``
            (on an accelerator the check would have to wait for the device).
    """

    def __init__(
        self, batch_shape: Sequence[int], max_length: int, lengths: Optional[Tensor], **potentials: Tensor
    ) -> None:
        for name, tensor in potentials.items():
            _check_floating(name, tensor)
        first, *others = potentials.values()
        self.batch_shape = torch.Size(batch_shape)
        self.max_length = max_length
        self.dtype, self.device = first.dtype, first.device
        self.compute_dtype = _compute_dtype(first, *others)
        self.lengths = _broadcast_lengths(lengths, self.batch_shape, max_length, self.device)
        self._has_padding = lengths is not None
        self._cache: Dict[tuple, object] = {}

    # Public members

    @cached
    def log_partition(self) -> Tensor:
        """log Z, ``[*batch]``."""
        return self._public(self._inferred[0])

    @cached
    def marginals(self) -> Tensor:
        """Probability of each part, in the shape of the potentials; exactly 0 in padding."""
        return self._public(self._inferred[1])

    @cached
    def argmax(self) -> Tensor:
        """A most likely structure as parts 0 and 1; of equally likely ones, always the same."""
        return self._public(self._argmax())

    @cached
    def entropy(self) -> Tensor:
        """−Σ_z p(z) log p(z) = log Z − ⟨θ, μ⟩, ``[*batch]``, in nats."""
        log_partition = self._inferred[0]
        possible = log_partition.masked_fill(log_partition == NEGATIVE_INFINITY, 0)
        return self._public(possible - self._score(self._expected_parts()))

    @property
    def position_marginals(self) -> Tensor:
        """Probability that each position is selected, ``[*batch, n]``: what attention weighs its values with."""
        return self.marginals

    def alignment_log_prob(self, alignment: Tensor) -> Tensor:
        """How probable it is to attend where an alignment says, as a logarithm: what a criterion maximises.

        Here it is −(cross entropy) of the alignment with the marginals divided by their sum, Σᵢ Aᵢ log(μᵢ/Σⱼμⱼ), where
        no logarithm is taken of less than the smallest normal number. One position out of n has Σᵢ Aᵢ log p(z = i), and
        marks of single positions, independent or in a chain, log p(z = the aligned ones): either is computed from the
        potentials, so that a probability too small for a number costs no infinity and keeps its whole gradient.

        Args:
            alignment: A, the shares of the positions, ``[*batch, n]``: at least 0, in sum 1; or 0 throughout, for no
                alignment. What is in padding is not looked at.

        Returns:
            ``[*batch]``, 0 without alignment; −inf where only forbidden positions, or no structure, have it.
        """
        marginals = self.position_marginals
        smallest = torch.finfo(marginals.dtype).tiny
        total = marginals.sum(-1, keepdim=True).clamp(min=smallest)
        return (alignment.to(marginals.dtype) * (marginals.clamp(min=smallest).log() - total.log())).sum(-1)

    @property
    @abstractmethod
    def support_size(self) -> Tensor:
        """Number of structures of each item's length, ``[*batch]`` in float64; forbidden parts are not discounted."""

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Exact samples, ``[*sample_shape, *batch, …]``, as parts 0 and 1, without gradient."""
        with torch.no_grad(), self._full_precision():
            return self._public(self._sample(torch.Size(sample_shape)))

    def log_prob(self, parts: Tensor) -> Tensor:
        """log p of structures ``[*sample, *batch, …]`` given as parts 0 and 1, ``[*sample, *batch]``.

        What lies in padding is not looked at. Structures outside the support have −inf.

        Raises:
            ValueError: ``parts`` has other trailing dimensions than ``marginals``.
        """
        expected = tuple(self._potentials()[0].shape)
        if tuple(parts.shape[max(parts.dim() - len(expected), 0) :]) != expected:
            raise ValueError(f"parts has shape {tuple(parts.shape)}; its last dimensions must be {expected}")
        with self._full_precision():
            log_partition = self._inferred[0]
            # Where nothing is possible, every structure has a forbidden part or is outside the support.
            possible = log_partition.masked_fill(log_partition == NEGATIVE_INFINITY, 0)
            log_prob = self._score(self._parts(parts)) - possible
            return self._public(log_prob.masked_fill(~self._in_support(parts), NEGATIVE_INFINITY))

    def kl(self, other: "StructuredDistribution") -> Tensor:
        """KL(self ‖ other) = log Z_other − log Z_self + ⟨θ_self − θ_other, μ_self⟩, ``[*batch]``.

        It is +inf where ``other`` forbids what ``self`` allows, and 0 for items impossible under ``self``.

        Raises:
            TypeError: ``other`` is of another class.
            ValueError: ``other`` has another batch shape, number of positions or (compared on the CPU only) lengths.
        """
        self._check_comparable(other)
        with self._full_precision():
            mine, theirs = self._inferred[0], other._inferred[0]
            expected = self._expected_parts()
            divergence = theirs - mine + self._score(expected) - other._score(expected)
            # Without any structure on one side this is ∞ − ∞; what self never does costs nothing.
            divergence = divergence.masked_fill(theirs == NEGATIVE_INFINITY, float("inf"))
            return self._public(divergence.masked_fill(mine == NEGATIVE_INFINITY, 0))

    # Hooks of attention

    needs_arcs = False
    """Whether :meth:`from_scores` also wants ``arc_scores`` between source words, as distributions over trees do."""

    selects_segments = False
    """Whether ``argmax`` marks positions with 0 and 1, ``[*batch, n]``, and neighbours are marked together, so that
    what attention selects is best told as segments."""

    @classmethod
    def parameter_shapes(cls) -> Dict[str, Tuple[int, ...]]:
        """Shapes of the learned tables that an attention module holds for this distribution; none by default."""
        return {}

    @classmethod
    def from_scores(cls, scores: Tensor, lengths: Optional[Tensor], **parameters: Tensor) -> "StructuredDistribution":
        """The distribution over source positions for attention scores ``[*batch, n]``.

        ``parameters`` are the tables declared by :meth:`parameter_shapes`, by name.
        """
        return cls(scores, lengths=lengths, **parameters)

    # What a subclass provides

    @abstractmethod
    def _inference(self) -> Tuple[Tensor, Tensor]:
        """log Z ``[*batch]`` and marginals."""

    @abstractmethod
    def _potentials(self) -> Tuple[Tensor, ...]:
        """The potentials, without NaN or +inf in padding; the first has the shape of ``marginals``."""

    @abstractmethod
    def _argmax(self) -> Tensor:
        """A most likely structure."""

    @abstractmethod
    def _sample(self, sample_shape: torch.Size) -> Tensor:
        """Samples ``[*sample_shape, *batch, …]``."""

    def _expected_parts(self) -> Tuple[Tensor, ...]:
        """Expectations of the parts that ``_potentials`` scores."""
        return (self._inferred[1],)

    def _parts(self, structure: Tensor) -> Tuple[Tensor, ...]:
        """The parts that ``_potentials`` scores, 0 in padding, from what ``argmax`` and ``sample`` return."""
        return (self._without_padding(structure.to(self.compute_dtype)),)

    def _in_support(self, structure: Tensor) -> Tensor:
        """Whether parts 0 and 1 form a structure, broadcastable against ``[*sample, *batch]``."""
        return torch.ones((), dtype=torch.bool, device=self.device)

    # Shared machinery

    @cached
    def position_mask(self) -> Tensor:
        """Which positions are real, ``[*batch, n]``, boolean."""
        return torch.arange(self.max_length, device=self.device) < self.lengths.unsqueeze(-1)

    @cached
    def _inferred(self) -> Tuple[Tensor, Tensor]:
        return self._inference()

    def _without_padding(self, tensor: Tensor, value: float = 0) -> Tensor:
        """``tensor`` ``[*sample, *batch, n]`` with ``value`` in padding."""
        return tensor.masked_fill(~self.position_mask, value) if self._has_padding else tensor

    def _score(self, parts: Tuple[Tensor, ...]) -> Tensor:
        """⟨θ, parts⟩ with 0 · (−inf) = 0, ``[*sample, *batch]``."""
        score = torch.zeros((), dtype=self.compute_dtype, device=self.device)
        for potential, part in zip(self._potentials(), parts):
            events = tuple(range(len(self.batch_shape) - potential.dim(), 0))
            forbidden = potential == NEGATIVE_INFINITY
            finite = (potential.masked_fill(forbidden, 0) * part).sum(events)
            broken = (forbidden & (part != 0)).flatten(events[0]).any(-1)
            score = score + finite.masked_fill(broken, NEGATIVE_INFINITY)
        return score

    def _public(self, result: Tensor) -> Tensor:
        return result.to(self.dtype)

    @contextmanager
    def _full_precision(self) -> Iterator[None]:
        with torch.autocast(self.device.type, enabled=False):
            yield

    def _check_comparable(self, other: "StructuredDistribution") -> None:
        if type(other) is not type(self):
            raise TypeError(f"other is a {type(other).__name__}; kl needs another {type(self).__name__}")
        mine, theirs = (self.batch_shape, self.max_length), (other.batch_shape, other.max_length)
        if mine != theirs:
            raise ValueError(
                f"other has batch shape {tuple(theirs[0])} and {theirs[1]} positions; "
                f"kl needs {tuple(mine[0])} and {mine[1]}"
            )
        if self.device.type == "cpu" and not torch.equal(self.lengths, other.lengths):
            raise ValueError(f"other has lengths {other.lengths.tolist()}; kl needs {self.lengths.tolist()}")


def log_prob_of_marks(distribution: StructuredDistribution, alignment: Tensor) -> Tensor:
    """``alignment_log_prob`` of a distribution whose structures mark positions with 0 and 1."""
    marks = distribution._without_padding(alignment) > 0
    return distribution.log_prob(marks).masked_fill(~marks.any(-1), 0)


def split_positions(name: str, scores: Tensor) -> Tuple[torch.Size, int]:
    """Batch shape and number of positions of scores ``[*batch, n]``."""
    if not isinstance(scores, Tensor):
        raise TypeError(f"{name} is a {type(scores).__name__}; give a floating point tensor")
    if scores.dim() == 0:
        raise ValueError(f"{name} has shape (); it must be [*batch, n]")
    return scores.shape[:-1], scores.shape[-1]


def _check_floating(name: str, tensor: Tensor) -> None:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} is a {type(tensor).__name__}; give a floating point tensor")
    if not tensor.is_floating_point():
        raise TypeError(f"{name} has dtype {tensor.dtype}; convert it to floating point, for example with .float()")


def _compute_dtype(*potentials: Tensor) -> torch.dtype:
    # Half precision cannot hold a partition function: 11 bits at a value of 100 leave steps of 0.06.
    wide = any(potential.dtype == torch.float64 for potential in potentials)
    return torch.float64 if wide else torch.float32


def _broadcast_lengths(
    lengths: Optional[Tensor], batch_shape: torch.Size, max_length: int, device: torch.device
) -> Tensor:
    if lengths is None:
        return torch.full(batch_shape, max_length, dtype=torch.long, device=device)
    if not isinstance(lengths, Tensor):
        raise TypeError(f"lengths is a {type(lengths).__name__}; give an integer tensor, for example torch.tensor(...)")
    if lengths.is_floating_point() or lengths.is_complex() or lengths.dtype == torch.bool:
        raise TypeError(f"lengths has dtype {lengths.dtype}; give integers, for example with .long()")
    if lengths.device.type == "cpu" and lengths.numel() > 0:
        least, most = lengths.min().item(), lengths.max().item()
        if least < 0 or most > max_length:
            raise ValueError(f"lengths has values from {least} to {most}; they must lie between 0 and {max_length}")
    try:
        return lengths.to(device, torch.long).expand(batch_shape)
    except RuntimeError:
        raise ValueError(
            f"lengths has shape {tuple(lengths.shape)}, which does not broadcast to the batch shape "
            f"{tuple(batch_shape)}; add dimensions of size 1 where it should be repeated"
        ) from None
