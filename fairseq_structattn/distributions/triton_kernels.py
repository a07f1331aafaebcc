"""What the Triton kernels of the ``cuda.py`` modules share.

Triton comes with PyTorch's builds for CUDA. It is imported when it is first needed.
"""

import functools
from contextlib import nullcontext
from typing import ContextManager

import torch
from torch import Tensor


@functools.lru_cache(maxsize=None)
def available() -> bool:
    """Whether Triton can be imported."""
    try:
        import triton  # noqa: F401
    except ImportError:
        return False
    return True


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
