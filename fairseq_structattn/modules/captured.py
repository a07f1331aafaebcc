"""Functions of tensors whose passes are captured as CUDA graphs, one for each shape, and replayed.

A function that launches thousands of small kernels keeps a GPU waiting for Python. A CUDA graph holds all its launches
with the addresses that they read and write, and is launched as one. So inputs are copied to the memory in which the
graph expects them, and its results are copied out of the memory that the next replay overwrites.
"""

import inspect
from contextlib import contextmanager
from typing import Any, Callable, Dict, Hashable, Iterator, List, Optional, Sequence, Set, Tuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Function = Callable[..., Tuple[Tensor, ...]]


class CudaGraphs:
    """Captures code as CUDA graphs, all of which use the same memory: only one may be between its forward and its
    backward pass."""

    def __init__(self) -> None:
        self._pool: Any = None

    @staticmethod
    def takes(tensor: Tensor) -> bool:
        """Whether code that computes with `tensor` can be captured."""
        return tensor.is_cuda

    def __call__(self, function: Callable[[], Any]) -> Tuple[Any, Callable[[], None]]:
        """Captures `function` without running it.

        Returns:
            its results, whose values are undefined at first, and a function that computes them anew, in their place,
            from what lies in the memory that `function` reads
        """
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, **_mode()):
            results = function()
        return results, graph.replay


def _mode() -> Dict[str, Any]:
    # Other threads, such as the one that watches NCCL, may go on.
    known = inspect.signature(torch.cuda.graph.__init__).parameters
    return {"capture_error_mode": "thread_local"} if "capture_error_mode" in known else {}


class CapturedFunctions:
    """Calls functions of tensors, and captures those that recur with the same shapes.

    The first call with certain shapes runs the function as it is, which compiles what it needs; the second captures its
    forward and backward pass; from then on they are replayed. The gradient is once differentiable. A replay overwrites
    what the one before has kept for its backward pass, so each result has to be differentiated before the next call.

    A copy, and what is pickled, has captured nothing yet.

    Args:
        capture: how code is captured (default: :class:`CudaGraphs`)
        limit: how many shapes are captured; others run as they are
    """

    def __init__(self, capture: Optional[CudaGraphs] = None, limit: int = 200):
        self.capture = capture or CudaGraphs()
        self.limit = limit
        self._seen: Set[Hashable] = set()
        self._captured: Dict[Hashable, _Captured] = {}
        self._turn = 0

    def __getstate__(self) -> Dict[str, Any]:
        return {"limit": self.limit}

    def __setstate__(self, state: Dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def __call__(
        self, function: Function, inputs: Sequence[Tensor], parameters: Sequence[Tensor], variant: Hashable = None
    ) -> Tuple[Tensor, ...]:
        """The results of ``function(*inputs)``.

        Args:
            function: it reads tensors alone, no value of a tensor from Python, and nothing that differs between two
                calls beside `inputs` and the values of `parameters`
            inputs: they may require gradients
            parameters: whatever else `function` reads that requires gradients
            variant: whatever else determines what `function` computes

        Raises:
            RuntimeError: `function` cannot be captured; or, in the backward pass, another call came in between
        """
        key = (variant, _autocast(), *map(_kind, inputs), *map(_place, parameters))
        found = self._captured.get(key)
        if found is None and (key not in self._seen or len(self._captured) >= self.limit):
            self._seen.add(key)
            return function(*inputs)
        if found is None:
            found = self._captured[key] = _Captured(function, inputs, parameters, self.capture)
        return _Replay.apply(self, found, *inputs, *found.trained)

    def begin(self) -> int:
        """The number of a replay that begins."""
        self._turn += 1
        return self._turn

    def end(self, turn: int) -> None:
        """Raises RuntimeError if what replay number `turn` has kept is overwritten; it can be used once."""
        if turn != self._turn:
            raise RuntimeError(
                "a captured function was called again, or differentiated, before this backward pass, which needs what "
                "the call before has kept: differentiate each result once, and before the next call"
            )
        self._turn += 1


class _Captured:
    """The two passes of a function for certain shapes.

    Attributes:
        trained: the parameters that have a gradient
    """

    def __init__(self, function: Function, inputs: Sequence[Tensor], parameters: Sequence[Tensor], capture: CudaGraphs):
        self.inputs = [_static(value) for value in inputs]
        wanted = [value for value in (*self.inputs, *parameters) if value.requires_grad]
        with torch.enable_grad(), _own_casts():
            results, self.forward = capture(lambda: function(*self.inputs))
            differentiable = [value for value in results if value.requires_grad]
            self.upstream = [torch.zeros_like(value, requires_grad=False) for value in differentiable]
            gradients, self.backward = capture(
                lambda: torch.autograd.grad(differentiable, wanted, self.upstream, allow_unused=True)
            )
        self.has_gradient = [value.requires_grad for value in results]
        # Nothing may hold the graph of autograd, whose memory serves the next capture.
        self.results = [value.detach() for value in results]
        found = iter(gradients)
        every = [next(found) if value.requires_grad else None for value in (*self.inputs, *parameters)]
        self.trained = [p for p, gradient in zip(parameters, every[len(inputs) :]) if gradient is not None]
        self.gradients: List[Optional[Tensor]] = every[: len(inputs)]
        self.gradients += [gradient for gradient in every[len(inputs) :] if gradient is not None]


class _Replay(torch.autograd.Function):
    """The passes of a :class:`_Captured` as an operation of autograd."""

    @staticmethod
    def forward(ctx, owner: CapturedFunctions, captured: _Captured, *tensors: Tensor):
        for static, value in zip(captured.inputs, tensors):
            static.detach().copy_(value)
        captured.forward()
        ctx.owner, ctx.captured, ctx.turn = owner, captured, owner.begin()
        results = tuple(value.clone() for value in captured.results)
        ctx.mark_non_differentiable(*(value for value, has in zip(results, captured.has_gradient) if not has))
        return results

    @staticmethod
    @once_differentiable
    def backward(ctx, *upstream: Tensor):
        ctx.owner.end(ctx.turn)
        captured = ctx.captured
        given = (gradient for gradient, has in zip(upstream, captured.has_gradient) if has)
        for static, gradient in zip(captured.upstream, given):
            static.copy_(gradient)
        captured.backward()
        # A parameter keeps the tensor that it is given as its gradient.
        return (None, None, *(None if gradient is None else gradient.clone() for gradient in captured.gradients))


def _static(value: Tensor) -> Tensor:
    return value.detach().clone(memory_format=torch.contiguous_format).requires_grad_(value.requires_grad)


def _kind(value: Tensor) -> Hashable:
    return value.shape, value.dtype, value.device, value.requires_grad


def _place(parameter: Tensor) -> Hashable:
    # A graph reads a parameter where it was.
    return parameter.data_ptr(), parameter.dtype, parameter.requires_grad


def _autocast() -> Hashable:
    if not torch.is_autocast_enabled():
        return None
    return torch.get_autocast_dtype("cuda") if hasattr(torch, "get_autocast_dtype") else torch.get_autocast_gpu_dtype()


@contextmanager
def _own_casts() -> Iterator[None]:
    """Under autocast, a graph casts the parameters itself: neither does it read casts of before, which are not made
    anew, nor does later code read those in its memory."""
    torch.clear_autocast_cache()
    try:
        yield
    finally:
        torch.clear_autocast_cache()
