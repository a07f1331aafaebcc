"""What projective and non-projective dependency trees have in common."""

from types import ModuleType
from typing import Dict, Optional, Tuple

import torch
from torch import Tensor

from .arcs import ArcDistribution
from .backend import implementation, kind_of_implementation, prefers_float32
from .gumbel import RelaxedSample, gumbel_noise
from .semirings import NEGATIVE_INFINITY
from .structured import StructuredDistribution, cached

ROOTS = ("single", "multi")


class DependencyTree(ArcDistribution):
    """p(z) ∝ exp(Σ of the scores of the arcs of z) over dependency trees: each of n words has one head, another word or
    the root, and there is no cycle. A sentence of length 0 has one tree, the empty one, or none with
    ``roots="single"``.

    A subclass provides ``_package``, ``support_size`` and, unless any tree will do, ``_keeps_shape``.

    Args:
        arc_scores: ``[*batch, n+1, n]``, see :class:`ArcDistribution`; arcs from a word to itself are ignored.
        lengths: number of words, integers 0..n broadcastable against ``[*batch]``; ``None`` (default): no padding.
        roots: ``"multi"`` (default): any number of words are attached to the root; ``"single"``: exactly one is.
        validate_args: see :class:`StructuredDistribution`.

    Raises:
        TypeError: scores that are not floating point, lengths that are not integers.
        ValueError: shapes that do not fit, lengths out of range, an unknown ``roots``.
    """

    def __init__(
        self,
        arc_scores: Tensor,
        lengths: Optional[Tensor] = None,
        roots: str = "multi",
        validate_args: Optional[bool] = None,
    ) -> None:
        if roots not in ROOTS:
            raise ValueError(f"roots is {roots!r}; choose one of: {', '.join(ROOTS)}")
        self.roots = roots
        super().__init__(arc_scores, lengths, validate_args)

    needs_arcs = True
    has_rsample = True

    @classmethod
    def from_scores(  # type: ignore[override]
        cls, scores: Tensor, lengths: Optional[Tensor], arc_scores: Tensor, roots: str = "multi"
    ) -> "DependencyTree":
        """Trees whose arcs from head h score ``arc_scores[..., h, :]``, plus ``scores[..., h - 1]`` if h is a word.

        Args:
            scores: ``[*batch, n]``, how well each word matches a query.
            lengths: broadcastable against ``[*batch]``.
            arc_scores: ``[..., n+1, n]`` with leading dimensions that broadcast to ``batch``.
            roots: as for the class.
        """
        heads = torch.nn.functional.pad(scores, (1, 0)).unsqueeze(-1)
        return cls(arc_scores + heads, lengths, roots)

    # What a subclass provides

    _package: str
    """The name of the package with the implementations: modules that have, for scores ``[batch, n+1, n]`` that are −inf
    where there is no arc, lengths ``[batch]`` and the flag ``single_root``,

    * ``expectations(scores, lengths, single_root)``: log Z ``[batch]`` and marginals ``[batch, n+1, n]``;
    * ``argmax(scores, lengths, single_root)``: heads ``[batch, n]`` of a best tree;
    * ``sample(scores, lengths, single_root, count, generator)``: heads ``[count, batch, n]`` of samples.

    Heads are integers 0..n, and :data:`~.arcs.NO_HEAD` in padding and where no tree is possible.
    """

    def _keeps_shape(self, heads: Tensor) -> Tensor:
        """Whether trees belong to the class (are projective, say): heads ``[*sample, *batch, n]`` with 0 in padding."""
        return torch.ones((), dtype=torch.bool, device=self.device)

    # The contract

    def _inference(self, dtype: torch.dtype) -> Tuple[Tensor, Tensor]:
        if dtype == torch.float64 or kind_of_implementation(self.device) == "cpu":
            log_partition, marginals = self._algorithms().expectations(*self._problem(dtype))
        else:
            scores, *others = self._problem()
            # Subtract a constant for each word in float64, so that float32 loses no digits to it.
            best = scores.detach().amax(-2, keepdim=True)
            best = best.masked_fill(best == NEGATIVE_INFINITY, 0)
            log_partition, marginals = self._algorithms().expectations((scores - best).to(dtype), *others)
            log_partition = log_partition + best.sum((-2, -1))
        return log_partition.reshape(self.batch_shape), marginals.reshape(self.arc_scores.shape)

    def _clear(self, marginals: Tensor) -> Tensor:
        # The marginals are 0 there already. The mask keeps non-finite upstream gradients, such as those of a logarithm,
        # out of the backward pass.
        return marginals.masked_fill(self._no_arc, 0)

    @cached
    def _no_arc(self) -> Tensor:
        """Mask of arcs that do not exist or are forbidden, or one that broadcasts to it."""
        if self._forbids_nothing:
            return self._absent
        return self._usable_scores(self._narrow_dtype) == NEGATIVE_INFINITY

    def _argmax(self) -> Tensor:
        with torch.no_grad():
            heads = self._algorithms().argmax(*self._problem())
        return self._arcs_of(heads.reshape(self.batch_shape + (self.max_length,)))

    def _sample(self, sample_shape: torch.Size, generator: Optional[torch.Generator]) -> Tensor:
        heads = self._algorithms().sample(*self._problem(), sample_shape.numel(), generator=generator)
        return self._arcs_of(heads.reshape(sample_shape + self.batch_shape + (self.max_length,)))

    def _relaxed_sample(
        self, sample_shape: torch.Size, temperature: float, generator: Optional[torch.Generator]
    ) -> RelaxedSample:
        (scores,) = self._usable_potentials
        perturbed = scores + gumbel_noise(sample_shape + scores.shape, scores, generator)
        best = self._with_scores(perturbed.detach()).argmax
        return RelaxedSample(best, self._with_scores(perturbed / temperature).marginals)

    def _in_support(self, structure: Tensor) -> Tensor:
        words = self.position_mask
        # argmax would take NaN for the largest value.
        heads = (self._parts(structure)[0] == 1).to(self.compute_dtype).argmax(-2) * words
        allowed = super()._in_support(structure) & _reaches_root(heads) & self._keeps_shape(heads)
        if self.roots == "single":
            allowed = allowed & (((heads == 0) & words).sum(-1) == 1)
        return allowed

    def _exceeds_structures_of(self, other: StructuredDistribution) -> Tensor:
        limited = isinstance(other, DependencyTree) and other.roots == "single"
        if self.roots == "single" or not limited:
            return super()._exceeds_structures_of(other)
        # The tree with as many words on the root as this distribution allows.
        on_root = torch.arange(self.max_length + 1, device=self.device).unsqueeze(-1) == 0
        scores = self._masked_scores.detach()
        allowed = on_root.to(scores).expand_as(scores).masked_fill(scores == NEGATIVE_INFINITY, NEGATIVE_INFINITY)
        return self._with_scores(allowed).argmax[..., 0, :].sum(-1) != 1

    def _choices(self) -> Tuple[Tuple[int, ...], ...]:
        return ((-2,),)

    def _quick_dtype(self) -> torch.dtype:
        return self._narrow_dtype if prefers_float32(self.device) else self.compute_dtype

    # Shared machinery

    def _algorithms(self) -> ModuleType:
        return implementation(self._package, self.device)

    def _structure_name(self) -> str:
        roots = " with a single root" if self.roots == "single" else ""
        return f"dependency trees over {self.max_length} words{roots}"

    def _settings(self) -> Dict[str, object]:
        return {"roots": self.roots}

    def _usable_scores(self, dtype: torch.dtype) -> Tensor:
        """:attr:`_usable_potentials` in ``dtype``, or in one that is more precise or at hand."""
        plain = self._moderate is None and dtype == self._narrow_dtype
        return self._narrow_scores if plain else self._usable_potentials[0]

    def _problem(self, dtype: Optional[torch.dtype] = None) -> Tuple[Tensor, Tensor, bool]:
        scores = self._usable_potentials[0] if dtype is None else self._usable_scores(dtype)
        scores = scores.reshape(self.batch_shape.numel(), self.max_length + 1, self.max_length)
        return scores, self.lengths.reshape(-1), self.roots == "single"

    def _with_scores(self, arc_scores: Tensor) -> "DependencyTree":
        return type(self)(arc_scores, self.lengths, self.roots)


def _reaches_root(heads: Tensor) -> Tensor:
    """Whether following the heads ``[..., n]`` leads from every word to the root."""
    ancestors = torch.cat((heads.new_zeros(heads.shape[:-1] + (1,)), heads), -1)
    for _ in range(heads.shape[-1].bit_length()):
        ancestors = ancestors.gather(-1, ancestors)
    return (ancestors == 0).all(-1)
