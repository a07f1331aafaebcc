"""The heads of multi-head attention, grouped by distribution: inference in the heads of a group is one batch."""

from typing import List, NamedTuple, Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_structattn.distributions import (
    Categorical,
    StructuredDistribution,
    distribution_names,
    get_distribution,
)
from fairseq_structattn.distributions.arcs import ArcDistribution
from fairseq_structattn.modules.attention import scaled
from fairseq_structattn.modules.estimators import Estimator
from fairseq_structattn.modules.source_attention import heads_of

SOFTMAX = "softmax"


class HeadShare(NamedTuple):
    """A number of attention heads with the same distribution, by its registered name."""

    distribution: str
    heads: int


def parse_heads(specification: str, heads: int) -> List[HeadShare]:
    """The distributions of the heads of an attention layer.

    Args:
        specification: names of distributions with their numbers of heads, such as ``softmax:4,linear-chain:2``. One
            name may stand without a number, and gets all heads that are left
        heads: number of heads of the layer

    Raises:
        ValueError: an unknown name, a name that stands twice, or numbers that do not add up to `heads`

    Example:
        >>> parse_heads("linear-chain:2,softmax", 8)
        [HeadShare(distribution='linear-chain', heads=2), HeadShare(distribution='softmax', heads=6)]
    """
    parts = [part.strip().partition(":") for part in specification.split(",")]
    names = [name for name, _, _ in parts]
    for name in names:
        if name not in distribution_names():
            raise ValueError(
                f"{specification!r}: unknown distribution {name!r}; choose from {', '.join(distribution_names())}"
            )
        if names.count(name) > 1:
            raise ValueError(f"{specification!r} names {name} twice; write it once, with all its heads")
    numbers = [_number(specification, count) if colon else None for _, colon, count in parts]
    taken, left_out = sum(number or 0 for number in numbers), numbers.count(None)
    if left_out > 1:
        raise ValueError(f"{specification!r}: only one distribution may stand without its number of heads")
    if (taken != heads) if left_out == 0 else (taken >= heads):
        rest = " and leave none" if left_out else ""
        raise ValueError(f"{specification!r}: the numbers of heads add up to {taken}{rest}; the layer has {heads}")
    return [HeadShare(name, heads - taken if number is None else number) for name, number in zip(names, numbers)]


def _number(specification: str, text: str) -> int:
    if not text.strip().isdigit() or int(text) < 1:
        raise ValueError(f"{specification!r}: {text!r} is no number of heads; write a whole number from 1 on")
    return int(text)


class Settings(NamedTuple):
    """What all heads of a layer have in common.

    Attributes:
        head_dim: size of a query, key or value of one head
        scale, normalize, max_segment_length: of heads over positions, see
            :class:`~fairseq_structattn.modules.attention.StructuredAttention`
        roots: for trees, number of words that may be attached to the root: ``"multi"`` or ``"single"``
        estimator: what weights are made of
    """

    head_dim: int
    scale: float
    normalize: str
    roots: str
    max_segment_length: int
    estimator: Estimator


class Weights(NamedTuple):
    """Attention weights of a group of heads, ``[batch, heads, tgt_len, src_len]``; of heads over arcs, also those of
    the root symbol, ``[batch, heads, tgt_len]``."""

    weights: Tensor
    root: Optional[Tensor] = None


class HeadGroup(nn.Module):
    """Heads with the same distribution; each has parameters of its own.

    Args:
        share: the distribution and the number of heads
    """

    def __init__(self, share: HeadShare):
        super().__init__()
        self.name, self.heads = share.distribution, share.heads

    def distribution_of(self, scores: Tensor, queries: Tensor, lengths: Optional[Tensor]) -> StructuredDistribution:
        """The distributions of all heads, of batch shape ``[batch, heads, tgt_len]`` or, over arcs, ``[batch, heads]``.

        Args:
            scores: ``[batch, heads, tgt_len, src_len]``, right-padded
            queries: scaled queries ``[batch, heads, tgt_len, head_dim]``, right-padded; used by heads over arcs only
            lengths: number of keys of each sentence ``[batch]``; None: no padding
        """
        raise NotImplementedError

    def of_head(self, head: int, scores: Tensor, queries: Tensor, lengths: Optional[Tensor]) -> StructuredDistribution:
        """The distribution of one head of the group, of batch shape ``[batch, tgt_len]`` or, over arcs, ``[batch]``,
        for the arguments of :meth:`distribution_of`."""
        raise NotImplementedError

    def weights_of(self, distribution: StructuredDistribution) -> Weights:
        """Attention weights, from the marginals of the distributions of :meth:`distribution_of`, or from one
        structure of each, as the estimator says."""
        raise NotImplementedError


