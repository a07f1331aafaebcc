"""Readouts: from decoder state and context to the vector that predicts the next word."""

from functools import partial
from typing import Callable, Optional

import torch
from torch import Tensor, nn

from fairseq_structattn.modules.repeated_product import RepeatedLinear

Projection = Callable[[Tensor], Tensor]


class Readout(nn.Module):
    """Base class: one linear layer, which :meth:`read` applies.

    Attributes:
        output_dim: size of the result
    """

    output_dim: int
    projection: nn.Linear

    def read(self, projection: Projection, state: Tensor, context: Optional[Tensor], embedded: Tensor) -> Tensor:
        """:meth:`forward` with the linear layer as an argument."""
        raise NotImplementedError

    def forward(self, state: Tensor, context: Optional[Tensor], embedded: Tensor) -> Tensor:
        """From state, context (None without attention) and embedding of the previous word, all ``[..., dim]``, to
        ``[..., output_dim]``."""
        return self.read(self.projection, state, context, embedded)

    def for_steps(self, steps: int, batch: int) -> Callable[[Tensor, Optional[Tensor], Tensor], Tensor]:
        """:meth:`forward` for `steps` steps that run one after the other, each with tensors ``[batch, dim]``."""
        return partial(self.read, RepeatedLinear(self.projection, steps, batch))


class TanhReadout(Readout):
    """The attentional state ``h̃ = tanh(U[c; h])`` (Luong et al. 2015, equation 5), without bias as in Kim et al. 2017.

    Args:
        state_dim: size of a decoder state ``h``
        context_dim: size of a context ``c``, 0 for a decoder without attention: ``h̃ = tanh(U h)``
        embed_dim: size of a word embedding (not used)
        maxout_dim: not used

    Attributes:
        output_dim: size of the result, that of a decoder state as in both papers
    """

    def __init__(self, state_dim: int, context_dim: int, embed_dim: int, maxout_dim: int):
        super().__init__()
        self.output_dim = state_dim
        self.projection = nn.Linear(context_dim + state_dim, state_dim, bias=False)

    def read(self, projection: Projection, state: Tensor, context: Optional[Tensor], embedded: Tensor) -> Tensor:
        inputs = state if context is None else torch.cat((context, state), -1)
        return torch.tanh(projection(inputs))


class MaxoutReadout(Readout):
    """The deep output ``max(t̃₂ₖ₋₁, t̃₂ₖ)`` of ``t̃ = U s + V Ey + C c`` (Bahdanau et al. 2015, appendix A.2.2).

    Args:
        state_dim: size of a decoder state ``s``
        context_dim: size of a context ``c``, 0 for a decoder without attention
        embed_dim: size of the embedding ``Ey`` of the previous word
        maxout_dim: size of the result, half of that of ``t̃``

    Attributes:
        output_dim: `maxout_dim`
    """

    def __init__(self, state_dim: int, context_dim: int, embed_dim: int, maxout_dim: int):
        super().__init__()
        self.output_dim = maxout_dim
        self.projection = nn.Linear(state_dim + context_dim + embed_dim, 2 * maxout_dim)

    def read(self, projection: Projection, state: Tensor, context: Optional[Tensor], embedded: Tensor) -> Tensor:
        inputs = (state, embedded) if context is None else (state, context, embedded)
        pieces = projection(torch.cat(inputs, -1))
        return pieces.view(*pieces.shape[:-1], -1, 2).max(-1).values


READOUTS = {"tanh": TanhReadout, "maxout": MaxoutReadout}
