"""Checks of values on an accelerator, for which the backward pass does not wait."""

from typing import Callable

from torch import Tensor
from torch.autograd import Variable


def after_backward(value: Tensor, check: Callable[[], None]) -> None:
    """Calls `check` at the end of a backward pass through `value`, when all its operations have been queued: reading a
    value then holds up nothing, and what `check` raises ends the training before the parameters are updated.

    Args:
        value: part of a loss; without a gradient, `check` is called at once
        check: may raise, which ``backward`` then does
    """
    if value.requires_grad:
        value.register_hook(lambda gradient: Variable._execution_engine.queue_callback(check))
    else:
        check()
