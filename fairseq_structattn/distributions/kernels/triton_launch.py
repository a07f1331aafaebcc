"""Launching of Triton kernels, shared by the ``cuda.py`` modules.

Triton comes with PyTorch's builds for CUDA. It is imported at first use.
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

# The first Triton release with all functions that the kernels call, and the least compute capability it supports.
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
    """The reason why the kernels cannot run on a GPU, and the remedy; ``None`` if they can run."""
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

    # Triton decides for each function, including its own, when the function is decorated.
    return not isinstance(sigmoid, JITFunction)


def on_device_of(tensor: Tensor) -> ContextManager:
    """Context in which kernels are launched on the device of ``tensor``, whatever the current device."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()


def next_power_of_two(number: int) -> int:
    """The smallest power of two (1 included) that is at least ``number``."""
    return 1 << max(number - 1, 0).bit_length()
