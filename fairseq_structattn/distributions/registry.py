"""Registries of classes by their names on the command line, such as ``--attention-distribution NAME``."""

from typing import Callable, Dict, Generic, List, Type, TypeVar

from .structured import StructuredDistribution

Registered = TypeVar("Registered")


class Registry(Generic[Registered]):
    """Classes by name.

    Args:
        kind: what the classes are, in error messages.
        base: the class that they derive from.
    """

    def __init__(self, kind: str, base: Type[Registered]) -> None:
        self._kind, self._base = kind, base
        self._classes: Dict[str, Type[Registered]] = {}

    def register(self, name: str) -> Callable[[Type[Registered]], Type[Registered]]:
        """Class decorator: make a class available under ``name``.

        Raises:
            TypeError: the decorated object does not derive from ``base``.
            ValueError: another class already has this name.
        """

        def add(cls: Type[Registered]) -> Type[Registered]:
            if not (isinstance(cls, type) and issubclass(cls, self._base)):
                raise TypeError(f"{self._kind} {name!r} is {cls!r}; derive the class from {self._base.__name__}")
            known = self._classes.get(name)
            if known is not None and _identity(known) != _identity(cls):
                raise ValueError(
                    f"the {self._kind} name {name!r} belongs to {'.'.join(_identity(known))}; "
                    f"register {'.'.join(_identity(cls))} under another name"
                )
            self._classes[name] = cls
            return cls

        return add

    def get(self, name: str) -> Type[Registered]:
        """The class registered as ``name``.

        Raises:
            ValueError: nothing is registered under ``name``; the message lists the known names.
        """
        if name not in self._classes:
            raise ValueError(f"unknown {self._kind} {name!r}; choose one of: {', '.join(self.names())}")
        return self._classes[name]

    def names(self) -> List[str]:
        """All registered names, sorted."""
        return sorted(self._classes)


def _identity(cls: type) -> tuple:
    # A module that is imported twice (as a package and by --user-dir) creates two class objects from one definition.
    return cls.__module__, cls.__qualname__


_DISTRIBUTIONS: Registry[StructuredDistribution] = Registry(
    "distribution",
    StructuredDistribution,  # type: ignore[type-abstract]
)


def register_distribution(name: str) -> Callable[[Type[StructuredDistribution]], Type[StructuredDistribution]]:
    """Class decorator: make a :class:`StructuredDistribution` a value of ``--attention-distribution``.

    Raises:
        TypeError: the decorated object is not a subclass of :class:`StructuredDistribution`.
        ValueError: another class already has this name.
    """
    return _DISTRIBUTIONS.register(name)


def get_distribution(name: str) -> Type[StructuredDistribution]:
    """The class registered as ``name``; ValueError, listing the known names, where there is none."""
    return _DISTRIBUTIONS.get(name)


def distribution_names() -> List[str]:
    """All registered names, sorted."""
    return _DISTRIBUTIONS.names()
