"""What the Triton kernels of the ``cuda.py`` modules share.

Triton comes with PyTorch's builds for CUDA. It is imported when it is first needed.
"""

import functools
import os
import re
import shutil
from contextlib import nullcontext
from types import ModuleType
from typing import ContextManager, Optional, Tuple

import torch
from torch import Tensor

# Functions that kernels call came with this release of Triton, whose compiler serves these cards.
MINIMUM_TRITON = (3, 0)
MINIMUM_CAPABILITY = (7, 0)


@functools.lru_cache(maxsize=None)
def available() -> bool:
    """Whether Triton can be imported."""
    try:
        import triton  # noqa: F401
    except ImportError:
        return False
    return True


@functools.lru_cache(maxsize=None)
def obstacle(device: torch.device) -> Optional[str]:
    """Why the kernels cannot run on a GPU, and what to do about it; ``None`` if they can."""
    if not available():
        return "Triton is not installed: pip install triton"
    if torch.version.hip is not None:
        return "they are written for CUDA, and this is PyTorch for ROCm: take an NVIDIA GPU and PyTorch for CUDA"
    if _triton_version() < MINIMUM_TRITON:
        wanted = ".".join(map(str, MINIMUM_TRITON))
        return f"Triton {_triton().__version__} is too old for them: pip install 'triton>={wanted}'"
    if not interpreted() and not _has_compiler():
        return "Triton needs a C compiler and finds none: install gcc or clang, or set CC to one"
    if device.type == "cuda" and torch.cuda.is_available():
        capability = torch.cuda.get_device_capability(device)
        if capability < MINIMUM_CAPABILITY:
            found, wanted = (".".join(map(str, pair)) for pair in (capability, MINIMUM_CAPABILITY))
            return f"{device} has compute capability {found}, and they need {wanted}: take a newer GPU"
    return None


def _triton() -> ModuleType:
    import triton

    return triton


def _triton_version() -> Tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", _triton().__version__)[:2])


def _has_compiler() -> bool:
    return bool(os.environ.get("CC")) or any(shutil.which(name) for name in ("cc", "gcc", "clang"))


@functools.lru_cache(maxsize=None)
def interpreted() -> bool:
    """Whether ``TRITON_INTERPRET=1`` was set when Triton was imported, so that kernels run in Python, on any device."""
    if not available():
        return False
    from triton.language import sigmoid
    from triton.runtime.jit import JITFunction

    # Triton makes its choice for each function when it is decorated, its own among them.
    return not isinstance(sigmoid, JITFunction)


def on_device_of(tensor: Tensor) -> ContextManager:
    """Launches in this block go to the device of ``tensor``, whichever is the current one."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()


def next_power_of_two(number: int) -> int:
    """The least power of two, 1 among them, that is not less than ``number``."""
    return 1 << max(number - 1, 0).bit_length()
