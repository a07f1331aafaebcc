"""One position out of n under sparsemax and α-entmax, by the library ``entmax`` (the extra of that name)."""

import importlib
from types import ModuleType
from typing import Dict, Optional, Tuple

import torch
from torch import Tensor

from . import integers, k_best
from .categorical import best_choice
from .operations import has_values
from .pairwise import broadcasts
from .registry import register_distribution
from .semirings import NEGATIVE_INFINITY, one_hot_sample
from .structured import StructuredDistribution, cached, split_positions

# Stands for −∞ in the mappings, which square it.
FORBIDDEN = -1e30
# The range of a learned α. Towards 1, which is softmax, the gradient of α grows beyond all bounds.
LEAST_ALPHA, MOST_ALPHA = 1.01, 2.0


class SparseCategorical(StructuredDistribution):
    """Exactly one position is selected, with probabilities given by a sparse mapping of the scores to the simplex.

    p = argmax_q ⟨q, logits⟩ + H(q) over probability vectors q, where H is a Tsallis entropy, while softmax has
    Shannon's. Low scores have probability 0, and so no gradient. A structure is a one-hot vector over positions. An
    item of length 0, or whose scores are all −inf, is impossible.

    **It is no exponential family**, p(z) ∝ exp(score) does not hold. So there is no ``log_partition``, which raises
    NotImplementedError. All else is that of a categorical distribution with these probabilities: ``marginals`` (the
    mapping), ``argmax``, ``sample``, ``topk``, ``log_prob`` (−inf outside of the support of the mapping), ``entropy``
    (Shannon's), ``kl`` (+inf where ``other`` has 0 and self does not). ``max`` is the largest score. Gradients are
    those of the library: once, without ``torch.func``. ``alignment_log_prob`` clamps probabilities of 0, which have no
    gradient: a term that pulls attention to given positions does nothing for positions outside of the support.

    A subclass provides ``_mapping``.

    Raises:
        ImportError: the library is not installed; the message says how to install it.
        TypeError, ValueError: see :class:`StructuredDistribution`; ``logits`` without dimension.
    """

    def __init__(
        self,
        logits: Tensor,
        lengths: Optional[Tensor] = None,
        validate_args: Optional[bool] = None,
        **parameters: Tensor,
    ) -> None:
        _library()
        batch_shape, max_length = split_positions("logits", logits)
        super().__init__(batch_shape, max_length, lengths, validate_args, logits=logits, **parameters)
        self._validate_potentials()

    @classmethod
    def parameter_shapes(cls) -> Dict[str, Tuple[int, ...]]:
        """No parameters; ImportError if the library is not installed, before anything is trained."""
        _library()
        return {}

    def _mapping(self, logits: Tensor) -> Tensor:
        """Probabilities along the last dimension, in the dtype of the logits, which are finite."""
        raise NotImplementedError

    @property
    def logits(self) -> Tensor:
        """The scores as given, ``[*batch, n]``."""
        return self._given["logits"]

    @property
    def support_size(self) -> Tensor:
        """Number of positions, including those of probability 0, ``[*batch]`` in float64."""
        return self.lengths.double()

    @property
    def log_partition(self) -> Tensor:
        """Raises NotImplementedError: there is none."""
        raise NotImplementedError(
            f"{type(self).__name__} has no log_partition: its probabilities are no exponentials of scores, divided by "
            "their sum; log_prob, entropy and marginals are as usual"
        )

    def as_integers(self, parts: Tensor) -> Tensor:
        """The selected position, ``[*sample, *batch]``; −1 where none is selected."""
        return integers.of_choices(self._without_padding(parts), -1)

    def as_indicators(self, integers_: Tensor) -> Tensor:
        """One-hot vectors ``[*sample, *batch, n]`` of positions; the inverse of :meth:`as_integers`."""
        return self._without_padding(integers.one_hot(integers_, self.max_length, -1, self.dtype))

    def _best_values(self, k: int) -> Tuple[Tensor, Tensor]:
        return k_best.best_choices(self._inferred[1].log(), k)

    def _structure_name(self) -> str:
        return f"one-hot vectors of {self.max_length} positions"

    def _inference(self, dtype: torch.dtype) -> Tuple[Tensor, Tensor]:
        """The logarithm of the sum of the probabilities, 0 or, if nothing is possible, −inf; and the probabilities."""
        logits = self._masked_logits
        forbidden = logits == NEGATIVE_INFINITY
        possible = ~forbidden.all(-1)
        total = torch.zeros_like(possible, dtype=logits.dtype).masked_fill(~possible, NEGATIVE_INFINITY)
        if logits.shape[-1] == 0:
            return total, logits
        # What all scores lose changes nothing. Subtracting it here lets the library compute with numbers that it can
        # square.
        best = logits.detach().amax(-1, keepdim=True).masked_fill(~possible.unsqueeze(-1), 0)
        finite = (logits.masked_fill(forbidden, 0) - best).masked_fill(forbidden, FORBIDDEN).clamp(min=FORBIDDEN)
        finite = finite.masked_fill(~possible.unsqueeze(-1), 0)
        return total, self._mapping(finite).masked_fill(forbidden, 0)

    def _cross_entropy(self, parts: Tuple[Tensor, ...]) -> Tensor:
        probabilities, (share,) = self._inferred[1], parts
        never = probabilities == 0
        beyond = (never & (share != 0)).any(-1)
        surprisal = 0 - (probabilities.masked_fill(never, 1).log() * share).sum(-1)
        return surprisal.masked_fill(beyond, float("inf"))

    @cached
    def _masked_logits(self) -> Tensor:
        """Logits in ``compute_dtype`` with −inf in padding."""
        return self._without_padding(self._usable_potentials[0], NEGATIVE_INFINITY)

    def _potentials(self) -> Tuple[Tensor, ...]:
        return (self._without_padding(self.logits.to(self.compute_dtype)),)

    def _argmax(self) -> Tensor:
        return best_choice(self._masked_logits)

    def _sample(self, sample_shape: torch.Size, generator: Optional[torch.Generator]) -> Tensor:
        marginals = self._inferred[1].expand(sample_shape + self.batch_shape + (self.max_length,))
        return one_hot_sample(marginals, -1, generator) if self.max_length > 0 else marginals

    def _in_support(self, structure: Tensor) -> Tensor:
        parts = self._without_padding(structure.to(self.compute_dtype))
        return ((parts == 1).sum(-1) == 1) & ((parts != 0).sum(-1) == 1)


