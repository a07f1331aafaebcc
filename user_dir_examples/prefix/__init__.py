"""Attention to a prefix of the source: a distribution of one's own, and an architecture with it."""

from typing import Dict, Optional, Tuple

from fairseq.models import register_model_architecture
from torch import Tensor

import fairseq_structattn  # noqa: F401  (registers structattn_rnn and the criterion)
from fairseq_structattn.distributions import LinearChain, register_distribution
from fairseq_structattn.models.rnn_architectures import set_defaults

NEVER = float("-inf")


@register_distribution("prefix")
class Prefix(LinearChain):
    """p(k) ∝ exp(scores_1 + … + scores_k + stay · (k − 1)) over the n + 1 prefixes of k = 0..n positions; the empty one
    scores 0.

    The distribution is a binary chain in which no position is selected after one that is not, so log Z, marginals and
    their gradients, the best prefix, samples, entropy and log_prob are those of the chain.

    Args:
        scores: ``[*batch, n]``
        stay: ``[1]``, the score of each position beyond the first
        lengths: integers broadcastable against ``[*batch]``; ``None`` (default): no padding

    Raises:
        TypeError, ValueError: see :class:`LinearChain`
    """

    def __init__(self, scores: Tensor, stay: Tensor, lengths: Optional[Tensor] = None):
        moves = scores.new_tensor([[0, NEVER], [0, 0]])
        staying = scores.new_tensor([[0, 0], [0, 1]])
        super().__init__(unary=scores, pairwise=moves + stay * staying, lengths=lengths)

    @classmethod
    def parameter_shapes(cls) -> Dict[str, Tuple[int, ...]]:
        return {"stay": (1,)}

    @property
    def support_size(self) -> Tensor:
        return self.lengths.double() + 1

    def _in_support(self, structure: Tensor) -> Tensor:
        marks = self._without_padding(structure)
        return super()._in_support(structure) & (marks[..., 1:] <= marks[..., :-1]).all(-1)


@register_model_architecture("structattn_rnn", "prefix_rnn")
def prefix_rnn(options) -> None:
    """``structattn_rnn`` attending to a prefix, each position weighted by the chance that it lies in it."""
    set_defaults(options, attention_distribution="prefix", attention_normalize="sum")
