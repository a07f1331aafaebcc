"""Loading of checkpoints from earlier versions, in which parameters had other names."""

from typing import Dict

from torch import Tensor

# Name of the module's attribute in checkpoints of version 0.1.0, and its name since then.
SOURCE_ATTENTION = ("parser", "source_attn")


def rename(state: Dict[str, Tensor], module: str, before: str, now: str) -> None:
    """Renames the parameters of a submodule to their present names, in place.

    Args:
        state: parameters by name, as in a checkpoint
        module: name of the module in the checkpoint, such as ``encoder``; empty for the model
        before: former name of the submodule
        now: present name of the submodule
    """
    prefix = f"{module}." if module else ""
    for name in [name for name in state if name.startswith(f"{prefix}{before}.")]:
        state[prefix + now + name[len(prefix + before) :]] = state.pop(name)
