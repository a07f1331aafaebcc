"""The contract of distributions over structures, and the code that all of them share."""

import os
from abc import ABC, abstractmethod
from contextlib import contextmanager, nullcontext
from typing import Any, Callable, Dict, Generic, Iterator, Optional, Sequence, Tuple, TypeVar, overload

import torch
from torch import Tensor
from torch.distributions.kl import register_kl

from . import finite_masks, k_best
from .gumbel import RelaxedSample
from .integers import NOTHING
from .k_best import TopK
from .operations import has_values, is_compiling
from .semirings import NEGATIVE_INFINITY
from .torch_interface import CHECK, TorchInterface

# Kinds of devices that cannot compute in float64.
WITHOUT_FLOAT64 = ("mps",)

T = TypeVar("T")


class cached(Generic[T]):
    """A property computed once. A public one is computed with autocast off, and checks that no potential has changed.

    A value computed while gradients were disabled has no graph, so each mode has its own cache: reading the marginals
    under ``torch.no_grad()`` does not detach them from a later loss.
    """

    def __init__(self, compute: Callable[[Any], T]):
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> "cached[T]": ...

    @overload
    def __get__(self, instance: object, owner: Optional[type] = None) -> T: ...

    def __get__(self, instance, owner=None):
        if instance is None:
            return self
        key = _cache_key(self._name)
        if key not in instance._cache:
            if self._name.startswith("_"):
                # A public property needs it, and has made the checks below.
                instance._cache[key] = self._compute(instance)
            else:
                instance._check_unchanged()
                with instance._full_precision():
                    instance._cache[key] = self._compute(instance)
        return instance._cache[key]


def _cache_key(name: str) -> Tuple[str, bool, bool]:
    # torch.compile cannot trace the query for inference mode, which does not occur inside its graphs.
    inference = not is_compiling() and torch.is_inference_mode_enabled()
    return name, torch.is_grad_enabled(), inference


