"""Counts the operations that PyTorch dispatches."""

from torch.utils._python_dispatch import TorchDispatchMode


class Counter(TorchDispatchMode):
    """Counts operations that compute something, not views."""

    def __init__(self):
        super().__init__()
        self.count, self.paused = 0, False

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += not (self.paused or function.is_view)
        return function(*args, **(kwargs or {}))
