"""Source attention over constituents: every source word attends to the spans around it in a latent binary tree."""

from typing import Dict, List, NamedTuple, Optional, Type

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_structattn.distributions import BinaryTree, distribution_names, get_distribution
from fairseq_structattn.modules.estimators import Estimator


def span_attention_names() -> List[str]:
    """Every registered distribution over binary trees."""
    return list(_over_spans())


def _over_spans() -> Dict[str, Type[BinaryTree]]:
    classes = {name: get_distribution(name) for name in distribution_names()}
    return {name: cls for name, cls in classes.items() if issubclass(cls, BinaryTree)}


class ExpectedSpans(NamedTuple):
    """The result of :class:`SpanAttention` for a batch of sentences, right-padded, ``</s>`` last.

    Attributes:
        distribution: distribution over the trees of the n words of each sentence, without ``</s>``: ``marginals`` and
            ``argmax`` are ``[batch, src_len-1, src_len-1]``, with ``[:, i, j]`` for the span from word i to word j
        vectors: what the spans around each word hold, ``[batch, src_len, state_dim]``; 0 for ``</s>``, on padding, and
            for the only word of a sentence
    """

    distribution: BinaryTree
    vectors: Tensor


class SpanAttention(nn.Module):
    """The expected mean of the states of a span that contains the word, under a distribution over binary trees.

    A word's vector is ``Σ μ(i, j) · mean(x_i … x_j) / Σ μ(i, j)``, where both sums run over the spans of two words or
    more that contain the word, and μ are their marginals: each constituent that the word is in has the same weight, so
    that near words, which share more and smaller constituents with it, count most. A span is all that a word can
    attend to in a tree without heads, and the spans around a word, unlike those that begin or end with it, exist for
    every word and on both of its sides.

    The score of a span is that of an arc from its first to its last word.

    Args:
        scorer: module that scores pairs of words, such as :class:`~.source_attention.ArcScorer`
        distribution: one of :func:`span_attention_names`
        estimator: whether vectors are expected or those of one structure (default: expected)

    Raises:
        ValueError: an unknown distribution, or an estimator that it does not have
    """

    def __init__(self, scorer: nn.Module, distribution: str, estimator: Optional[Estimator] = None):
        super().__init__()
        self.estimator = estimator or Estimator()
        known = _over_spans()
        if distribution not in known:
            raise ValueError(f"unknown distribution over spans {distribution!r}; choose one of: {', '.join(known)}")
        self.estimator.check(distribution, known[distribution])
        self.scorer = scorer
        self.distribution = known[distribution]

    def forward(self, embedded: Tensor, states: Tensor, lengths: Tensor) -> ExpectedSpans:
        """Parses a batch of sentences, right-padded, the root symbol first and ``</s>`` last.

        Args:
            embedded: ``[1 + src_len, batch, embed_dim]``
            states: vectors whose expectation is taken, ``[batch, 1 + src_len, state_dim]``; that of the root is not
                used
            lengths: ``[batch]``, ``</s>`` included, the root not
        """
        words = (lengths - 1).clamp(min=0)
        scores = self.scorer(embedded[:-1], words)[:, 1:]
        # Below float32 inference is not accurate.
        distribution = self.distribution(scores if scores.dtype == torch.float64 else scores.float(), words)
        parts = self.estimator.parts(distribution, self.training)
        shares = distribution.word_shares(parts).to(states.dtype)
        return ExpectedSpans(distribution, F.pad(torch.bmm(shares, states[:, 1:-1]), (0, 0, 0, 1)))
