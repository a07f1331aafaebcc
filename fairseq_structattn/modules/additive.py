"""The scores vᵀtanh(a + b) of pairs of vectors, as fast as PyTorch computes them.

They are little but tanh, of as many numbers as there are pairs times units. On a CPU, PyTorch's tanh takes six times as
long as its logistic function σ, so tanh(x) is written as 2σ(2x) − 1, and the score as 2vᵀσ(2a + 2b) − Σv. Below
float32, 2σ − 1 would have fewer digits near 0 than tanh has; there the score is computed as it is defined.
"""

from typing import Callable, NamedTuple, Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Additive(NamedTuple):
    """A score of pairs as ``weightᵀ activation(factor · (a + b)) + constant``.

    Attributes:
        factor: of the vectors
        activation: works in place
        weight: ``[1, dim]``
        constant: a number, or None for 0
    """

    factor: int
    activation: Callable[[Tensor], Tensor]
    weight: Tensor
    constant: Optional[Tensor]

    @classmethod
    def of(cls, energy: nn.Linear, dtype: torch.dtype) -> "Additive":
        """vᵀtanh(a + b) for vectors of `dtype`, where `energy` is the layer vᵀ, without bias."""
        if dtype in (torch.float32, torch.float64):
            return cls(2, torch.sigmoid_, 2 * energy.weight, -energy.weight.sum())
        return cls(1, torch.tanh_, energy.weight, None)


def additive_scores(first: Tensor, second: Tensor, energy: nn.Linear) -> Tensor:
    """vᵀtanh(a + b) of all pairs of vectors.

    Args:
        first, second: a and b, ``[..., dim]``, which broadcast to the shape of all pairs
        energy: the layer vᵀ, ``dim`` to 1, without bias

    Returns:
        ``[...]``

    Example:
        >>> energy = nn.Linear(2, 1, bias=False)
        >>> _ = nn.init.ones_(energy.weight)
        >>> words = torch.tensor([[0.0, 0.0], [1.0, 0.5]])
        >>> additive_scores(words.unsqueeze(1), words, energy)
        tensor([[0.0000, 1.2237],
                [1.2237, 1.7256]], grad_fn=<AddBackward0>)
    """
    score = Additive.of(energy, torch.promote_types(first.dtype, second.dtype))
    hidden = score.activation(torch.add(score.factor * first, second, alpha=score.factor))
    scores = F.linear(hidden, score.weight).squeeze(-1)
    return scores if score.constant is None else scores + score.constant
