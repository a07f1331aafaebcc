"""Binary trees in plain PyTorch: the specification that the compiled implementation is tested against.

It is one recursion over a semiring, whose gradient is the marginals, the best tree or a sample. It runs on any device
and dtype, takes −inf anywhere and can be differentiated any number of times.
"""

from typing import Optional, Tuple

import torch
from torch import Tensor

from ..operations import usable, value_and_marginals
from ..semirings import LogSemiring, MaxSemiring, SamplingSemiring, Semiring
from . import spans


def total(scores: Tensor, lengths: Tensor, semiring: Semiring = LogSemiring) -> Tensor:
    """Semiring sum over all binary trees, ``[batch]``: log Z in the log semiring. An empty sentence scores 0.

    The inside recursion of Baker, "Trainable grammars for speech recognition" (1979), for scores of spans: all spans of
    one width are computed at once.

    Args:
        scores: ``[batch, n, n]``, −inf where there is no span.
        lengths: integers ``[batch]``.
    """
    batch, n = scores.shape[:2]
    inside = [scores.diagonal(0, 1, 2)] if n > 0 else []
    by_length = [scores.new_zeros(batch)]
    for width in range(1, n):
        count = n - width
        divisions = [inside[k][:, :count] + inside[width - 1 - k][:, k + 1 :] for k in range(width)]
        inside.append(semiring.sum(torch.stack(divisions), 0) + scores.diagonal(width, 1, 2))
    # As a sum, an impossible sentence passes no gradient to the scores of the whole.
    by_length += [semiring.sum(of_width[:, :1], 1) for of_width in inside]
    return torch.stack(by_length, 1).gather(1, lengths.unsqueeze(1)).squeeze(1)


def expectations(scores: Tensor, lengths: Tensor, semiring: Semiring = LogSemiring) -> Tuple[Tensor, Tensor]:
    """The total ``[batch]`` and its gradient ``[batch, n, n]``: marginals in the log semiring, a tree in the others.

    Arguments as for :func:`total`. The results carry a graph where gradients are enabled and the scores need them.
    """
    value, (gradient,) = value_and_marginals(lambda scores: total(scores, usable(lengths), semiring), scores)
    return value, gradient


def argmax(scores: Tensor, lengths: Tensor) -> Tensor:
    """A best tree as integers ``[batch, n]``, see :mod:`.spans`; ``NOTHING`` in padding and where none is possible."""
    return spans.to_integers(expectations(scores.detach(), lengths, MaxSemiring)[1])


def sample(scores: Tensor, lengths: Tensor, count: int, generator: Optional[torch.Generator] = None) -> Tensor:
    """Samples as integers ``[count, batch, n]``, see :mod:`.spans`; ``NOTHING`` where none is possible."""
    batch, n = scores.shape[:2]
    copies = scores.detach().expand(count, batch, n, n).reshape(count * batch, n, n)
    trees = expectations(copies, lengths.repeat(count), SamplingSemiring(generator))[1]
    return spans.to_integers(trees).reshape(count, batch, n)
