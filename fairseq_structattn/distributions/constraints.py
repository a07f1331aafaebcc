"""What values and arguments of our distributions have to be, in the form that torch.distributions expects."""

import torch
from torch import Tensor
from torch.distributions.constraints import Constraint


class LogPotential(Constraint):
    """Numbers below +inf; −inf forbids a part. Said of real positions: what is in padding is not looked at."""

    def check(self, value: Tensor) -> Tensor:
        """Whether each number is one, in the shape of ``value``."""
        return value < float("inf")


class Structures(Constraint):
    """The structures of a distribution, given as parts 0 and 1; those that potentials forbid are among them.

    Args:
        distribution: whose structures they are.
    """

    is_discrete = True

    def __init__(self, distribution) -> None:
        self._distribution = distribution
        self.event_dim = len(distribution.event_shape)
        super().__init__()

    def check(self, value: Tensor) -> Tensor:
        """Whether each of ``[*sample, *batch, *event]`` is a structure, ``[*sample, *batch]``."""
        with torch.no_grad():
            return self._distribution._in_support(value)

    def __repr__(self) -> str:
        return f"Structures({self._distribution._structure_name()})"


log_potential = LogPotential()
