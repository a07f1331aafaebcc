"""What users of torch.distributions know beside samples and probabilities: shapes, moments, support, validation."""

import os
from typing import Dict, Optional, Sequence

import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.distributions.constraints import Constraint

from . import constraints, finite_masks
from .operations import has_values
from .semirings import NEGATIVE_INFINITY

CHECK = "STRUCTATTN_CHECK"


class TorchInterface(Distribution):
    """The part of :class:`StructuredDistribution` that only has other names for it, or looks at what it is given."""

    @property
    def mean(self) -> Tensor:
        """``marginals``"""
        return self.marginals

    @property
    def variance(self) -> Tensor:
        """That of each part, μ(1 − μ), in the shape of the potentials."""
        return self.marginals * (1 - self.marginals)

    @property
    def mode(self) -> Tensor:
        """``argmax``"""
        return self.argmax

    # The name that TorchRL knows.
    deterministic_sample = mode

    @property
    def support(self) -> Constraint:
        """All structures of each item's length, those that potentials forbid among them."""
        return constraints.Structures(self)

    @property
    def arg_constraints(self) -> Dict[str, Constraint]:
        """Of each potential, by name."""
        return {name: constraints.log_potential for name in self._given}

    def expand(self, batch_shape: Sequence[int], _instance: Optional["TorchInterface"] = None) -> "TorchInterface":
        """The same distributions for a batch shape to which this one broadcasts, without copies.

        A subclass that keeps other tensors ``[*batch, …]`` than potentials and lengths expands them as well.
        """
        batch_shape = torch.Size(batch_shape)
        expanded = type(self).__new__(type(self)) if _instance is None else _instance
        expanded.__dict__.update(self.__dict__)
        # Of the others, leading dimensions are broadcast wherever they are used.
        name, first = next(iter(self._given.items()))
        expanded._given = {**self._given, name: first.expand(batch_shape + self.event_shape)}
        expanded._batch_shape, expanded.lengths = batch_shape, self.lengths.expand(batch_shape)
        expanded._cache, expanded._versions = {}, None
        return expanded

    def __repr__(self) -> str:
        arguments = [f"{name}: {potential.shape}" for name, potential in self._given.items()]
        if self._has_padding:
            few = has_values(self.lengths) and self.lengths.device.type == "cpu" and self.lengths.numel() <= 8
            arguments.append(f"lengths: {self.lengths.tolist() if few else self.lengths.shape}")
        arguments += [f"{name}: {value!r}" for name, value in self._settings().items()]
        return f"{type(self).__name__}({', '.join(arguments)})"

    def _looks_at(self, *tensors: Tensor) -> bool:
        """Whether validation is asked for, and values may be looked at."""
        if not self._validate_args or not has_values(*tensors, *self._given.values()):
            return False
        insists = "_validate_args" in self.__dict__ or os.environ.get(CHECK) == "1"
        return insists or all(tensor.device.type == "cpu" for tensor in (self.lengths,) + tensors)

    def _validate_sample(self, value: Tensor) -> None:
        """An error for what is no structure, where there are any and no NaN.

        Raises:
            ValueError: says in which item.
        """
        wrong = ~self.support.check(value) & (self._log_normaliser().detach() > NEGATIVE_INFINITY)
        if self._moderate is not None:
            wrong = wrong & ~self._moderate.broken
        if wrong.any():
            item = tuple(wrong.nonzero()[0].tolist())
            where = f"item {item} of the value" if item else "the value"
            raise ValueError(
                f"{where} is none of the {self._structure_name()} of {self!r}, given as parts 0 and 1; with "
                "validate_args=False its log_prob is -inf"
            )

    def _validate_potentials(self) -> None:
        """What a constructor does last: with ``validate_args=True``, an error for NaN and +inf in real positions.

        Raises:
            ValueError: says in which item.
        """
        if not self.__dict__.get("_validate_args") or not self._looks_at():
            return
        broken = finite_masks.unusable_items(self._potentials(), self.batch_shape)
        if broken.any():
            raise ValueError(
                f"{' or '.join(self._given)} of item {tuple(broken.nonzero()[0].tolist())} of {self!r} holds NaN or "
                "+inf; scores are numbers, and -inf forbids a part"
            )