@register_distribution("sparsemax")
class Sparsemax(SparseCategorical):
    """:class:`SparseCategorical` by the Euclidean projection of the scores onto the simplex: α-entmax with α = 2.

    Martins & Astudillo, "From Softmax to Sparsemax" (ICML 2016). A position whose score is more than 1 below the best
    has probability 0.

    Args:
        logits: ``[*batch, n]``.
        lengths: integers broadcastable against ``[*batch]``; ``None`` (default): no padding.
        validate_args: see :class:`StructuredDistribution`.

    Raises:
        ImportError, TypeError, ValueError: see :class:`SparseCategorical`.

    Example:
        >>> attention = Sparsemax(torch.tensor([1.0, 0.5, -1.0]))
        >>> attention.marginals
        tensor([0.7500, 0.2500, 0.0000])
        >>> attention.log_prob(torch.tensor([0.0, 0.0, 1.0]))
        tensor(-inf)
    """

    def _mapping(self, logits: Tensor) -> Tensor:
        return _library().sparsemax(logits, -1)


@register_distribution("entmax15")
class Entmax15(SparseCategorical):
    """:class:`SparseCategorical` by α-entmax with α = 1.5, between softmax and sparsemax.

    Peters, Niculae & Martins, "Sparse Sequence-to-Sequence Models" (ACL 2019). A position whose score is more than 2
    below the best has probability 0.

    Args:
        logits: ``[*batch, n]``.
        lengths: integers broadcastable against ``[*batch]``; ``None`` (default): no padding.
        validate_args: see :class:`StructuredDistribution`.

    Raises:
        ImportError, TypeError, ValueError: see :class:`SparseCategorical`.

    Example:
        >>> Entmax15(torch.tensor([1.0, 0.5, -1.0])).marginals
        tensor([0.6740, 0.3260, 0.0000])
    """

    def _mapping(self, logits: Tensor) -> Tensor:
        return _library().entmax15(logits, -1)


