"""The interface of torch.distributions besides samples and probabilities: shapes, moments, support, validation."""

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
    """Base of :class:`StructuredDistribution` with the aliases and the validation that torch.distributions expects."""

    @property
    def mean(self) -> Tensor:
        """The same as ``marginals``."""
        return self.marginals

    @property
    def variance(self) -> Tensor:
        """Variance of each part, μ(1 − μ), in the shape of the potentials."""
        return self.marginals * (1 - self.marginals)

    @property
    def mode(self) -> Tensor:
        """The same as ``argmax``."""
        return self.argmax

    # The name that TorchRL uses.
    deterministic_sample = mode

    @property
    def support(self) -> Constraint:
        """All structures of each item's length, including those that potentials forbid."""
        return constraints.Structures(self)

    @property
    def arg_constraints(self) -> Dict[str, Constraint]:
        """The constraint of each potential, by name."""
        return {name: constraints.log_potential for name in self._given}

    def expand(self, batch_shape: Sequence[int], _instance: Optional["TorchInterface"] = None) -> "TorchInterface":
        """The same distribution expanded to ``batch_shape``, without copies.

        A subclass that stores other tensors ``[*batch, …]`` than potentials and lengths has to expand them as well.
        """
        batch_shape = torch.Size(batch_shape)
        expanded = type(self).__new__(type(self)) if _instance is None else _instance
        expanded.__dict__.update(self.__dict__)
        # The other potentials are broadcast wherever they are used.
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
        """Whether validation is enabled and may read values."""
        if not self._validate_args or not has_values(*tensors, *self._given.values()):
            return False
        insists = "_validate_args" in self.__dict__ or os.environ.get(CHECK) == "1"
        return insists or all(tensor.device.type == "cpu" for tensor in (self.lengths,) + tensors)

    def _validate_sample(self, value: Tensor) -> None:
        """Check that ``value`` is a structure, except in impossible items and in items with NaN or +inf.

        Raises:
            ValueError: it is not; the message names the item.
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
        """With ``validate_args=True``, reject NaN and +inf in real positions. A constructor calls this last.

        Raises:
            ValueError: there is one; the message names the item.
        """
        if not self.__dict__.get("_validate_args") or not self._looks_at():
            return
        broken = finite_masks.unusable_items(self._potentials(), self.batch_shape)
        if broken.any():
            raise ValueError(
                f"{' or '.join(self._given)} of item {tuple(broken.nonzero()[0].tolist())} of {self!r} holds NaN or "
                "+inf; scores are numbers, and -inf forbids a part"
            )
