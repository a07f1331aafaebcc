"""Attention as the expectation of a latent variable: score → distribution → expectation."""

from typing import Callable, NamedTuple, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_structattn.distributions import StructuredDistribution, get_distribution
from fairseq_structattn.modules.repeated_product import RepeatedProduct
from fairseq_structattn.modules.scores import build_score

NORMALIZATIONS = ("none", "sum")

# Queries [batch, tgt_len, query_dim] → contexts [batch, tgt_len, source_dim] and weights [batch, tgt_len, src_len].
Attend = Callable[[Tensor], Tuple[Tensor, Tensor]]


class AttentionSource(NamedTuple):
    """What attention needs to know of a batch of source sentences; computed once, valid at every target step.

    Attributes:
        keys: ``[batch, src_len, key_dim]``
        values: ``[batch, src_len, source_dim]``
        lengths: ``[batch]``, padding is on the right
        arcs: where attention is over trees, scores of arcs between the source words, ``</s>`` left out:
            ``[batch, src_len, src_len-1]``, one row per head, the root first
    """

    keys: Tensor
    values: Tensor
    lengths: Tensor
    arcs: Optional[Tensor] = None


class StructuredAttention(nn.Module):
    """Context vectors ``c = Σᵢ wᵢ hᵢ`` whose weights are marginals of a distribution over the source positions.

    With ``softmax`` the latent variable is one position, which is classical attention. With ``linear-chain`` it is a
    0/1 mark for each position in which neighbours influence each other, so that contiguous segments can be selected
    (Kim et al. 2017, section 3.1). With ``projective-tree`` and ``spanning-tree`` it is a dependency tree over the
    source words: an arc scores what its two words say and how well the head matches the query, and a word weighs as
    much as it is expected to have dependents.

    Args:
        query_dim: size of a query
        source_dim: size of a source state
        score: a name of :func:`~fairseq_structattn.modules.scores.score_names`
        distribution: a name of :func:`~fairseq_structattn.distributions.distribution_names`
        hidden_dim: size of the hidden layer of additive scores (default: `query_dim`)
        scale: λ, a factor on the weights
        normalize: ``"none"`` uses λμᵢ, ``"sum"`` uses λμᵢ/Σμ as Kim et al. 2017 do for the chain with λ = 2
            (section 4.2)
        roots: for trees, how many words may hang on the root: ``"multi"`` or ``"single"``

    Attributes:
        tables: what the distribution has learned beside the scores, such as the pairwise potentials of the chain

    Raises:
        ValueError: an unknown name, or sizes that the score cannot compare
    """

    def __init__(
        self,
        query_dim: int,
        source_dim: int,
        score: str = "general",
        distribution: str = "softmax",
        hidden_dim: int = 0,
        scale: float = 1.0,
        normalize: str = "none",
        roots: str = "multi",
    ):
        super().__init__()
        if normalize not in NORMALIZATIONS:
            raise ValueError(f"--attention-normalize {normalize}: not known, choose from {', '.join(NORMALIZATIONS)}")
        self.score = build_score(score, query_dim, source_dim, hidden_dim or query_dim)
        self.distribution = get_distribution(distribution)
        self.scale = scale
        self.normalize = normalize
        self.roots = roots
        self.tables = nn.ParameterDict(
            {
                name: nn.Parameter(torch.empty(shape).uniform_(-0.1, 0.1))
                for name, shape in self.distribution.parameter_shapes().items()
            }
        )

    def prepare(self, states: Tensor, lengths: Tensor, arcs: Optional[Tensor] = None) -> AttentionSource:
        """Does once what depends on the source only.

        Args:
            states: source states ``[batch, src_len, source_dim]``, right-padded
            lengths: ``[batch]``
            arcs: see :class:`AttentionSource`
        """
        return AttentionSource(self.score.key_projection(states), states, lengths, arcs)

    def forward(self, query: Tensor, source: AttentionSource) -> Tuple[Tensor, Tensor]:
        """Attends to the source from every query.

        Args:
            query: ``[batch, tgt_len, query_dim]``
            source: from :meth:`prepare`

        Returns:
            contexts ``[batch, tgt_len, source_dim]`` and weights ``[batch, tgt_len, src_len]``, which are exactly 0
            on padding
        """
        weights = self._weights(self.posterior(query, source)).to(source.values.dtype)
        return torch.bmm(weights, source.values), weights

    def for_steps(self, source: AttentionSource) -> Attend:
        """:meth:`forward` as a function of the query alone, for queries that come one after the other."""
        scores_of, context_of = self.score.for_steps(source.keys), RepeatedProduct(source.values)

        def attend(query: Tensor) -> Tuple[Tensor, Tensor]:
            weights = self._weights(self._distribution(scores_of(query), source)).to(source.values.dtype)
            return context_of(weights), weights

        return attend

    def posterior(self, query: Tensor, source: AttentionSource) -> StructuredDistribution:
        """The distribution itself, one per target step (batch shape ``[batch, tgt_len]``), with all that it can tell:
        marginals, the most likely structure, samples, entropy."""
        return self._distribution(self.score(query, source.keys), source)

    def _distribution(self, scores: Tensor, source: AttentionSource) -> StructuredDistribution:
        # Below float32 neither inference nor the sum of the marginals would be exact.
        scores = scores if scores.dtype == torch.float64 else scores.float()
        if source.arcs is None:
            return self.distribution.from_scores(scores, source.lengths.unsqueeze(-1), **self.tables)
        words = (source.lengths - 1).clamp(min=0).unsqueeze(-1)
        arcs = source.arcs.to(scores.dtype).unsqueeze(1)
        return self.distribution.from_scores(scores[..., :-1], words, arc_scores=arcs, roots=self.roots)

    def _weights(self, distribution: StructuredDistribution) -> Tensor:
        marginals = distribution.position_marginals
        if distribution.needs_arcs:
            # </s> is in no tree.
            marginals = F.pad(marginals, (0, 1))
        if self.normalize == "sum":
            # Where nothing at all can be selected the sum is 0, and so are the weights.
            total = marginals.sum(-1, keepdim=True)
            marginals = marginals / total.clamp(min=torch.finfo(total.dtype).tiny)
        return marginals if self.scale == 1.0 else self.scale * marginals
