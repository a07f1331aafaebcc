"""Attention to exactly one contiguous span of the source: a distribution of one's own, and an architecture with it."""

from typing import Dict, Optional, Tuple

import torch
from fairseq.models import register_model_architecture
from torch import Tensor

import fairseq_structattn  # noqa: F401  (registers structattn_rnn and the criterion)
from fairseq_structattn.distributions import LinearChain, register_distribution
from fairseq_structattn.models.rnn_architectures import set_defaults

BEFORE, INSIDE, AFTER = range(3)
NEVER = float("-inf")


@register_distribution("one-span")
class OneSpan(LinearChain):
    """p(i..j) ∝ exp(scores_i + … + scores_j + stay · (j − i)) over the n(n+1)/2 spans of one or more positions.

    The distribution is a chain with the states before, inside and after the span, in this order, so log Z, marginals
    and their gradients, the best span, samples, entropy and log_prob are those of the chain. ``marginals``, ``argmax``
    and samples are ``[*batch, n, 3]``; their ``[..., INSIDE]`` is the span.

    Args:
        scores: ``[*batch, n]``
        stay: ``[1]``, the score of each further position of the span
        lengths: integers broadcastable against ``[*batch]``; ``None`` (default): no padding

    Raises:
        TypeError, ValueError: see :class:`LinearChain`
    """

    def __init__(self, scores: Tensor, stay: Tensor, lengths: Optional[Tensor] = None):
        outside = torch.zeros_like(scores)
        moves = scores.new_tensor([[0, 0, NEVER], [NEVER, 0, 0], [NEVER, NEVER, 0]])
        staying = torch.zeros_like(moves)
        staying[INSIDE, INSIDE] = 1
        super().__init__(
            unary=torch.stack((outside, scores, outside), -1),
            pairwise=moves + stay * staying,
            lengths=lengths,
            start=scores.new_tensor([0, 0, NEVER]),
            end=scores.new_tensor([NEVER, 0, 0]),
            num_states=3,
        )

    @classmethod
    def parameter_shapes(cls) -> Dict[str, Tuple[int, ...]]:
        return {"stay": (1,)}

    @property
    def position_marginals(self) -> Tensor:
        return self.marginals[..., INSIDE]

    @property
    def support_size(self) -> Tensor:
        lengths = self.lengths.double()
        return lengths * (lengths + 1) / 2

    def _inference(self, dtype: torch.dtype) -> Tuple[Tensor, Tensor]:
        log_partition, marginals = super()._inference(dtype)
        return log_partition.masked_fill(self.lengths == 0, NEVER), marginals  # nothing has no span

    def _in_support(self, structure: Tensor) -> Tensor:
        return super()._in_support(structure) & (self.lengths > 0)


@register_model_architecture("structattn_rnn", "one_span_rnn")
def one_span_rnn(options) -> None:
    """``structattn_rnn`` attending to one span, each position weighted by the chance that it lies in it."""
    set_defaults(options, attention_distribution="one-span", attention_normalize="sum")
