"""Which implementation of the inference algorithms runs.

``auto`` (the default) takes the fastest one that the device, the dtype and the potentials allow; ``cuda`` insists on
the Triton kernels, ``cpu`` on the kernels compiled for the CPU; ``reference`` takes the plain PyTorch specification
everywhere: slower, but twice differentiable. The environment variable ``STRUCTATTN_BACKEND`` sets the choice for a
process, :func:`use_backend` for a block of code.
"""

import os
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Iterator, Optional

import torch

from . import compiled, triton_kernels

BACKENDS = ("auto", "cuda", "cpu", "reference")
ENVIRONMENT_VARIABLE = "STRUCTATTN_BACKEND"

_KERNELS = {"cuda": triton_kernels, "cpu": compiled}
_PACKAGES = {"cuda": "triton", "cpu": "numba"}
_override: ContextVar[Optional[str]] = ContextVar("structattn_backend", default=None)


def current_backend() -> str:
    """The backend in force: that of the innermost :func:`use_backend`, else ``STRUCTATTN_BACKEND``, else ``auto``.

    Raises:
        ValueError: ``STRUCTATTN_BACKEND`` holds an unknown name.
    """
    override = _override.get()
    if override is not None:
        return override
    return _checked(os.environ.get(ENVIRONMENT_VARIABLE) or "auto", ENVIRONMENT_VARIABLE)


def compiled_for(device: torch.device) -> Optional[str]:
    """The compiled kernels to run on tensors of ``device``: ``"cuda"``, ``"cpu"``, or ``None`` for plain PyTorch.

    Raises:
        ValueError: the backend in force needs another device.
        ImportError: the backend in force needs a package that is not installed.
    """
    backend = current_backend()
    if backend == "reference":
        return None
    if backend == "auto":
        usable = device.type in _KERNELS and _KERNELS[device.type].available()
        return device.type if usable else None
    if not _KERNELS[backend].available():
        package = _PACKAGES[backend]
        raise ImportError(
            f"backend '{backend}' needs {package}: pip install {package}, or choose 'auto' or 'reference'"
        )
    interpreted = backend == "cuda" and device.type == "cpu" and triton_kernels.interpreted()
    if device.type != backend and not interpreted:
        way_out = " (or set TRITON_INTERPRET=1 before Triton is imported)" if backend == "cuda" else ""
        raise ValueError(
            f"backend '{backend}' cannot compute on {device}; move the tensors{way_out} or choose 'auto' or 'reference'"
        )
    return backend


@contextmanager
def use_backend(name: str) -> Iterator[None]:
    """Run a block with the backend ``name``; what counts is when a quantity is computed, not when it is differentiated.

    Raises:
        ValueError: ``name`` is not one of ``auto``, ``cuda``, ``cpu``, ``reference``.
    """
    token = _override.set(_checked(name, "use_backend"))
    try:
        yield
    finally:
        _override.reset(token)


def _checked(name: str, origin: str) -> str:
    if name not in BACKENDS:
        raise ValueError(f"{origin}: unknown backend {name!r}; choose one of: {', '.join(BACKENDS)}")
    return name
