"""An LSTM that also runs under autocast on processors without a kernel for it."""

from functools import lru_cache
from typing import Optional, Tuple

import torch
from torch import Tensor, nn


class LSTM(nn.LSTM):
    """PyTorch's LSTM with a fallback for autocast on the CPU. Without a oneDNN kernel in the lower precision, PyTorch's
    own LSTM fails; this one computes, and returns its result, in the precision of its weights. For bfloat16 the kernel
    needs AVX-512; for float16 with gradients, no processor known to us has it."""

    weight_hh_l0: Tensor

    def forward(self, inputs: Tensor, state: Optional[Tuple[Tensor, Tensor]] = None):  # type: ignore[override]
        """See :class:`torch.nn.LSTM`."""
        if inputs.device.type != "cpu" or not lacks_kernel():
            return super().forward(inputs, state)
        own = self.weight_hh_l0.dtype
        with torch.autocast("cpu", enabled=False):
            state = None if state is None else (state[0].to(own), state[1].to(own))
            return super().forward(inputs.to(own), state)


def lacks_kernel() -> bool:
    """Whether autocast on the CPU is on, with a dtype in which PyTorch's LSTM fails on this processor."""
    dtype = _autocast_dtype()
    return dtype is not None and not has_kernel(dtype, torch.is_grad_enabled())


@lru_cache(maxsize=None)
def has_kernel(dtype: torch.dtype, with_gradient: bool) -> bool:
    """Whether an LSTM runs on this processor under autocast to `dtype`. It has to be tried, since PyTorch cannot query
    which features of the processor oneDNN may use."""
    with torch.autocast("cpu", dtype), torch.set_grad_enabled(with_gradient):
        weights = [torch.zeros(shape, device="cpu", requires_grad=with_gradient) for shape in ((4, 1), (4, 1), 4, 4)]
        zeros = torch.zeros(1, 1, 1, device="cpu")
        try:
            torch.lstm(zeros, (zeros, zeros), weights, True, 1, 0.0, with_gradient, False, False)
        except RuntimeError:
            return False
    return True


def _autocast_dtype() -> Optional[torch.dtype]:
    """The dtype of autocast on the CPU; None if autocast is off."""
    if hasattr(torch, "get_autocast_dtype"):
        return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
    return torch.get_autocast_cpu_dtype() if torch.is_autocast_cpu_enabled() else None
