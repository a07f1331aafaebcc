"""What projective and non-projective dependency trees have in common."""

from abc import abstractmethod
from types import ModuleType
from typing import Optional, Tuple

import torch
from torch import Tensor

from .semirings import NEGATIVE_INFINITY
from .structured import StructuredDistribution, cached

ROOTS = ("single", "multi")
NO_HEAD = -1


class DependencyTree(StructuredDistribution):
    """p(z) ∝ exp(Σ of the scores of the arcs of z) over dependency trees: each of n words has one head, another word or
    the root, and nothing goes round in a circle.

    ``arc_scores[..., h, m]`` is the score of the arc from head h to word m + 1, where words are numbered from 1 and
    head 0 is the root: n + 1 heads by n dependents. ``marginals``, ``argmax``, samples and what ``log_prob`` takes have
    the same shape. Arcs from a word to itself are no parts; what stands in their place is not looked at. A sentence of
    length 0 has one tree, the empty one, and none with ``roots="single"``.

    A subclass provides ``_algorithms``, ``_keeps_shape`` and ``support_size``.

    Args:
        arc_scores: ``[*batch, n+1, n]``.
        lengths: number of words, integers 0..n broadcastable against ``[*batch]``; ``None`` (default): no padding.
        roots: ``"multi"`` (default): any number of words hang on the root; ``"single"``: exactly one does.

    Raises:
        TypeError: scores that are not floating point, lengths that are not integers.
        ValueError: shapes that do not fit, lengths out of range, an unknown ``roots``.
    """

    def __init__(self, arc_scores: Tensor, lengths: Optional[Tensor] = None, roots: str = "multi") -> None:
        batch_shape, max_length = _split_arcs(arc_scores)
        super().__init__(batch_shape, max_length, lengths, arc_scores=arc_scores)
        if roots not in ROOTS:
            raise ValueError(f"roots is {roots!r}; choose one of: {', '.join(ROOTS)}")
        self.roots = roots
        self._arc_scores = arc_scores

    # What a subclass provides

    @abstractmethod
    def _algorithms(self) -> ModuleType:
        """The implementation that the backend in force asks for: a module with, for scores ``[batch, n+1, n]`` that are
        −inf where there is no arc, lengths ``[batch]`` and the flag ``single_root``,

        * ``expectations(scores, lengths, single_root)``: log Z ``[batch]`` and marginals ``[batch, n+1, n]``;
        * ``argmax(scores, lengths, single_root)``: heads ``[batch, n]`` of a best tree;
        * ``sample(scores, lengths, single_root, count)``: heads ``[count, batch, n]`` of samples.

        Heads are integers 0..n, and :data:`NO_HEAD` in padding and where no tree is possible.
        """

    def _keeps_shape(self, heads: Tensor) -> Tensor:
        """Whether trees, given as heads ``[*sample, *batch, n]`` with 0 in padding, have the shape asked for."""
        return torch.ones((), dtype=torch.bool, device=self.device)

    # The contract

    def _inference(self) -> Tuple[Tensor, Tensor]:
        log_partition, marginals = self._algorithms().expectations(*self._problem())
        # Zero already; this keeps what an upstream gradient may hold there, as that of a logarithm does, out of the
        # backward pass.
        no_arc = self._masked_scores == NEGATIVE_INFINITY
        return log_partition.reshape(self.batch_shape), marginals.reshape(no_arc.shape).masked_fill(no_arc, 0)

    def _potentials(self) -> Tuple[Tensor, ...]:
        return (self._masked_scores,)

    def _argmax(self) -> Tensor:
        with torch.no_grad():
            heads = self._algorithms().argmax(*self._problem())
        return self._arcs(heads.reshape(self.batch_shape + (self.max_length,)))

    def _sample(self, sample_shape: torch.Size) -> Tensor:
        heads = self._algorithms().sample(*self._problem(), sample_shape.numel())
        return self._arcs(heads.reshape(sample_shape + self.batch_shape + (self.max_length,)))

    def _parts(self, structure: Tensor) -> Tuple[Tensor, ...]:
        return (structure.to(self.compute_dtype).masked_fill(~self.arc_mask, 0),)

    def _in_support(self, structure: Tensor) -> Tensor:
        (arcs,) = self._parts(structure)
        words = self.position_mask
        heads = arcs.argmax(-2) * words
        allowed = (((arcs.sum(-2) == 1) & ((arcs != 0).sum(-2) == 1)) | ~words).all(-1)
        allowed = allowed & _reaches_root(heads) & self._keeps_shape(heads)
        if self.roots == "single":
            allowed = allowed & (((heads == 0) & words).sum(-1) == 1)
        return allowed

    # Shared machinery

    @cached
    def arc_mask(self) -> Tensor:
        """Which arcs there are, ``[*batch, n+1, n]``, boolean: both ends are real, and not the same word."""
        words = self.position_mask
        heads = torch.cat((words.new_ones(self.batch_shape + (1,)), words), -1)
        different = ~torch.eye(self.max_length + 1, dtype=torch.bool, device=self.device)[:, 1:]
        return heads.unsqueeze(-1) & words.unsqueeze(-2) & different

    @cached
    def _masked_scores(self) -> Tensor:
        return self._arc_scores.to(self.compute_dtype).masked_fill(~self.arc_mask, NEGATIVE_INFINITY)

    def _problem(self) -> Tuple[Tensor, Tensor, bool]:
        scores = self._masked_scores.reshape(self.batch_shape.numel(), self.max_length + 1, self.max_length)
        return scores, self.lengths.reshape(-1), self.roots == "single"

    def _arcs(self, heads: Tensor) -> Tensor:
        """Parts 0 and 1, ``[*sample, *batch, n+1, n]``, of trees given as heads."""
        numbers = torch.arange(self.max_length + 1, device=self.device).unsqueeze(-1)
        return (heads.unsqueeze(-2) == numbers).to(self.compute_dtype)


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


def _reaches_root(heads: Tensor) -> Tensor:
    """Whether following the heads ``[..., n]`` leads from every word to the root."""
    ancestors = torch.cat((heads.new_zeros(heads.shape[:-1] + (1,)), heads), -1)
    for _ in range(heads.shape[-1].bit_length()):
        ancestors = ancestors.gather(-1, ancestors)
    return (ancestors == 0).all(-1)
