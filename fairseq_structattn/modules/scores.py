"""Attention scores: how well a query matches each source position.

A score has two parts. ``key_projection`` computes the *keys*, which depend on the source only, once per sentence;
``forward`` computes the scores of the keys for the queries, at every target step.
"""

import math
from typing import Callable, List, Optional, Type

import torch
from torch import Tensor, nn

from fairseq_structattn.distributions.registry import Registry
from fairseq_structattn.modules.additive import Additive, additive_scores
from fairseq_structattn.modules.repeated_product import RepeatedProduct, in_dtype, product_dtype


class Score(nn.Module):
    """Base class of scores.

    Attributes:
        key_projection: module that maps source states ``[batch, src_len, source_dim]`` to keys
            ``[batch, src_len, key_dim]``
    """

    key_projection: nn.Module

    def __init__(self, query_dim: int, source_dim: int, hidden_dim: int):
        super().__init__()

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        """Scores of every pair of query and key.

        Args:
            query: ``[batch, tgt_len, query_dim]``
            keys: ``[batch, src_len, key_dim]``, from ``key_projection``

        Returns:
            ``[batch, tgt_len, src_len]``
        """
        raise NotImplementedError

    def for_steps(self, keys: Tensor, steps: int, mask: Optional[Tensor] = None) -> Callable[[Tensor], Tensor]:
        """:meth:`forward` as a function of the query alone, for queries that come one after another.

        Args:
            keys: see :meth:`forward`
            steps: largest number of calls, each with one query for each sentence
            mask: a term of the scores, ``[batch, 1, src_len]`` (default: none)
        """
        return lambda query: _masked(self(query, keys), mask)

    def for_covered_steps(
        self, keys: Tensor, projection: nn.Linear, steps: int, mask: Optional[Tensor] = None
    ) -> Callable[[Tensor, Tensor], Tensor]:
        """:meth:`for_steps` with keys that depend on coverage: a function of the query and of the coverage
        ``[batch, src_len, size]``, which `projection` maps to a term that is added to the keys."""
        return lambda query, coverage: _masked(self(query, keys + projection(coverage.to(keys.dtype))), mask)


def _masked(scores: Tensor, mask: Optional[Tensor]) -> Tensor:
    return scores if mask is None else scores + mask.to(scores.dtype)


class InnerProduct(Score):
    """Base of the scores that are inner products of query and key."""

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        return torch.bmm(query, keys.transpose(1, 2))

    def for_steps(self, keys: Tensor, steps: int, mask: Optional[Tensor] = None) -> Callable[[Tensor], Tensor]:
        return RepeatedProduct(keys.transpose(1, 2), steps, keys.size(0), mask)

    def for_covered_steps(
        self, keys: Tensor, projection: nn.Linear, steps: int, mask: Optional[Tensor] = None
    ) -> Callable[[Tensor, Tensor], Tensor]:
        scores_of = self.for_steps(keys, steps, mask)
        project = RepeatedProduct(projection.weight, steps, keys.size(0))

        def covered(query: Tensor, coverage: Tensor) -> Tensor:
            # Coverage has a few dimensions, a key hundreds: projecting the query to coverage is cheaper.
            projected = project(query.squeeze(1)).unsqueeze(1)
            return torch.baddbmm(scores_of(query), projected, coverage.to(projected.dtype).transpose(1, 2))

        return covered


_SCORES: Registry[Score] = Registry("attention score", Score)


def register_score(name: str) -> Callable[[Type[Score]], Type[Score]]:
    """Class decorator: makes a :class:`Score` selectable as ``--attention-score name``.

    Raises:
        TypeError: the decorated object is not a subclass of :class:`Score`
        ValueError: another class already has this name
    """
    return _SCORES.register(name)


def score_names() -> List[str]:
    """Values of ``--attention-score``, sorted."""
    return _SCORES.names()


def get_score(name: str) -> Type[Score]:
    """The class registered as `name`; ValueError, listing the known names, where there is none."""
    return _SCORES.get(name)


