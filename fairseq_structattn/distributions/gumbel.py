"""Gumbel noise, and samples that pass gradients on to the potentials."""

from typing import NamedTuple, Optional, Sequence

import torch
from torch import Tensor

EULER = 0.5772156649015329


class RelaxedSample(NamedTuple):
    """Sampled structures and their relaxations, which have the gradient, both ``[*sample, *batch, *event]``."""

    structures: Tensor
    relaxed: Tensor

    def straight_through(self) -> Tensor:
        """The structures, with the gradient of their relaxations."""
        return self.structures + (self.relaxed - self.relaxed.detach())


def gumbel_noise(shape: Sequence[int], like: Tensor, generator: Optional[torch.Generator]) -> Tensor:
    """Independent samples of the standard Gumbel distribution, of the dtype and on the device of `like`."""
    device = like.device if generator is None else generator.device
    waiting = torch.empty(tuple(shape), dtype=like.dtype, device=device).exponential_(generator=generator)
    return -waiting.to(like.device).log()


def centred_gumbel_noise(shape: Sequence[int], like: Tensor, generator: Optional[torch.Generator]) -> Tensor:
    """:func:`gumbel_noise` less its mean, Euler's constant."""
    return gumbel_noise(shape, like, generator) - EULER


def relaxed_choice(logits: Tensor, temperature: float, generator: Optional[torch.Generator]) -> RelaxedSample:
    """One-hot samples along the last dimension, and their relaxation, a softmax of the perturbed logits: the
    Gumbel-softmax or concrete distribution (Jang, Gu & Poole; Maddison, Mnih & Teh, both ICLR 2017). The samples are
    exact. Logits may be −inf; where all are, the sample is 0."""
    perturbed = logits + gumbel_noise(logits.shape, logits, generator)
    index = perturbed.argmax(-1, keepdim=True)
    possible = (logits > float("-inf")).any(-1, keepdim=True)
    structures = torch.zeros_like(logits).scatter(-1, index, 1) * possible
    finite = perturbed.clamp(min=torch.finfo(logits.dtype).min / 4)
    return RelaxedSample(structures, torch.softmax(finite / temperature, -1).masked_fill(~possible, 0))
