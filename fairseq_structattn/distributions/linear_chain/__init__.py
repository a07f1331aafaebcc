"""Binary linear chain: segmentation attention."""

from typing import Dict, Optional, Tuple, Type

import torch
from torch import Tensor

from ..backend import current_backend
from ..registry import register_distribution
from ..semirings import LogSemiring, MaxSemiring, SamplingSemiring, Semiring
from ..structured import StructuredDistribution, cached, split_positions
from . import log_odds, reference


@register_distribution("linear-chain")
class LinearChain(StructuredDistribution):
    """Positions are selected or not, and neighbours influence each other: a conditional random field with two states.

    p(z) ∝ exp(Σ_i unary_i z_i + Σ_i pairwise_i[z_i, z_{i+1}]) over z in {0, 1}ⁿ. Kim et al., "Structured Attention
    Networks" (ICLR 2017), sections 3.1 and 4.2 (segmentation attention). Each unary score counts once, as in the
    authors' code; the formula of section 4.2, read literally, would count those of inner positions twice.

    Members beyond the contract of :class:`StructuredDistribution`: ``edge_marginals``. ``marginals`` is
    ``[*batch, n]``, p(z_i = 1). ``argmax``, samples and what ``log_prob`` takes are states ``[*batch, n]``, 0 or 1.

    Marginals, edge marginals and log Z can be differentiated once; a second time under
    ``use_backend("reference")``. Pairwise scores of −inf, or so large that they stand for it, take the reference
    implementation by themselves, at its speed. To find out, their values are read: on an accelerator, one short wait.

    Args:
        unary: ``[*batch, n]``, score of state 1; state 0 scores 0.
        pairwise: ``[2, 2]``, shared by all edges, or ``[…, n-1, 2, 2]``, one table per edge, whose leading dimensions
            broadcast to ``batch``. ``pairwise[..., a, b]`` is the score of z_i = a and z_{i+1} = b.
        lengths: integers 0..n, broadcastable against ``[*batch]``; ``None`` (default): no padding.

    Raises:
        TypeError: potentials that are not floating point, lengths that are not integers.
        ValueError: shapes that do not fit, lengths out of range.
    """

    def __init__(self, unary: Tensor, pairwise: Tensor, lengths: Optional[Tensor] = None) -> None:
        batch_shape, max_length = split_positions("unary", unary)
        super().__init__(batch_shape, max_length, lengths, unary=unary, pairwise=pairwise)
        _check_pairwise(pairwise, batch_shape, max_length)
        self._unary, self._pairwise = unary, pairwise

    @classmethod
    def parameter_shapes(cls) -> Dict[str, Tuple[int, ...]]:
        """One table ``pairwise`` ``(2, 2)``, shared by all positions."""
        return {"pairwise": (2, 2)}

    @property
    def support_size(self) -> Tensor:
        """2 to the length, ``[*batch]`` in float64."""
        return torch.exp2(self.lengths.double())

    @cached
    def edge_marginals(self) -> Tensor:
        """p(z_i = a, z_{i+1} = b), ``[*batch, n-1, 2, 2]``; exactly 0 on edges that touch padding."""
        return self._public(self._inferred_edges)

    def _inference(self) -> Tuple[Tensor, Tensor]:
        log_partition, marginals, _ = self._expectations(with_edges=False)
        return log_partition, marginals

    @cached
    def _inferred_edges(self) -> Tensor:
        return self._expectations(with_edges=True)[2]

    def _expectations(self, with_edges: bool) -> Tuple[Tensor, Tensor, Optional[Tensor]]:
        if current_backend() == "reference" or self.max_length == 0 or not log_odds.supports(self._masked_pairwise):
            log_partition, marginals, edges = self._reference(self._masked_unary, self._masked_pairwise, self.lengths)
            # Zero in padding already; this stops an upstream gradient that is not finite there.
            return log_partition, self._without_padding(marginals), self._mask_edges(edges)
        mask = self.position_mask if self._has_padding else None
        return log_odds.expectations(self._unary.to(self.compute_dtype), self._masked_pairwise, mask, with_edges)

    def _potentials(self) -> Tuple[Tensor, ...]:
        edges = (max(self.max_length - 1, 0), 2, 2)
        return self._masked_unary, self._masked_pairwise.expand(self.batch_shape + edges)

    def _expected_parts(self) -> Tuple[Tensor, ...]:
        return self._inferred[1], self._inferred_edges

    def _parts(self, structure: Tensor) -> Tuple[Tensor, ...]:
        ones = self._without_padding(structure.to(self.compute_dtype))
        states = torch.stack((1 - ones, ones), -1)
        edges = states[..., :-1, :, None] * states[..., 1:, None, :]
        return ones, self._mask_edges(edges)

    def _argmax(self) -> Tensor:
        with torch.no_grad():
            return self._reference(self._masked_unary, self._masked_pairwise, self.lengths, MaxSemiring)[1]

    def _sample(self, sample_shape: torch.Size) -> Tensor:
        shape = sample_shape + self.batch_shape
        unary = self._masked_unary.expand(shape + (self.max_length,))
        return self._reference(unary, self._masked_pairwise, self.lengths.expand(shape), SamplingSemiring)[1]

    @staticmethod
    def _reference(
        unary: Tensor, pairwise: Tensor, lengths: Tensor, semiring: Type[Semiring] = LogSemiring
    ) -> Tuple[Tensor, Tensor, Tensor]:
        states = torch.stack((torch.zeros_like(unary), unary), -1)
        value, states, edges = reference.expectations(states, pairwise, lengths, semiring)
        return value, states[..., 1], edges

    # Potentials in the dtype of the computation, 0 in padding

    @cached
    def _masked_unary(self) -> Tensor:
        return self._without_padding(self._unary.to(self.compute_dtype))

    @cached
    def _masked_pairwise(self) -> Tensor:
        pairwise = self._pairwise.to(self.compute_dtype)
        return pairwise if pairwise.dim() == 2 else self._mask_edges(pairwise)

    def _mask_edges(self, per_edge: Tensor) -> Tensor:
        if not self._has_padding:
            return per_edge
        return per_edge.masked_fill(~self.position_mask[..., 1:, None, None], 0)


def _check_pairwise(pairwise: Tensor, batch_shape: torch.Size, n: int) -> None:
    edges = max(n - 1, 0)
    shape = tuple(pairwise.shape)
    if shape == (2, 2):
        return
    fits = len(shape) >= 3 and shape[-3:] == (edges, 2, 2)
    try:
        fits = fits and torch.broadcast_shapes(shape[:-3], batch_shape) == batch_shape
    except RuntimeError:
        fits = False
    if not fits:
        raise ValueError(
            f"pairwise has shape {shape}; it must be (2, 2) or (…, {edges}, 2, 2) with leading dimensions that "
            f"broadcast to {tuple(batch_shape)}"
        )
