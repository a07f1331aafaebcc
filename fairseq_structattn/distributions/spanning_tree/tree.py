"""Non-projective dependency trees."""

import torch
from torch import Tensor

from ..backend import kind_of_implementation
from ..registry import register_distribution
from ..structured import cached
from ..trees import DependencyTree


@register_distribution("spanning-tree")
class SpanningTree(DependencyTree):
    """Non-projective dependency trees, whose arcs may cross: all spanning trees of the words, directed from the root.

    p(z) ∝ exp(Σ of ``arc_scores[..., h, m]`` over the arcs of z, from head h to word m + 1). Words are numbered from 1,
    head 0 is the root. The partition function is a determinant and the marginals are its gradient, in O(n³):
    Matrix-Tree theorem (Koo et al., EMNLP 2007; Smith & Smith, EMNLP 2007; McDonald & Satta, IWPT 2007).

    The subtractions of an LU decomposition would lose all digits once scores differ by some tens of nats, as trained
    scores do. So words are eliminated one by one, as Grassmann, Taksar & Heyman (Operations Research 1985) do with the
    states of a Markov chain. With weights w = exp(score), dependents of the word v are attached to v's head instead:

        d_v = Σ_h w(h→v),   w(h→m) ← w(h→m) + w(h→v) w(v→m) / d_v  for h ≠ m,   log Z = Σ_v log d_v.

    This is Gaussian elimination without its diagonal, and all terms are positive. With a single root, the root counts
    as a head in the last d_v only. Scores may have any size and any range.

    Members are those of :class:`StructuredDistribution`. ``marginals``, ``argmax``, samples and what ``log_prob`` takes
    are arcs ``[*batch, n+1, n]``. ``argmax`` uses the algorithm of Chu & Liu and Edmonds, which is exact for a single
    root too. Samples are exact and take the same time whatever the scores, up to differences of several hundreds: they
    reverse the elimination at random (:mod:`.reverse_elimination`). The best tree is found on the CPU, wherever the
    scores are.

    Log Z and marginals can be differentiated any number of times.

    Args:
        arc_scores, lengths, roots, validate_args: see :class:`DependencyTree`.

    Raises:
        TypeError, ValueError: see :class:`DependencyTree`.

    Example:
        >>> trees = SpanningTree(torch.zeros(4, 3), roots="single")
        >>> trees.support_size
        tensor(9., dtype=torch.float64)
        >>> trees.marginals[0]
        tensor([0.3333, 0.3333, 0.3333])

        Arcs root → 2 → 1 and 2 → 3 are rewarded.

        >>> scores = torch.zeros(4, 3)
        >>> scores[0, 1] = scores[2, 0] = scores[2, 2] = 3.0
        >>> tree = SpanningTree(scores)
        >>> tree.as_integers(tree.argmax)
        tensor([2, 0, 2])
        >>> tree.log_prob(tree.argmax).exp()
        tensor(0.8249)
        >>> tree.log_prob_of_heads(torch.tensor([2, 0, -1])).exp()
        tensor(0.9070)
    """

    _package = __package__

    @property
    def support_size(self) -> Tensor:
        """Cayley's formula, ``[*batch]`` in float64: (n+1)ⁿ⁻¹ trees over n words, of which nⁿ⁻¹ have a single root."""
        n = self.lengths.double()
        if self.roots == "multi":
            return (n + 1) ** (n - 1)
        return (n.clamp(min=1) ** (n - 1)).masked_fill(n == 0, 0)

    def _quick_dtype(self) -> torch.dtype:
        # The kernels for the CPU compute in float64 whatever they read.
        return self._narrow_dtype if kind_of_implementation(self.device) == "cpu" else super()._quick_dtype()

    # On the CPU, log Z alone takes less time than log Z and marginals.

    @cached
    def _log_partition_alone(self) -> Tensor:
        return self._algorithms().log_partition(*self._problem(self._quick_dtype())).reshape(self.batch_shape)

    def _log_normaliser(self) -> Tensor:
        return self._log_partition_alone if self._can_spare("_inferred") else self._inferred[0]

    def _quick_log_partition(self) -> Tensor:
        return self._log_normaliser() if self._can_spare("_quick") else self._quick[0]

    def _can_spare(self, expectations: str) -> bool:
        return self.device.type == "cpu" and not self._has_computed(expectations)
