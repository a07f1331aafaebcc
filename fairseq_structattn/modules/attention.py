"""Attention as the expectation of a latent variable: score → distribution → expectation."""

import functools
from typing import Callable, Dict, List, NamedTuple, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_structattn.distributions import StructuredDistribution, get_distribution
from fairseq_structattn.distributions.semi_markov import MAX_SEGMENT_LENGTH
from fairseq_structattn.modules.couplings import COUPLINGS, SHARED_COUPLINGS
from fairseq_structattn.modules.coverage import COVERAGES, NO_COVERAGE
from fairseq_structattn.modules.estimators import EXPECTATION, Estimator
from fairseq_structattn.modules.repeated_product import RepeatedProduct, in_dtype, product_dtype
from fairseq_structattn.modules.scores import build_score

NORMALIZATIONS = ("none", "sum")

# Queries [batch, tgt_len, query_dim] → contexts [batch, tgt_len, source_dim].
Attend = Callable[[Tensor], Tensor]


class AttentionSource(NamedTuple):
    """The source side of attention for a batch of sentences, computed once and valid at every target step.

    Attributes:
        keys: ``[batch, src_len, key_dim]``
        values: ``[batch, src_len, source_dim]``
        lengths: ``[batch]``, padding is on the right
        arcs: for attention over trees, scores of arcs between the source words without ``</s>``,
            ``[batch, src_len, src_len-1]``, one row per head, the root first
        coverage: with coverage, the values transformed by
            :attr:`~fairseq_structattn.modules.coverage.Coverage.source_projection`
        couplings: for pairwise potentials beyond one table, the result of
            :meth:`~fairseq_structattn.modules.couplings.Couplings.prepare` for the values
    """

    keys: Tensor
    values: Tensor
    lengths: Tensor
    arcs: Optional[Tensor] = None
    coverage: Optional[Tensor] = None
    couplings: Optional[Tensor] = None

    def reorder(self, new_order: Tensor) -> "AttentionSource":
        """The sentences of this batch with the indices `new_order` ``[new_batch]``."""
        return AttentionSource._make(None if part is None else part.index_select(0, new_order) for part in self)