class StructuredDistribution(TorchInterface, ABC):
    """A distribution p(z) ∝ exp(Σ of the potentials of the parts of z), with exact inference.

    It is a ``torch.distributions.Distribution`` over indicators of parts, tensors ``[*batch, *event]`` of 0 and 1 in
    the shape of the potentials. Its ``mean`` is the tensor of marginals. The leading dimensions ``*batch`` are
    arbitrary. Padding is on the right, given by ``lengths``; its values, even NaN, reach neither results nor gradients.

    **Validation** is on by default, as in torch.distributions: ``log_prob`` raises for a value that is no structure. To
    avoid a synchronisation, values on an accelerator are not validated, nor are values while ``torch.compile`` or
    ``torch.func`` traces. ``validate_args=True`` validates on any device, and rejects potentials with NaN or +inf. With
    ``False``, ``log_prob`` of a value that is no structure is −inf.
    ``StructuredDistribution.set_default_validate_args`` is that of torch, for all distributions.

    **Potentials.** −inf forbids a part. An item without any possible structure has ``log_partition`` −inf and zero
    ``marginals``, ``argmax``, samples and ``entropy``; it does not affect other items. A large finite number, such as
    the −1e9 of a mask, is a score like any other: a masked structure is chosen only if every structure is masked, and
    then those with the fewest masks are (:mod:`.finite_masks`; on the CPU only, and not while a graph is traced).
    NaN or +inf in a real position of an item makes all its results and its gradient NaN; other items are not affected.
    Changing a potential in place after a quantity was computed makes the computation of any other quantity an error.

    **Precision.** Log Z, ``entropy``, ``log_prob`` and ``kl`` are computed in float64, where the device has it, and
    rounded once to the dtype of the potentials. So are ``marginals``, except on a GPU with potentials of float32 or
    less, where they are computed in float32. Autocast is switched off. Rounding errors never make a non-negative
    quantity negative, nor ``log_prob`` positive. Quantities are computed once and share a graph: add the losses made
    of them before calling ``backward``.

    A subclass calls ``super().__init__``, with the potential that has the shape of structures first, and provides
    ``_inference``, ``_potentials``, ``_argmax``, ``_sample``, ``_in_support`` and ``support_size``. If a structure has
    more than one tensor of parts, it also provides ``_expected_parts`` and ``_parts``. ``topk`` needs ``as_integers``,
    ``as_indicators``, ``_num_values`` and ``_restricted``. Attention uses a distribution by ``parameter_shapes``,
    ``from_scores`` and ``position_marginals``, and learns from given alignments by ``alignment_log_prob``.

    Args:
        batch_shape: the leading dimensions.
        max_length: number of positions including padding.
        lengths: integers 0..``max_length``, broadcastable against ``batch_shape``; ``None`` (no padding) by default.
        validate_args: see above; ``None`` (default): the setting of ``set_default_validate_args``.
        potentials: the caller's tensors; the first determines the dtype of results and the device.

    Raises:
        TypeError: potentials that are not floating point, lengths that are not integers.
        ValueError: lengths that do not fit the batch or lie outside 0..``max_length``. On an accelerator, and while
            ``torch.compile`` or ``torch.func`` traces, lengths are clamped to that range instead. With
            ``STRUCTATTN_CHECK=1`` in the environment, lengths on an accelerator raise as well.
    """

    def __init__(
        self,
        batch_shape: Sequence[int],
        max_length: int,
        lengths: Optional[Tensor],
        validate_args: Optional[bool] = None,
        **potentials: Tensor,
    ) -> None:
        for name, tensor in potentials.items():
            _check_floating(name, tensor)
        first, *others = potentials.values()
        self._batch_shape, self._event_shape = torch.Size(batch_shape), first.shape[len(batch_shape) :]
        if validate_args is not None:
            self._validate_args = validate_args
        self.max_length = max_length
        self.dtype, self.device = first.dtype, first.device
        self.compute_dtype = torch.float32 if first.device.type in WITHOUT_FLOAT64 else torch.float64
        self._narrow_dtype = _narrow_dtype(first, *others)
        self._given = potentials
        self.lengths = _broadcast_lengths(lengths, self.batch_shape, max_length, self.device)
        self._has_padding = lengths is not None
        self._cache: Dict[tuple, object] = {}
        self._versions: Optional[Dict[str, int]] = None

    # Public members

    @cached
    def log_partition(self) -> Tensor:
        """log Z, ``[*batch]``."""
        return self._public(self._total(self._quick_log_partition()))

    @cached
    def marginals(self) -> Tensor:
        """Probability of each part, in the shape of the potentials; exactly 0 in padding."""
        return self._public_parts(self._clear(self._quick[1].to(self.dtype)))

    @cached
    def argmax(self) -> Tensor:
        """A most likely structure, as indicators of parts; ties are broken in the same way every time."""
        return self._public_parts(self._argmax())

    @cached
    def max(self) -> Tensor:
        """The score ⟨θ, z⟩ of ``argmax``, ``[*batch]``; −inf if nothing is possible. Its gradient is ``argmax``."""
        score = self._score(self._potentials(), self._best_parts)
        return self._public(score.masked_fill(self._log_normaliser() == NEGATIVE_INFINITY, NEGATIVE_INFINITY))

    def entropy(self) -> Tensor:
        """−Σ_z p(z) log p(z) = log Z − ⟨θ, μ⟩, ``[*batch]``, in nats; at least 0."""
        self._check_unchanged()
        with self._full_precision():
            return self._entropy

    @property
    def position_marginals(self) -> Tensor:
        """Probability that each position is selected, ``[*batch, n]``: the weights of attention."""
        return self.marginals

    def alignment_log_prob(self, alignment: Tensor) -> Tensor:
        """Log-probability of attending to the aligned positions, which a criterion maximises.

        By default it is the negative cross entropy of the alignment with the normalised marginals, Σᵢ Aᵢ log(μᵢ/Σⱼμⱼ),
        with probabilities clamped to the smallest normal number. ``Categorical`` has Σᵢ Aᵢ log p(z = i) instead, and
        ``Bernoulli`` and binary chains have log p(z = the aligned positions). Both are computed from the potentials, so
        that a probability that underflows gives no infinity and keeps its whole gradient.

        Args:
            alignment: A, the shares of the positions, ``[*batch, n]``: non-negative with sum 1, or all 0 for no
                alignment. Values in padding are ignored.

        Returns:
            ``[*batch]``; 0 without alignment; −inf if all aligned positions are forbidden or no structure is possible.
        """
        marginals = self.position_marginals
        smallest = torch.finfo(marginals.dtype).tiny
        total = marginals.sum(-1, keepdim=True).clamp(min=smallest)
        return (alignment.to(marginals.dtype) * (marginals.clamp(min=smallest).log() - total.log())).sum(-1)

    @property
    @abstractmethod
    def support_size(self) -> Tensor:
        """Number of structures of each item's length, ``[*batch]`` in float64, including forbidden ones."""

    def sample(self, sample_shape: Sequence[int] = (), generator: Optional[torch.Generator] = None) -> Tensor:
        """Exact samples ``[*sample_shape, *batch, *event]`` as indicators of parts, without gradient.

        Args:
            sample_shape: ``()`` by default.
            generator: source of randomness, of any device; ``None`` (default): PyTorch's default generator.
        """
        self._check_unchanged()
        with torch.no_grad(), self._full_precision():
            return self._public_parts(self._sample(torch.Size(sample_shape), generator))

    def rsample(
        self,
        sample_shape: Sequence[int] = (),
        generator: Optional[torch.Generator] = None,
        temperature: float = 1.0,
    ) -> Tensor:
        """Samples ``[*sample_shape, *batch, *event]`` as indicators of parts, whose gradient is that of a relaxation:
        straight-through, hence biased. At a low temperature the relaxation is closer to the structure, and its gradient
        varies more. ``has_rsample`` says whether a distribution has it:

        * ``Categorical``, ``IndependentHeads``: Gumbel-softmax. Samples are exact.
        * ``LinearChain``, ``OneSpan``: Gumbel-CRF, see :mod:`.gumbel_crf`. Samples are exact.
        * Trees, ``SemiMarkov``: perturb-and-MAP, the best structure after Gumbel noise on the score of each arc, span
          or segment, relaxed to the marginals of these scores (Papandreou & Yuille, ICCV 2011; Corro & Titov, ICLR
          2019, relax the same maximum). Samples are not exact: their distribution is not p, and further from it for
          longer inputs.

        Args:
            sample_shape: ``()`` by default.
            generator: see :meth:`sample`.
            temperature: of the relaxation, greater than 0; 1 by default.

        Raises:
            NotImplementedError: the distribution has none.
            ValueError: a temperature that is not greater than 0.
        """
        if not self.has_rsample:
            raise NotImplementedError(f"{type(self).__name__} has no rsample; use sample, which has no gradient")
        if not temperature > 0:
            raise ValueError(f"temperature is {temperature!r}; it must be greater than 0")
        self._check_unchanged()
        with self._full_precision():
            drawn = self._relaxed_sample(torch.Size(sample_shape), temperature, generator)
            return self._public_parts(drawn.straight_through())

    def _relaxed_sample(
        self, sample_shape: torch.Size, temperature: float, generator: Optional[torch.Generator]
    ) -> RelaxedSample:
        """Samples and relaxations in the shape of structures, provided by a subclass with ``has_rsample``."""
        raise NotImplementedError

    def log_prob(self, parts: Tensor) -> Tensor:
        """log p of structures given as indicators of parts, ``[*sample, *batch, *event]`` or broadcastable to it.

        Values in padding are ignored. A structure with a forbidden part has −inf.

        Returns:
            ``[*sample, *batch]``

        Raises:
            ValueError: ``parts`` has another shape, or is no structure (values other than 0 and 1, or combinations that
                do not exist). Without validation (see the class) the result is −inf instead.
        """
        parts = self._broadcast_parts(parts)
        if self._looks_at(parts):
            self._validate_sample(parts)
        return self._log_prob(parts)

    def topk(self, k: int) -> TopK:
        """The k most likely structures ``[k, *batch, *event]``, the most likely first, and their log-probabilities
        ``[k, *batch]``, which are differentiable. Items with fewer possible structures are filled up with zeros and
        −inf. The result is exact and takes k times the work of ``argmax`` for each position, see :mod:`.k_best`.

        Raises:
            ValueError: ``k`` is not a positive integer.
        """
        if type(k) is not int or k < 1:
            raise ValueError(f"k is {k!r}; it must be a positive integer")
        self._check_unchanged()
        with self._full_precision():
            values, exists = self._best_values(k)
            structures = self.as_indicators(values)
            structures = structures.masked_fill(~exists[(...,) + (None,) * len(self.event_shape)], 0)
            log_probs = self._log_prob(structures).masked_fill(~exists, NEGATIVE_INFINITY)
            return TopK(self._public_parts(structures), self._mark_broken(log_probs))

    def cross_entropy(self, other: "StructuredDistribution") -> Tensor:
        """−Σ_z p(z) log q(z) for another distribution q, ``[*batch]``, in nats: the sum of entropy and KL. Arguments,
        infinities and errors are those of :meth:`kl`."""
        return self._compare(other, other._cross_entropy)

    def kl(self, other: "StructuredDistribution") -> Tensor:
        """KL(self ‖ other) = log Z_other − log Z_self + ⟨θ_self − θ_other, μ_self⟩, ``[*batch]``; at least 0.

        It is +inf if ``other`` excludes a structure that ``self`` allows, by −inf or because its support is smaller,
        and 0 for items impossible under ``self``. ``torch.distributions.kl_divergence`` calls this method.

        Raises:
            TypeError: ``other`` is of another class.
            ValueError: ``other`` has another batch shape, number of positions or (compared on the CPU only) lengths.
        """
        return self._compare(other, lambda parts: other._cross_entropy(parts) - self._cross_entropy(parts))

    def as_integers(self, parts: Tensor) -> Tensor:
        """Structures ``[*sample, *batch, *event]`` of ``argmax``, ``sample`` and ``topk`` as integers: the selected
        position (``Categorical``, ``[*sample, *batch]``), or, ``[*sample, *batch, n]``, the state of each position (0
        or 1 where positions are selected or not) or the head of each word (0 is the root). −1 stands in padding and
        where no structure is possible."""
        raise NotImplementedError(f"{type(self).__name__} does not say how its structures are written as integers")

    def as_indicators(self, integers: Tensor) -> Tensor:
        """The inverse of :meth:`as_integers`: indicators of parts, as ``log_prob`` takes them. Integers in padding are
        ignored; integers out of range give indicators of no structure."""
        raise NotImplementedError(f"{type(self).__name__} does not say how its structures are written as integers")

    # Hooks of attention

    needs_arcs = False
    """Whether :meth:`from_scores` also wants ``arc_scores`` between source words, as distributions over trees do."""

    selects_segments = False
    """Whether structures select any number of positions, and neighbours together, so that what attention selects is
    best told as segments, by :meth:`selected_positions`."""

    shape_options: Tuple[str, ...] = ()
    """Names of the arguments of :meth:`parameter_shapes`, which attention passes to it if it has them."""

    def selected_positions(self, structures: Tensor) -> Tensor:
        """Which positions are selected by structures of ``argmax``, ``sample`` or ``topk``: 0 or 1, ``[*sample, *batch,
        n]``. By default structures have that shape."""
        return structures

    @classmethod
    def parameter_shapes(cls) -> Dict[str, Tuple[int, ...]]:
        """Shapes of the learned parameters that attention holds for this distribution, by name; none by default."""
        return {}

    @classmethod
    def from_scores(cls, scores: Tensor, lengths: Optional[Tensor], **parameters: Tensor) -> "StructuredDistribution":
        """The distribution over source positions for attention scores ``[*batch, n]``.

        ``parameters`` are those declared by :meth:`parameter_shapes`, by name. A subclass may name its own instead.
        """
        return cls(scores, lengths=lengths, **parameters)  # type: ignore[arg-type]

    @classmethod
    def from_head_scores(
        cls, scores: Tensor, lengths: Optional[Tensor], **parameters: Tensor
    ) -> "StructuredDistribution":
        """:meth:`from_scores` for several attention heads at once, each with parameters of its own. By default a
        parameter is a tensor ``[heads, 1, *shape]`` for :meth:`from_scores`, which broadcasts it to the queries.

        Args:
            scores: ``[*batch, heads, tgt_len, n]``.
            lengths: broadcastable against ``[*batch, heads, tgt_len]``, or ``None``.
            parameters: those of each head, ``[heads, *shape]``, by name.
        """
        return cls.from_scores(scores, lengths, **{name: each.unsqueeze(1) for name, each in parameters.items()})

    # What a subclass provides

    @abstractmethod
    def _inference(self, dtype: torch.dtype) -> Tuple[Tensor, Tensor]:
        """log Z ``[*batch]`` and marginals of :attr:`_usable_potentials`, at least as precise as ``dtype``."""

    @abstractmethod
    def _potentials(self) -> Tuple[Tensor, ...]:
        """The potentials in ``compute_dtype``, without NaN or +inf in padding."""

    @abstractmethod
    def _argmax(self) -> Tensor:
        """A most likely structure."""

    @abstractmethod
    def _sample(self, sample_shape: torch.Size, generator: Optional[torch.Generator]) -> Tensor:
        """Samples ``[*sample_shape, *batch, …]``."""

    def _expected_parts(self) -> Tuple[Tensor, ...]:
        """Expectations of the parts that ``_potentials`` scores."""
        return (self._clear(self._inferred[1]),)

    def _clear(self, marginals: Tensor) -> Tensor:
        """Marginals of :meth:`_inference`, with forbidden parts masked in values and gradients."""
        return marginals

    def _parts(self, structure: Tensor) -> Tuple[Tensor, ...]:
        """The parts that ``_potentials`` scores, 0 in padding, of a structure from ``argmax`` or ``sample``."""
        return (self._without_padding(structure.to(self.compute_dtype)),)

    @abstractmethod
    def _in_support(self, structure: Tensor) -> Tensor:
        """Whether a tensor, of whatever values, is a structure, ``[*sample, *batch]``."""

    def _num_values(self) -> int:
        """Number of values that an integer of :meth:`as_integers` can take."""
        raise NotImplementedError(f"{type(self).__name__} does not say what its structures are made of")

    def _restricted(self, allowed: Tensor) -> "StructuredDistribution":
        """This distribution without the structures whose integers ``[n]`` have values that are not ``allowed``
        ``[*sample, *batch, n, values]``. Scores are the same, and so is ``as_integers``."""
        raise NotImplementedError(f"{type(self).__name__} does not say how its structures are restricted")

    def _best_values(self, k: int) -> Tuple[Tensor, Tensor]:
        """The structures of :meth:`topk` as integers ``[k, *batch, …]``, and whether each exists, ``[k, *batch]``."""
        return k_best.best_values(self, k)

    def _structure_name(self) -> str:
        """The name of structures in messages, in the plural."""
        return f"structures of {type(self).__name__}"

    def _settings(self) -> Dict[str, object]:
        """Arguments other than tensors, for ``repr``."""
        return {}

    def _real_parts(self) -> Tensor:
        """Boolean mask of the entries of ``marginals`` that belong to real positions."""
        return self.position_mask

    def _exceeds_structures_of(self, other: "StructuredDistribution") -> Tensor:
        """Whether a structure possible here is outside the support of ``other``, an instance of the same class."""
        return torch.zeros((), dtype=torch.bool, device=self.device)

    def _quick_dtype(self) -> torch.dtype:
        """The dtype in which ``log_partition`` and ``marginals`` may be computed for speed."""
        return self.compute_dtype

    # How finite masks are shrunk, see :func:`.finite_masks.moderate`. By default no choice is declared.

    def _choices(self) -> Tuple[Tuple[int, ...], ...]:
        return tuple(() for _ in self._potentials())

    def _bounds(self) -> Optional[finite_masks.Bounds]:
        """By default the best scores of the choices; ``None`` without choices."""
        choices = self._choices()
        return finite_masks.bounds_of_choices(choices, self.batch_shape) if any(choices) else None

    def _most_parts(self) -> int:
        return self.max_length

    def _all_ordinary(self) -> bool:
        """Whether the given potentials are all of moderate size."""
        return finite_masks.none_extreme(tuple(self._given.values()))

    # Shared machinery

    @cached
    def position_mask(self) -> Tensor:
        """Boolean mask of real positions, ``[*batch, n]``."""
        return torch.arange(self.max_length, device=self.device) < self.lengths.unsqueeze(-1)

    @cached
    def _entropy(self) -> Tensor:
        return self._public(_not_negative(self._cross_entropy(self._expected_parts())))

    @cached
    def _inferred(self) -> Tuple[Tensor, Tensor]:
        return self._inference(self.compute_dtype)

    @cached
    def _quick(self) -> Tuple[Tensor, Tensor]:
        """log Z and marginals as the public properties return them, in the dtype of :meth:`_quick_dtype`."""
        dtype = self.compute_dtype if self._moderate is not None else self._quick_dtype()
        return self._inferred if dtype == self.compute_dtype else self._inference(dtype)

    def _quick_log_partition(self) -> Tensor:
        """log Z as :attr:`log_partition` returns it, in any dtype. A subclass may compute it without marginals."""
        return self._quick[0]

    def _log_normaliser(self) -> Tensor:
        """log Z of :attr:`_usable_potentials` in ``compute_dtype``."""
        return self._inferred[0]

    def _has_computed(self, name: str) -> bool:
        """Whether the ``cached`` quantity ``name`` would be read, not computed."""
        return _cache_key(name) in self._cache

    @cached
    def _is_ordinary(self) -> bool:
        """Whether all potentials are known to be of moderate size, or need not be."""
        return all(map(finite_masks.readable, self._given.values())) and self._all_ordinary()

    @cached
    def _moderate(self) -> Optional[finite_masks.Moderate]:
        """The potentials made moderate, if some are too large, NaN or +inf; otherwise ``None``."""
        if self._is_ordinary or not all(map(finite_masks.readable, self._given.values())):
            return None
        return finite_masks.moderate(self._potentials(), self._bounds(), self.batch_shape, self._most_parts())

    @cached
    def _usable_potentials(self) -> Tuple[Tensor, ...]:
        """Potentials of the same distribution, of a size that can be computed with."""
        return self._potentials() if self._moderate is None else self._moderate.potentials

    @cached
    def _best_parts(self) -> Tuple[Tensor, ...]:
        with torch.no_grad():
            return self._parts(self._argmax())

    def _total(self, log_partition: Tensor) -> Tensor:
        """log Z of the given potentials, from that of the usable ones."""
        if self._moderate is None:
            return log_partition
        # All structures with nonzero probability have lost the same.
        return log_partition - self._moderate.lost_by(self._best_parts)

    def _cross_entropy(self, parts: Tuple[Tensor, ...]) -> Tensor:
        """−log p of a structure given by its parts, ``[*sample, *batch]``, or its expectation for expected parts."""
        log_partition = self._log_normaliser()
        # If no structure is possible, the score or the check of the support gives −inf.
        possible = log_partition.masked_fill(log_partition == NEGATIVE_INFINITY, 0)
        if self._moderate is None or not self._moderate.bands:
            return possible - self._score(self._usable_potentials, parts)
        # The parts are compared with the best structure: masks and parts that both have leave no rounding errors.
        best, ordinary = self._best_parts, self._moderate.ordinary
        best_score = self._score(self._usable_potentials, best)
        # At that size, float64 resolves no structure but the best.
        unresolved = best_score.detach().abs() > finite_masks.LARGEST_RESOLVED
        surplus = (possible - best_score).masked_fill(unresolved, 0)
        differences = finite_masks.differences(ordinary, parts, best)
        return surplus - self._score(ordinary, differences) + self._moderate.beyond(parts, best)

    def _surprisal(self, parts: Tensor) -> Tensor:
        """−log p of any tensor, ``[*sample, *batch]`` in ``compute_dtype``; +inf if it is no structure."""
        # Values other than 0 and 1 would reach the gradient in spite of the mask.
        surprisal = _not_negative(self._cross_entropy(self._parts(parts == 1)))
        return surprisal.masked_fill(~self._in_support(parts), float("inf"))

    def _log_prob(self, parts: Tensor) -> Tensor:
        """``log_prob`` of any tensor; −inf if it is no structure."""
        self._check_unchanged()
        with self._full_precision():
            return self._public(0 - self._surprisal(parts))

    def _log_prob_of_integers(self, name: str, integers: Tensor, complete: Optional[bool] = None) -> Tensor:
        """log p of integers ``[*sample, *batch, n]`` or broadcastable to it, in which −1 is unknown and summed out;
        −inf if no structure agrees with them. ``complete`` says whether none is unknown; ``None``: it is looked up."""
        integers = self._broadcast_integers(name, integers)
        known = (integers != NOTHING) & self.position_mask
        if complete is None:
            complete = has_values(known) and bool((known == self.position_mask).all())
        if complete:
            return self._log_prob(self.as_indicators(integers))
        values = torch.arange(self._num_values(), device=self.device)
        return self._log_prob_of_restricted(~known.unsqueeze(-1) | (integers.unsqueeze(-1) == values))

    def _log_prob_of_restricted(self, allowed: Tensor) -> Tensor:
        """log p of all structures that :meth:`_restricted` keeps, ``[*sample, *batch]``; −inf if there are none."""
        self._check_unchanged()
        with self._full_precision():
            restricted = self._restricted(allowed)
            agreeing, every = restricted._log_normaliser(), self._log_normaliser()
            impossible = agreeing == NEGATIVE_INFINITY
            agreeing = restricted._total(agreeing.masked_fill(impossible, 0))
            # log Z of an impossible item is −inf; 0 stands in for it, and the result is masked.
            less = self._total(every.masked_fill(every == NEGATIVE_INFINITY, 0)) - agreeing
            return self._public((0 - _not_negative(less)).masked_fill(impossible, NEGATIVE_INFINITY))

    def _broadcast_integers(self, name: str, integers: Tensor) -> Tensor:
        """Integers expanded to ``[*sample, *batch, n]``; ValueError if they do not broadcast to it."""
        expected = tuple(self.batch_shape) + (self.max_length,)
        try:
            if integers.shape[-1:] != expected[-1:]:
                raise RuntimeError
            return integers.expand(torch.broadcast_shapes(integers.shape, expected))
        except RuntimeError:
            raise ValueError(
                f"{name} has shape {tuple(integers.shape)}; it must be {expected}, with sample dimensions in front, or "
                "size 1 where it should be repeated"
            ) from None

    def _broadcast_parts(self, parts: Tensor) -> Tensor:
        if not isinstance(parts, Tensor):
            raise TypeError(f"parts is a {type(parts).__name__}; give a tensor of parts 0 and 1")
        expected, events = tuple(self.batch_shape + self.event_shape), len(self.event_shape)
        try:
            if parts.shape[max(parts.dim() - events, 0) :] != self.event_shape:
                raise RuntimeError
            return parts.expand(torch.broadcast_shapes(parts.shape, expected))
        except RuntimeError:
            raise ValueError(
                f"parts has shape {tuple(parts.shape)}; its last dimensions must be {expected}, or broadcast to that"
            ) from None

    def _without_padding(self, tensor: Tensor, value: float = 0) -> Tensor:
        """``tensor`` ``[*sample, *batch, n]`` with ``value`` in padding."""
        return tensor.masked_fill(~self.position_mask, value) if self._has_padding else tensor

    def _score(self, potentials: Tuple[Tensor, ...], parts: Tuple[Tensor, ...]) -> Tensor:
        """⟨potentials, parts⟩ with 0 · (−inf) = 0, ``[*sample, *batch]``."""
        score = torch.zeros((), dtype=self.compute_dtype, device=self.device)
        for potential, part in zip(potentials, parts):
            events = tuple(range(len(self.batch_shape) - potential.dim(), 0))
            if finite_masks.readable(potential) and finite_masks.all_ordinary((potential,)):
                score = score + (potential * part).sum(events)
                continue
            forbidden = potential == NEGATIVE_INFINITY
            finite = (potential.masked_fill(forbidden, 0) * part).sum(events)
            broken = (forbidden & (part != 0)).flatten(events[0]).any(-1)
            score = score + finite.masked_fill(broken, NEGATIVE_INFINITY)
        return score

    def _public(self, result: Tensor) -> Tensor:
        """A result ``[*sample, *batch]`` in the dtype of the potentials, NaN in broken items."""
        return self._mark_broken(result.to(self.dtype))

    def _public_parts(self, result: Tensor) -> Tensor:
        """:meth:`_public` for a result ``[*sample, *batch, …]`` in the shape of ``marginals``, except padding."""
        result = result.to(self.dtype)
        return result if self._moderate is None else self._mark_broken(result, self._real_parts())

    def _mark_broken(self, result: Tensor, real: Optional[Tensor] = None) -> Tensor:
        if self._moderate is None:
            return result
        broken = self._moderate.broken
        if real is not None:
            broken = broken[(...,) + (None,) * (real.dim() - broken.dim())] & real
        # A product with NaN makes the gradient NaN too, so that checks of gradients detect it.
        return result * torch.ones_like(broken, dtype=result.dtype).masked_fill(broken, float("nan"))

    def _check_unchanged(self) -> None:
        """Check that no potential was changed in place since a quantity was computed.

        Raises:
            RuntimeError: one was; the message names it.
        """
        # Tensors of inference mode have no version counter.
        if is_compiling():
            return
        versions = {name: t._version for name, t in self._given.items() if not t.is_inference()}
        if self._versions is None:
            self._versions = versions
        changed = [name for name, version in versions.items() if version != self._versions[name]]
        if changed:
            raise RuntimeError(
                f"{' and '.join(changed)} changed in place after something was computed of this "
                f"{type(self).__name__}, which would mix old values with new ones; make a new one of the changed "
                "tensors, or give it a copy (.clone()) of what is to be changed"
            )

    @contextmanager
    def _full_precision(self) -> Iterator[None]:
        # Autocast does not support the device meta, which computes nothing.
        with nullcontext() if self.device.type == "meta" else torch.autocast(self.device.type, enabled=False):
            yield

    def _compare(self, other: "StructuredDistribution", quantity: Callable[[Tuple[Tensor, ...]], Tensor]) -> Tensor:
        """A non-negative quantity of the expected parts, +inf where ``other`` forbids any of them."""
        self._check_comparable(other)
        self._check_unchanged()
        other._check_unchanged()
        with self._full_precision():
            expected = self._expected_parts()
            mine, theirs = self._log_normaliser(), other._log_normaliser()
            value = _not_negative(quantity(expected))
            # If no structure is possible on one side, value is ∞ − ∞. An item impossible under self has divergence 0.
            beyond = (theirs == NEGATIVE_INFINITY) | self._exceeds_structures_of(other)
            value = value.masked_fill(beyond, float("inf")).masked_fill(mine == NEGATIVE_INFINITY, 0)
            return other._mark_broken(self._public(value))

    def _check_comparable(self, other: "StructuredDistribution") -> None:
        if type(other) is not type(self):
            raise TypeError(f"other is a {type(other).__name__}; it must be a {type(self).__name__}")
        mine, theirs = (self.batch_shape, self.max_length), (other.batch_shape, other.max_length)
        if mine != theirs:
            raise ValueError(
                f"other has batch shape {tuple(theirs[0])} and {theirs[1]} positions; "
                f"they must be {tuple(mine[0])} and {mine[1]}"
            )
        compared = self.device.type == "cpu" and has_values(self.lengths, other.lengths)
        if compared and not torch.equal(self.lengths, other.lengths):
            raise ValueError(f"other has lengths {other.lengths.tolist()}; they must be {self.lengths.tolist()}")