def build_score(name: str, query_dim: int, source_dim: int, hidden_dim: int) -> Score:
    """The score registered as `name`.

    Args:
        name: one of :func:`score_names`
        query_dim: size of a query
        source_dim: size of a source state
        hidden_dim: size of the hidden layer of ``additive`` and ``concat``; the others have none

    Raises:
        ValueError: unknown `name`, or sizes the score cannot compare
    """
    return get_score(name)(query_dim, source_dim, hidden_dim)


@register_score("dot")
class DotScore(InnerProduct):
    """``score(s, h) = sᵀh`` (Luong et al. 2015, section 3.1, equation 8). Both sizes must be equal."""

    def __init__(self, query_dim: int, source_dim: int, hidden_dim: int):
        super().__init__(query_dim, source_dim, hidden_dim)
        if query_dim != source_dim:
            raise ValueError(
                f"a dot score compares vectors of equal size, but queries have {query_dim} units and source states "
                f"{source_dim}: make them equal, or choose the score general"
            )
        self.key_projection = nn.Identity()


@register_score("scaled-dot")
class ScaledDotScore(DotScore):
    """``score(s, h) = sᵀh / √d`` (Vaswani et al. 2017, section 3.2.1). Both sizes must be equal."""

    def __init__(self, query_dim: int, source_dim: int, hidden_dim: int):
        super().__init__(query_dim, source_dim, hidden_dim)
        self.key_projection = Scaling(1 / math.sqrt(query_dim))


@register_score("general")
class GeneralScore(InnerProduct):
    """``score(s, h) = sᵀW h`` (Luong et al. 2015, section 3.1, equation 8). The keys are ``W h``."""

    def __init__(self, query_dim: int, source_dim: int, hidden_dim: int):
        super().__init__(query_dim, source_dim, hidden_dim)
        self.key_projection = nn.Linear(source_dim, query_dim, bias=False)


@register_score("concat")
@register_score("additive")
class AdditiveScore(Score):
    """``score(s, h) = vᵀtanh(W s + U h)`` (Bahdanau et al. 2015, appendix A.1.2).

    Luong et al. 2015 (equation 8) write the same function as ``concat``, ``vᵀtanh(W_a[s; h])``: the columns of their
    matrix are ``W`` and ``U`` side by side. Either way ``U h``, the keys, is computed once per sentence.
    """

    def __init__(self, query_dim: int, source_dim: int, hidden_dim: int):
        super().__init__(query_dim, source_dim, hidden_dim)
        self.key_projection = nn.Linear(source_dim, hidden_dim, bias=False)
        self.query_projection = nn.Linear(query_dim, hidden_dim, bias=False)
        self.energy = nn.Linear(hidden_dim, 1, bias=False)

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        return additive_scores(self.query_projection(query).unsqueeze(2), keys.unsqueeze(1), self.energy)

    def for_steps(self, keys: Tensor, steps: int, mask: Optional[Tensor] = None) -> Callable[[Tensor], Tensor]:
        batch, length = keys.shape[:2]
        score, dtype = Additive.of(self.energy, keys.dtype), product_dtype(self.energy.weight)
        project = RepeatedProduct(score.factor * self.query_projection.weight.t(), steps, batch)
        weight, keys = score.weight.to(dtype).t(), score.factor * keys
        addend = weight.new_zeros(batch * length, 1) if mask is None else mask.reshape(-1, 1).to(dtype)
        addend = addend if score.constant is None else addend + score.constant.to(dtype)
        # The gradient of the constant is a sum over all steps, which is taken once.
        addends = iter(addend.expand(steps, -1, -1).unbind(0))

        def compare(query: Tensor) -> Tensor:
            hidden = score.activation(project(query.squeeze(1)).unsqueeze(1) + keys).flatten(0, 1)
            return torch.addmm(next(addends), in_dtype(hidden, dtype), weight).view(batch, 1, length)

        return compare


class Scaling(nn.Module):
    """Multiplication by a constant."""

    def __init__(self, factor: float):
        super().__init__()
        self.factor = factor

    def forward(self, states: Tensor) -> Tensor:
        return self.factor * states