@register_distribution("entmax")
class Entmax(SparseCategorical):
    """:class:`SparseCategorical` by α-entmax, where α may be learned: Correia, Niculae & Martins, "Adaptively Sparse
    Transformers" (EMNLP 2019). In attention each module learns its own α, between 1.01, nearly softmax, and 2,
    sparsemax; it begins near 1.5.

    Args:
        logits: ``[*batch, n]``.
        alpha: ``[…, 1]``, greater than 1; leading dimensions broadcast to ``batch``.
        lengths: integers broadcastable against ``[*batch]``; ``None`` (default): no padding.
        validate_args: see :class:`StructuredDistribution`.

    Raises:
        ImportError, TypeError: see :class:`SparseCategorical`.
        ValueError: see :class:`SparseCategorical`; ``alpha`` of another shape, or of 1 or less (on the CPU).

    Example:
        >>> Entmax(torch.tensor([1.0, 0.5, -1.0]), alpha=torch.tensor([2.0])).marginals
        tensor([0.7500, 0.2500, 0.0000])
    """

    def __init__(
        self,
        logits: Tensor,
        alpha: Tensor,
        lengths: Optional[Tensor] = None,
        validate_args: Optional[bool] = None,
    ) -> None:
        super().__init__(logits, lengths, validate_args, alpha=alpha)
        if alpha.shape[-1:] != (1,) or not broadcasts(alpha.shape[:-1], self.batch_shape):
            raise ValueError(
                f"alpha has shape {tuple(alpha.shape)}; it must be (…, 1) with leading dimensions that broadcast to "
                f"{tuple(self.batch_shape)}"
            )
        if alpha.device.type == "cpu" and has_values(alpha) and not bool((alpha > 1).all()):
            raise ValueError(f"alpha is {alpha.min().item()}; it must be greater than 1 (softmax is the limit at 1)")

    @classmethod
    def parameter_shapes(cls) -> Dict[str, Tuple[int, ...]]:
        """``sparsity`` ``(1,)``, any number, from which :meth:`from_scores` computes α."""
        _library()
        return {"sparsity": (1,)}

    @classmethod
    def from_scores(  # type: ignore[override]
        cls, scores: Tensor, lengths: Optional[Tensor], sparsity: Tensor
    ) -> "Entmax":
        """α-entmax with α between 1.01 and 2: a sigmoid of ``sparsity`` ``[…, 1]``, moved to this range."""
        alpha = LEAST_ALPHA + (MOST_ALPHA - LEAST_ALPHA) * torch.sigmoid(sparsity)
        return cls(scores, alpha, lengths)

    @property
    def alpha(self) -> Tensor:
        """α as given, ``[…, 1]``."""
        return self._given["alpha"]

    def _mapping(self, logits: Tensor) -> Tensor:
        alpha = self.alpha.to(logits.dtype).expand(self.batch_shape + (1,))
        return _library().entmax_bisect(logits, alpha, -1)


def _library() -> ModuleType:
    try:
        return importlib.import_module("entmax")
    except ImportError:
        raise ImportError(
            "the distributions sparsemax, entmax15 and entmax need the library entmax: pip install entmax, or "
            'pip install "fairseq_structattn[entmax]"'
        ) from None