class PositionHeads(HeadGroup):
    """Heads that select positions: a distribution over the keys for each query.

    Args:
        share: the distribution and the number of heads
        settings: see :class:`Settings`

    Attributes:
        tables: learned parameters of the distribution beside the scores, the heads as their first dimension
    """

    def __init__(self, share: HeadShare, settings: Settings):
        super().__init__(share)
        self.distribution = get_distribution(share.distribution)
        self.scale, self.normalize, self.estimator = settings.scale, settings.normalize, settings.estimator
        self.estimator.check(share.distribution, self.distribution)
        sizes = {"max_segment_length": settings.max_segment_length}
        shapes = self.distribution.parameter_shapes(**{name: sizes[name] for name in self.distribution.shape_options})
        self.tables = nn.ParameterDict(
            {
                name: nn.Parameter(torch.empty((share.heads, *shape)).uniform_(-0.1, 0.1))
                for name, shape in shapes.items()
            }
        )

    def distribution_of(self, scores: Tensor, queries: Tensor, lengths: Optional[Tensor]) -> StructuredDistribution:
        """See :meth:`HeadGroup.distribution_of`."""
        lengths = None if lengths is None else lengths[:, None, None]
        return self.distribution.from_head_scores(scores, lengths, **dict(self.tables.items()))

    def of_head(self, head: int, scores: Tensor, queries: Tensor, lengths: Optional[Tensor]) -> StructuredDistribution:
        """See :meth:`HeadGroup.of_head`."""
        tables = {name: table[head] for name, table in self.tables.items()}
        lengths = None if lengths is None else lengths.unsqueeze(-1)
        return self.distribution.from_scores(scores[:, head], lengths, **tables)

    def weights_of(self, distribution: StructuredDistribution) -> Weights:
        """See :meth:`HeadGroup.weights_of`."""
        selected = self.estimator.positions(distribution, self.training)
        if isinstance(distribution, Categorical) and self.scale == 1.0:
            return Weights(selected)  # whose sum is 1 already
        return Weights(scaled(selected, self.scale, self.normalize))


class ArcHeads(HeadGroup):
    """Heads that parse: a distribution over the heads of the words of a sentence, each of which attends to its head.

    The last position of a sentence, ``</s>``, is in no tree: no word attends to it, and its own weights are 0. An arc
    from word h to word m has the score of query m and key h. The root symbol has a learned key and value.

    Args:
        share: the distribution and the number of heads
        settings: see :class:`Settings`
    """

    def __init__(self, share: HeadShare, settings: Settings):
        super().__init__(share)
        self.heads_of, self.estimator = heads_of(share.distribution, settings.roots), settings.estimator
        self.estimator.check(share.distribution, get_distribution(share.distribution))
        size = settings.head_dim
        self.root_key = nn.Parameter(torch.empty(share.heads, size).normal_(std=size**-0.5))
        # At first, words attached to the root receive nothing.
        self.root_value = nn.Parameter(torch.zeros(share.heads, size))

    def distribution_of(self, scores: Tensor, queries: Tensor, lengths: Optional[Tensor]) -> ArcDistribution:
        """See :meth:`HeadGroup.distribution_of`; `scores` are those of dependents by heads."""
        of_root = torch.einsum("bhtd,hd->bht", queries, self.root_key.to(queries.dtype)).to(scores.dtype)
        return self._over_words(of_root, scores, lengths if lengths is None else lengths.unsqueeze(-1))

    def of_head(self, head: int, scores: Tensor, queries: Tensor, lengths: Optional[Tensor]) -> ArcDistribution:
        """See :meth:`HeadGroup.of_head`."""
        of_root = (queries[:, head] @ self.root_key[head].to(queries.dtype)).to(scores.dtype)
        return self._over_words(of_root, scores[:, head], lengths)

    def _over_words(self, of_root: Tensor, scores: Tensor, lengths: Optional[Tensor]) -> ArcDistribution:
        heads = torch.cat((of_root.unsqueeze(-1), scores), -1)[..., :-1, :-1]
        words = None if lengths is None else (lengths - 1).clamp(min=0)
        return self.heads_of(heads.transpose(-1, -2), words)

    def weights_of(self, distribution: StructuredDistribution) -> Weights:
        """See :meth:`HeadGroup.weights_of`."""
        heads = F.pad(self.estimator.parts(distribution, self.training), (0, 1)).transpose(-1, -2)
        return Weights(F.pad(heads[..., 1:], (0, 1)), heads[..., 0])


def build_group(share: HeadShare, settings: Settings) -> HeadGroup:
    """The heads of a distribution: :class:`ArcHeads` if it is over arcs, else :class:`PositionHeads`."""
    return (ArcHeads if is_over_arcs(share.distribution) else PositionHeads)(share, settings)


def is_over_arcs(distribution: str) -> bool:
    """Whether the structures of a registered distribution are arcs between the words of a sentence."""
    return issubclass(get_distribution(distribution), ArcDistribution)