class StructuredAttention(nn.Module):
    """Context vectors ``c = Σᵢ wᵢ hᵢ`` whose weights are marginals of a distribution over the source positions.

    With ``softmax`` the latent variable is one position, which is classical attention. With ``linear-chain`` it is a
    0/1 mark for each position, and marks of neighbours depend on each other, so that contiguous segments can be
    selected (Kim et al. 2017, section 3.1). With ``semi-markov`` it is a segmentation into selected and other segments,
    whose scores also depend on their lengths (Sarawagi & Cohen 2004). With ``projective-tree`` and ``spanning-tree`` it
    is a dependency tree over the source words. The score of an arc is the sum of a score of its two words and of a
    score of the head for the query; the weight of a word is its expected number of dependents.

    Args:
        query_dim: size of a query
        source_dim: size of a source state
        score: a name of :func:`~fairseq_structattn.modules.scores.score_names`
        distribution: a name of :func:`~fairseq_structattn.distributions.distribution_names`
        hidden_dim: size of the hidden layer of additive scores (default: `query_dim`)
        scale: λ, a factor on the weights
        normalize: ``"none"`` uses λμᵢ, ``"sum"`` uses λμᵢ/Σμ as Kim et al. 2017 do for the chain with λ = 2
            (section 4.2)
        roots: for trees, number of words that may be attached to the root: ``"multi"`` or ``"single"``
        coverage: a key of :data:`~fairseq_structattn.modules.coverage.COVERAGES`; unless it is ``"none"``, attention
            runs step by step, by :meth:`for_steps`
        coverage_size: size of a coverage of type ``"gru"``; the others determine their size
        max_fertility: N of coverage with fertility
        couplings: a key of :data:`~fairseq_structattn.modules.couplings.COUPLINGS`: what pairwise potentials depend on
        max_segment_length: for segments, the largest number of positions of a segment
        estimator, generation_estimator: what weights are made of in training and in evaluation, keys of
            :data:`~fairseq_structattn.modules.estimators.ESTIMATORS`

    Attributes:
        tables: learned parameters of the distribution beside the scores, such as pairwise potentials of the chain

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
        coverage: str = NO_COVERAGE,
        coverage_size: int = 10,
        max_fertility: float = 2.0,
        couplings: str = SHARED_COUPLINGS,
        max_segment_length: int = MAX_SEGMENT_LENGTH,
        estimator: str = EXPECTATION,
        generation_estimator: str = EXPECTATION,
    ):
        super().__init__()
        self.estimator = Estimator(estimator, generation_estimator)
        if couplings not in COUPLINGS:
            raise ValueError(f"couplings is {couplings!r}; choose one of: {', '.join(COUPLINGS)}")
        if normalize not in NORMALIZATIONS:
            raise ValueError(f"normalize is {normalize!r}; choose one of: {', '.join(NORMALIZATIONS)}")
        if coverage not in COVERAGES:
            raise ValueError(f"coverage is {coverage!r}; choose one of: {', '.join(COVERAGES)}")
        self.score = build_score(score, query_dim, source_dim, hidden_dim or query_dim)
        self.distribution = get_distribution(distribution)
        self.estimator.check(distribution, self.distribution)
        self.scale = scale
        self.normalize = normalize
        from_scores: Callable[..., StructuredDistribution] = self.distribution.from_scores
        self._from_scores = functools.partial(from_scores, roots=roots) if self.distribution.needs_arcs else from_scores
        sizes = {"max_segment_length": max_segment_length}
        shapes = self.distribution.parameter_shapes(**{name: sizes[name] for name in self.distribution.shape_options})
        self.tables = nn.ParameterDict(
            {name: nn.Parameter(torch.empty(shape).uniform_(-0.1, 0.1)) for name, shape in shapes.items()}
        )
        self.coverage = None
        new_coverage = COVERAGES[coverage]
        if new_coverage is not None:
            key_dim = self.score.key_projection(torch.empty(1, 1, source_dim)).size(-1)
            self.coverage = new_coverage(query_dim, source_dim, key_dim, coverage_size, max_fertility)
        self.couplings = None
        new_couplings = COUPLINGS[couplings]
        if new_couplings is not None:
            if "pairwise" not in self.tables:
                raise ValueError(f"couplings is {couplings!r}, and {distribution!r} has no pairwise potentials")
            self.couplings = new_couplings(query_dim, source_dim, self.tables["pairwise"].size(-1))

    def prepare(self, states: Tensor, lengths: Tensor, arcs: Optional[Tensor] = None) -> AttentionSource:
        """Computes once per sentence whatever depends on the source only.

        Args:
            states: source states ``[batch, src_len, source_dim]``, right-padded
            lengths: ``[batch]``
            arcs: see :class:`AttentionSource`
        """
        project = None if self.coverage is None else self.coverage.source_projection
        coverage = None if project is None else project(states)
        couplings = None if self.couplings is None else self.couplings.prepare(states)
        return AttentionSource(self.score.key_projection(states), states, lengths, arcs, coverage, couplings)

    def forward(self, query: Tensor, source: AttentionSource) -> Tuple[Tensor, Tensor]:
        """Attends to the source from every query.

        Args:
            query: ``[batch, tgt_len, query_dim]``
            source: from :meth:`prepare`

        Returns:
            contexts ``[batch, tgt_len, source_dim]`` and weights ``[batch, tgt_len, src_len]``, which are exactly 0
            on padding
        """
        if self.coverage is None:
            return self.expectation(self.posterior(query, source), source)
        attend = self.for_steps(source, query.size(1))
        contexts = [attend(step) for step in query.split(1, 1)]
        return torch.cat(contexts, 1), attend.weights()

    def for_steps(self, source: AttentionSource, steps: int, coverage: Optional[Tensor] = None) -> "AttentionSteps":
        """:meth:`forward` as a function of the query alone, for queries that come one after the other.

        Args:
            source: from :meth:`prepare`
            steps: largest number of queries
            coverage: coverage after the earlier steps, ``[batch, src_len, size]``; None at the first step
        """
        return AttentionSteps(self, source, steps, coverage)

    def posterior(self, query: Tensor, source: AttentionSource) -> StructuredDistribution:
        """The attention distribution of each target step, of batch shape ``[batch, tgt_len]``. It provides marginals,
        the most likely structure, samples and entropy."""
        if self.coverage is None:
            return self.distribution_of(self.score(query, source.keys), query, source)
        attend = self.for_steps(source, query.size(1))
        for step in query.split(1, 1):
            attend(step)
        return attend.posterior()

    def expectation(self, posterior: StructuredDistribution, source: AttentionSource) -> Tuple[Tensor, Tensor]:
        """Contexts and weights, as :meth:`forward` returns them, of a distribution from :meth:`posterior`."""
        weights = self.weights_of(posterior).to(source.values.dtype)
        return torch.bmm(weights, source.values), weights

    def distribution_of(self, scores: Tensor, query: Tensor, source: AttentionSource) -> StructuredDistribution:
        """The distribution for scores ``[batch, tgt_len, src_len]`` of the source positions for `query`."""
        scores = _at_least_float32(scores)
        if source.arcs is None:
            tables = self._tables_of(query, source)
            return self._from_scores(scores, source.lengths.unsqueeze(-1), **tables)
        words = (source.lengths - 1).clamp(min=0).unsqueeze(-1)
        arcs = source.arcs.to(scores.dtype).unsqueeze(1)
        return self._from_scores(scores[..., :-1], words, arc_scores=arcs)

    def _tables_of(self, query: Tensor, source: AttentionSource) -> Dict[str, Tensor]:
        tables = dict(self.tables.items())
        if self.couplings is not None:
            tables["pairwise"] = tables["pairwise"].float() + self.couplings(query, source.couplings)
        return tables

    def marginals_of_masked(self) -> Optional[Callable[[Tensor], Tensor]]:
        """The function from scores to weights, before scaling and normalising, if it needs nothing but scores whose
        padding has a large negative score; None for other distributions and estimators."""
        if self.estimator.name(self.training) != EXPECTATION:
            return None
        # A subclass may have other marginals.
        found = vars(self.distribution).get("marginals_of_masked")
        return None if found is None else found.__func__

    @staticmethod
    def position_marginals(distribution: StructuredDistribution) -> Tensor:
        """Probability that each source position is selected under a :meth:`posterior`, before scaling and normalising,
        ``[batch, tgt_len, src_len]``. For trees it is the expected number of dependents, and 0 for ``</s>``."""
        marginals = distribution.position_marginals
        return F.pad(marginals, (0, 1)) if distribution.needs_arcs else marginals

    def weights_of(self, distribution: StructuredDistribution) -> Tensor:
        """Attention weights ``[batch, tgt_len, src_len]``, from the marginals of a distribution, or from one structure,
        as the estimator says."""
        selected = self.estimator.positions(distribution, self.training)
        selected = F.pad(selected, (0, 1)) if distribution.needs_arcs else selected
        return scaled(selected, self.scale, self.normalize)


def scaled(marginals: Tensor, scale: float, normalize: str) -> Tensor:
    """Attention weights ``[..., src_len]`` from the marginals of positions; for the other arguments see
    :class:`StructuredAttention`."""
    if normalize == "sum":
        # If no position can be or is selected, the sum is 0, and so are the weights; their gradients stay finite.
        total = marginals.sum(-1, keepdim=True)
        marginals = marginals / total.masked_fill(total == 0, 1)
    return marginals if scale == 1.0 else scale * marginals


class AttentionSteps:
    """Attention to one batch of sentences, one target step after the other; see :meth:`StructuredAttention.for_steps`.

    Attributes:
        coverage: coverage after the steps so far, ``[batch, src_len, size]``; None without coverage
    """

    def __init__(self, attention: StructuredAttention, source: AttentionSource, steps: int, coverage: Optional[Tensor]):
        self.coverage = coverage
        self._attention, self._source = attention, source
        self._context_of = RepeatedProduct(source.values, steps, source.values.size(0))
        self._scores: List[Tensor] = []
        self._queries: List[Tensor] = []
        self._weights: List[Tensor] = []
        self._marginals_of = attention.marginals_of_masked()
        self._padding = _padding(source)
        mask = None if self._marginals_of is None else _mask(self._padding, product_dtype(source.keys))
        self._scores_of: Callable[..., Tensor]
        if attention.coverage is None:
            self._scores_of = attention.score.for_steps(source.keys, steps, mask)
            return
        key_projection = attention.coverage.key_projection
        self._scores_of = attention.score.for_covered_steps(source.keys, key_projection, steps, mask)
        if coverage is None:
            batch, length = source.values.shape[:2]
            dtype = torch.promote_types(source.values.dtype, torch.float32)  # sums of many small weights
            self.coverage = source.values.new_zeros(batch, length, attention.coverage.size, dtype=dtype)
        self._cover = attention.coverage.for_steps(steps, source.coverage)

    def __call__(self, query: Tensor) -> Tensor:
        """Contexts ``[batch, 1, source_dim]`` for `query` ``[batch, 1, query_dim]``."""
        scores = self._scores_of(query) if self.coverage is None else self._scores_of(query, self.coverage)
        self._scores.append(scores)
        self._queries.append(query)
        weights = self._weights_for(scores, query)
        self._weights.append(weights)
        if self.coverage is not None:
            self.coverage = self._cover(self.coverage, weights.squeeze(1), query.squeeze(1))
        return self._context_of(weights)

    def _weights_for(self, scores: Tensor, query: Tensor) -> Tensor:
        attention, source = self._attention, self._source
        if self._marginals_of is None:
            weights = attention.weights_of(attention.distribution_of(scores, query, source))
        else:
            weights = scaled(self._marginals_of(_at_least_float32(scores)), attention.scale, attention.normalize)
        return in_dtype(weights, source.values.dtype)

    def weights(self) -> Tensor:
        """The weights of all steps so far, ``[batch, steps, src_len]``, exactly 0 on padding."""
        # A sentence without words has no score above its mask.
        return torch.cat(self._weights, 1).masked_fill(self._padding, 0)

    def posterior(self) -> StructuredDistribution:
        """The distributions of all steps so far as one, of batch shape ``[batch, steps]``."""
        return self._attention.distribution_of(*self.compared(), self._source)

    def compared(self) -> Tuple[Tensor, Tensor]:
        """Scores ``[batch, steps, src_len]`` and queries ``[batch, steps, query_dim]`` of all steps so far."""
        return torch.cat(self._scores, 1), torch.cat(self._queries, 1)


def _padding(source: AttentionSource) -> Tensor:
    """Whether a position is padding, ``[batch, 1, src_len]``."""
    positions = torch.arange(source.values.size(1), device=source.lengths.device)
    return (positions >= source.lengths.unsqueeze(-1)).unsqueeze(1)


def _mask(padding: Tensor, dtype: torch.dtype) -> Tensor:
    """A term of scores that leaves padding no probability, and cannot overflow when a score is added."""
    return torch.zeros(padding.shape, dtype=dtype, device=padding.device).masked_fill(
        padding, torch.finfo(dtype).min / 2
    )


def _at_least_float32(scores: Tensor) -> Tensor:
    # Below float32 neither inference nor the sum of the marginals is accurate.
    return scores if scores.dtype in (torch.float32, torch.float64) else scores.float()