@register_kl(StructuredDistribution, StructuredDistribution)
def _kl(p: StructuredDistribution, q: StructuredDistribution) -> Tensor:
    return p.kl(q)


def log_prob_of_marks(distribution: StructuredDistribution, alignment: Tensor) -> Tensor:
    """``alignment_log_prob`` of a distribution whose structures are 0/1 marks of positions."""
    marks = distribution._without_padding(alignment) > 0
    return distribution._log_prob(distribution._broadcast_parts(marks)).masked_fill(~marks.any(-1), 0)


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


def _narrow_dtype(*potentials: Tensor) -> torch.dtype:
    # Half precision is too coarse for log Z: its 11 bits leave steps of 0.06 at a value of 100.
    wide = any(potential.dtype == torch.float64 for potential in potentials)
    return torch.float64 if wide else torch.float32


def _not_negative(value: Tensor) -> Tensor:
    """Clamp negative rounding errors to 0 without changing the gradient."""
    return value - value.detach().clamp(max=0)


def _broadcast_lengths(
    lengths: Optional[Tensor], batch_shape: torch.Size, max_length: int, device: torch.device
) -> Tensor:
    if lengths is None:
        return torch.full(batch_shape, max_length, dtype=torch.long, device=device)
    if not isinstance(lengths, Tensor):
        raise TypeError(f"lengths is a {type(lengths).__name__}; give an integer tensor, for example torch.tensor(...)")
    if lengths.is_floating_point() or lengths.is_complex() or lengths.dtype == torch.bool:
        raise TypeError(f"lengths has dtype {lengths.dtype}; give integers, for example with .long()")
    checked = has_values(lengths) and (lengths.device.type == "cpu" or os.environ.get(CHECK) == "1")
    if checked and lengths.numel() > 0:
        least, most = lengths.min().item(), lengths.max().item()
        if least < 0 or most > max_length:
            raise ValueError(f"lengths has values from {least} to {most}; they must lie between 0 and {max_length}")
    if not checked:
        lengths = lengths.long().clamp(0, max_length)
    try:
        return lengths.to(device, torch.long).expand(batch_shape)
    except RuntimeError:
        raise ValueError(
            f"lengths has shape {tuple(lengths.shape)}, which does not broadcast to the batch shape "
            f"{tuple(batch_shape)}; add dimensions of size 1 where it should be repeated"
        ) from None
