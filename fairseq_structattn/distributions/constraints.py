"""Constraints on values and arguments of our distributions, in the form that torch.distributions expects."""

import torch
from torch import Tensor
from torch.distributions.constraints import Constraint


class LogPotential(Constraint):
    """Numbers below +inf; −inf forbids a part. Values in padding are ignored."""

    def check(self, value: Tensor) -> Tensor:
        """Whether each number is a valid log potential, in the shape of ``value``."""
        return value < float("inf")


class Structures(Constraint):
    """The structures of a distribution as indicators of parts, including those that potentials forbid.

    Args:
        distribution: the distribution whose structures they are.
    """

    is_discrete = True

    def __init__(self, distribution) -> None:
        self._distribution = distribution
        self.event_dim = len(distribution.event_shape)
        super().__init__()

    def check(self, value: Tensor) -> Tensor:
        """Whether each item of ``value`` ``[*sample, *batch, *event]`` is a structure, ``[*sample, *batch]``."""
        with torch.no_grad():
            return self._distribution._in_support(value)

    def __repr__(self) -> str:
        return f"Structures({self._distribution._structure_name()})"


log_potential = LogPotential()
