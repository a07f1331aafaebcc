"""Declaration and checks of options, shared by the dataclasses of all models."""

from dataclasses import field
from typing import Collection, Iterable

from fairseq_structattn.distributions import get_distribution
from fairseq_structattn.modules.estimators import RSAMPLE


def option(default, text: str):
    """A field with a help text."""
    return field(default=default, metadata={"help": text})


def flag(name: str) -> str:
    """The command-line option that sets a field."""
    return "--" + name.replace("_", "-")


def check_choices(options, **allowed: Collection[str]) -> None:
    """Raises ValueError for the first field whose value is not allowed."""
    for name, values in allowed.items():
        if getattr(options, name) not in values:
            raise ValueError(f"{flag(name)} {getattr(options, name)}: not known, choose from {', '.join(values)}")


def check_estimators(options, distributions: Iterable[str]) -> None:
    """Raises ValueError if an estimator of `options` needs what one of the registered distributions does not have."""
    for name in ("attention_estimator", "attention_estimator_generation"):
        for distribution in distributions:
            if getattr(options, name) == RSAMPLE and not get_distribution(distribution).has_rsample:
                raise ValueError(f"{flag(name)} {RSAMPLE}: {distribution} does not have it, choose straight-through")


def check_at_least(options, least: float, *names: str) -> None:
    """Raises ValueError for the first field below `least`."""
    for name in names:
        if getattr(options, name) < least:
            raise ValueError(f"{flag(name)} {getattr(options, name)}: must be at least {least}")


def check_probabilities(options, *names: str) -> None:
    """Raises ValueError for the first field outside 0 ≤ p < 1."""
    for name in names:
        if not 0 <= getattr(options, name) < 1:
            raise ValueError(f"{flag(name)} {getattr(options, name)}: must be at least 0 and less than 1")
