"""Every option of the package with its help and its default in an architecture, as text.

``fairseq-train --help`` shows the options of no model, and no default of an architecture.
"""

import textwrap
from argparse import Namespace
from dataclasses import MISSING, fields
from typing import Dict, Iterator, List, NamedTuple, Optional

_WIDTH = 120
_INDENT = " " * 6
_MARK = "*"


class Option(NamedTuple):
    """An option as users see it: the flag, or the name of a positional argument, its default in the package and in an
    architecture, and what it means."""

    flag: str
    default: object
    value: object
    text: str

    def lines(self) -> Iterator[str]:
        mark = _MARK if self.value != self.default else " "
        yield f"  {mark} {self.flag} {_written(self.value)}"
        # A name such as semi-markov is not divided.
        yield from textwrap.wrap(
            self.text, _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT, break_on_hyphens=False
        )


def architectures() -> List[str]:
    """The names that ``--arch`` takes for the models of this package, and of those that were registered with them."""
    from fairseq.models import ARCH_MODEL_NAME_REGISTRY

    return [name for name, model in ARCH_MODEL_NAME_REGISTRY.items() if model in _ours()["--arch"]]


def listing(arch: Optional[str] = None) -> Iterator[str]:
    """Lines: the options of models, or of the one that `arch` belongs to, then of criterions, tasks and optimizers.

    Raises:
        ValueError: `arch` is no architecture of this package
    """
    if arch is not None and arch not in architectures():
        raise ValueError(f"{arch}: no architecture of this package; choose from {', '.join(architectures())}")
    for kind, owners in _ours().items():
        for name, owner in owners.items():
            if kind == "--arch" and arch is not None:
                if name == _model_of(arch):
                    yield from _section(f"{kind} {arch}", owner, _preset(arch))
            else:
                yield from _section(f"{kind} {name}", owner, {})
    if arch is None:
        yield f"Of one architecture: add its name, one of {', '.join(architectures())}"


def options_of(owner: type, preset: Dict[str, object]) -> List[Option]:
    """The options that the dataclass `owner` adds to those of fairseq, with the values of `preset`."""
    bases = [base for base in owner.__mro__ if not _is_ours(base)]
    theirs = {name for base in bases for name in getattr(base, "__dataclass_fields__", ())}
    found = []
    for field in fields(owner):
        text = field.metadata.get("help")
        if text and field.name not in theirs:
            default = None if field.default is MISSING or field.default == "???" else field.default
            flag = "DATA" if field.name == "data" else "--" + field.name.replace("_", "-")
            found.append(Option(flag, default, preset.get(field.name, default), text))
    return found


def _section(title: str, owner: type, preset: Dict[str, object]) -> Iterator[str]:
    found = options_of(owner, preset)
    if not found:
        return
    yield title
    if any(option.value != option.default for option in found):
        yield f"({_MARK} another default than that of the model)"
    for option in found:
        yield from option.lines()
    yield ""


def _ours() -> Dict[str, Dict[str, type]]:
    """The dataclasses of options by what they are registered as, and by name."""
    import fairseq.optim  # noqa: F401  (registers)
    from fairseq.criterions import CRITERION_DATACLASS_REGISTRY
    from fairseq.models import MODEL_DATACLASS_REGISTRY, MODEL_REGISTRY
    from fairseq.optim import OPTIMIZER_DATACLASS_REGISTRY
    from fairseq.tasks import TASK_DATACLASS_REGISTRY

    # A model that adds options to those of a model of fairseq has a class of its own for them.
    extended = {name: model.own_options for name, model in MODEL_REGISTRY.items() if hasattr(model, "own_options")}
    registries = {
        "--arch": {**MODEL_DATACLASS_REGISTRY, **extended},
        "--criterion": CRITERION_DATACLASS_REGISTRY,
        "--task": TASK_DATACLASS_REGISTRY,
        "--optimizer": OPTIMIZER_DATACLASS_REGISTRY,
    }
    return {
        kind: {name: owner for name, owner in registry.items() if isinstance(owner, type) and _is_ours(owner)}
        for kind, registry in registries.items()
    }


def _model_of(arch: str) -> str:
    from fairseq.models import ARCH_MODEL_NAME_REGISTRY

    return ARCH_MODEL_NAME_REGISTRY[arch]


def _preset(arch: str) -> Dict[str, object]:
    """What the architecture sets where the user sets nothing."""
    from fairseq.models import ARCH_CONFIG_REGISTRY

    options = Namespace(arch=arch)
    ARCH_CONFIG_REGISTRY[arch](options)
    return vars(options)


def _is_ours(kind: type) -> bool:
    return kind.__module__.split(".")[0] == __name__.split(".")[0]


def _written(value: object) -> str:
    if isinstance(value, bool):
        return "(on)" if value else "(off)"
    return "(none)" if value is None else str(value)
