"""Checkpoints of earlier versions, whose parameters had other names."""

from typing import Dict

from torch import Tensor

# Attribute of the module in checkpoints of version 0.1.0, and since then.
SOURCE_ATTENTION = ("parser", "source_attn")


def rename(state: Dict[str, Tensor], module: str, before: str, now: str) -> None:
    """Gives the parameters of a part of a module the names that they have now, in place.

    Args:
        state: parameters by name, as in a checkpoint
        module: name of the module in it, such as ``encoder``; empty for the model
        before: the part as it was called
        now: as it is called
    """
    prefix = f"{module}." if module else ""
    for name in [name for name in state if name.startswith(f"{prefix}{before}.")]:
        state[prefix + now + name[len(prefix + before) :]] = state.pop(name)
