"""An LSTM that also runs under autocast on processors without a kernel for it."""

from functools import lru_cache
from typing import Optional, Tuple

import torch
from torch import Tensor, nn


class LSTM(nn.LSTM):
    """PyTorch's LSTM. Under autocast on the CPU it computes in the precision of its weights, and answers in it, where
    oneDNN has no LSTM in the lower precision: for bfloat16 that needs AVX-512, for float16 and gradients it is missing
    on every processor known to us. PyTorch asks for that kernel all the same, and stops."""

    weight_hh_l0: Tensor

    def forward(self, inputs: Tensor, state: Optional[Tuple[Tensor, Tensor]] = None):  # type: ignore[override]
        """See :class:`torch.nn.LSTM`."""
        dtype = _autocast_dtype() if inputs.device.type == "cpu" else None
        if dtype is None or has_kernel(dtype, torch.is_grad_enabled()):
            return super().forward(inputs, state)
        own = self.weight_hh_l0.dtype
        with torch.autocast("cpu", enabled=False):
            state = None if state is None else (state[0].to(own), state[1].to(own))
            return super().forward(inputs.to(own), state)


@lru_cache(maxsize=None)
def has_kernel(dtype: torch.dtype, with_gradient: bool) -> bool:
    """Whether an LSTM runs on this processor under autocast to `dtype`. Only trying tells: oneDNN knows more of the
    processor, and of what it is allowed to use of it, than PyTorch does."""
    with torch.autocast("cpu", dtype), torch.set_grad_enabled(with_gradient):
        weights = [torch.zeros(shape, device="cpu", requires_grad=with_gradient) for shape in ((4, 1), (4, 1), 4, 4)]
        zeros = torch.zeros(1, 1, 1, device="cpu")
        try:
            torch.lstm(zeros, (zeros, zeros), weights, True, 1, 0.0, with_gradient, False, False)
        except RuntimeError:
            return False
    return True


def _autocast_dtype() -> Optional[torch.dtype]:
    """What autocast on the CPU lowers products to; None where it is off."""
    if hasattr(torch, "get_autocast_dtype"):
        return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
    return torch.get_autocast_cpu_dtype() if torch.is_autocast_cpu_enabled() else None
