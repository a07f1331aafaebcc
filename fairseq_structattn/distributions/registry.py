"""Names under which distributions are offered to attention (``--attention-distribution NAME``)."""

from typing import Callable, Dict, List, Type

from .structured import StructuredDistribution

_REGISTRY: Dict[str, Type[StructuredDistribution]] = {}


def register_distribution(name: str) -> Callable[[Type[StructuredDistribution]], Type[StructuredDistribution]]:
    """Class decorator: make a :class:`StructuredDistribution` available under ``name``.

    Raises:
        TypeError: the decorated object is not a subclass of :class:`StructuredDistribution`.
        ValueError: another class already has this name.
    """

    def register(cls: Type[StructuredDistribution]) -> Type[StructuredDistribution]:
        if not (isinstance(cls, type) and issubclass(cls, StructuredDistribution)):
            raise TypeError(
                f"register_distribution({name!r}) got {cls!r}; derive the class from StructuredDistribution"
            )
        known = _REGISTRY.get(name)
        if known is not None and _identity(known) != _identity(cls):
            raise ValueError(
                f"the distribution name {name!r} belongs to {'.'.join(_identity(known))}; "
                f"register {'.'.join(_identity(cls))} under another name"
            )
        _REGISTRY[name] = cls
        return cls

    return register


def get_distribution(name: str) -> Type[StructuredDistribution]:
    """The class registered as ``name``.

    Raises:
        ValueError: nothing is registered under ``name``; the message lists the known names.
    """
    if name not in _REGISTRY:
        raise ValueError(f"unknown distribution {name!r}; choose one of: {', '.join(distribution_names())}")
    return _REGISTRY[name]


def distribution_names() -> List[str]:
    """All registered names, sorted."""
    return sorted(_REGISTRY)


def _identity(cls: type) -> tuple:
    # A module imported twice (as a package and through --user-dir) makes two class objects of one definition.
    return cls.__module__, cls.__qualname__
