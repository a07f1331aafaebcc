"""Projective dependency trees: syntactic attention."""

import functools
import math
import sys

import torch
from torch import Tensor

from ..registry import register_distribution
from ..trees import DependencyTree


@register_distribution("projective-tree")
class ProjectiveTree(DependencyTree):
    """A conditional random field over projective dependency trees: each word has a head, and arcs do not cross.

    p(z) ∝ exp(Σ of the scores of the arcs of z) over the trees whose arcs, drawn above the sentence with the root in
    front, do not cross. Kim et al., "Structured Attention Networks" (ICLR 2017), section 3.2 and figure 6 (syntactic
    attention, with ``roots="multi"``), by the algorithm of Eisner, "Three New Probabilistic Models for Dependency
    Parsing" (COLING 1996): O(n³) time and O(n²) memory in the number of words.

    ``arc_scores[..., h, m]`` is the score of the arc from head h to word m + 1, where words are numbered from 1 and
    head 0 is the root: n + 1 heads by n dependents. ``marginals``, ``argmax``, samples and what ``log_prob`` takes have
    the same shape. Arcs from a word to itself do not exist, and their scores are ignored. A sentence of length 0 has
    one tree, the empty one, or none with ``roots="single"``.

    Marginals and log Z can be differentiated any number of times.

    Args:
        arc_scores, lengths, roots, validate_args: see :class:`DependencyTree`.

    Raises:
        TypeError, ValueError: see :class:`DependencyTree`.

    Example:
        >>> trees = ProjectiveTree(torch.zeros(4, 3), roots="single")
        >>> trees.support_size
        tensor(7., dtype=torch.float64)
        >>> trees.marginals[0]
        tensor([0.4286, 0.1429, 0.4286])

        Arcs root → 2 → 1 and 2 → 3 are rewarded.

        >>> scores = torch.zeros(4, 3)
        >>> scores[0, 1] = scores[2, 0] = scores[2, 2] = 3.0
        >>> tree = ProjectiveTree(scores)
        >>> tree.as_integers(tree.argmax)
        tensor([2, 0, 2])
        >>> tree.log_prob(tree.argmax).exp()
        tensor(0.9027)
        >>> tree.log_prob_of_heads(torch.tensor([2, 0, -1])).exp()
        tensor(0.9477)
    """

    _package = __package__

    @property
    def support_size(self) -> Tensor:
        """Number of projective trees, ``[*batch]`` in float64. For n words it is C(3n, n) / (2n + 1) with any number of
        roots and C(3n − 2, n − 1) / n with a single root."""
        counts = [_count(n, self.roots == "single") for n in self.lengths.flatten().tolist()]
        return torch.tensor(counts, dtype=torch.double, device=self.device).reshape(self.batch_shape)

    def _structure_name(self) -> str:
        return f"projective {super()._structure_name()}"

    def _keeps_shape(self, heads: Tensor) -> Tensor:
        return _is_projective(heads)


@functools.lru_cache(maxsize=None)
def _count(n: int, single_root: bool) -> float:
    if single_root:
        count = math.comb(3 * n - 2, n - 1) // n if n > 0 else 0
    else:
        count = math.comb(3 * n, n) // (2 * n + 1)
    return float(count) if count.bit_length() <= sys.float_info.max_exp else math.inf


def _is_projective(heads: Tensor) -> Tensor:
    """Whether no two arcs of the trees ``[..., n]`` cross, ``[...]``."""
    words = torch.arange(1, heads.shape[-1] + 1, device=heads.device).expand_as(heads)
    first, last = torch.minimum(words, heads), torch.maximum(words, heads)
    # One arc begins strictly inside the other and ends strictly outside.
    begins_inside = (first.unsqueeze(-1) < first.unsqueeze(-2)) & (first.unsqueeze(-2) < last.unsqueeze(-1))
    crosses = begins_inside & (last.unsqueeze(-1) < last.unsqueeze(-2))
    return ~crosses.flatten(-2).any(-1)
