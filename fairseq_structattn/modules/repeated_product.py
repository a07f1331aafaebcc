"""Repeated products with the same matrix, whose gradient is computed once.

A decoder that runs step by step multiplies by the keys and values of a sentence, and by its own weights, once per
target word. Autograd would compute, for each of these products, a gradient as large as the matrix, and add it to the
sum. Here no product has a gradient for the matrix. Each adds a term of its own, a row of one tensor with the terms of
all steps: the gradient of that tensor holds the gradients of all products, and one more product with the factors of all
steps makes the gradient of the matrix. A step is then a single operation of PyTorch in each direction.
"""

from typing import Callable, Iterator, List, Optional, Sequence

import torch
from torch import Tensor, nn


class RepeatedProduct:
    """The functions ``left ↦ addend + left · matrix`` of the steps 0, 1, …, to be called in this order. Values and
    gradients are those of ``torch.matmul``; once differentiable.

    Args:
        matrix: the constant factor, ``[inner, columns]``, or one for each item of a batch, ``[batch, inner, columns]``
        steps: largest number of calls
        batch: number of rows of a factor ``left``
        addend: terms of all steps, which broadcast to the results of all steps, ``[steps, batch, columns]``, or
            ``[steps, batch, 1, columns]`` with a matrix for each item (default: none)
    """

    def __init__(self, matrix: Tensor, steps: int, batch: int, addend: Optional[Tensor] = None):
        dtype = product_dtype(matrix)
        matrix = matrix.to(dtype)
        self._lefts: List[Tensor] = []
        self._product: Callable[..., Tensor] = torch.mm if matrix.dim() == 2 else torch.bmm
        self._sum: Callable[..., Tensor] = torch.addmm if matrix.dim() == 2 else torch.baddbmm
        self._records = torch.is_grad_enabled() and (matrix.requires_grad or _requires_grad(addend))
        shape = (steps, batch, *[1] * (matrix.dim() - 2), matrix.size(-1))
        if self._records or addend is not None:
            addend = (matrix.new_zeros(()) if addend is None else addend.to(dtype)).expand(shape)
        if self._records:
            addend = _GradientOfAllSteps.apply(addend, matrix, self._lefts)
        self._matrix = matrix.detach()
        self._addends: Iterator[Optional[Tensor]] = iter([None] * steps if addend is None else addend.unbind(0))

    def __call__(self, left: Tensor) -> Tensor:
        """The next result, ``[batch, columns]`` for `left` ``[batch, inner]``; with a matrix for each item,
        ``[batch, 1, columns]`` for ``[batch, 1, inner]``."""
        left, addend = in_dtype(left, self._matrix.dtype), next(self._addends)
        if self._records:
            # The graph of the factors must not be reachable from its own nodes.
            self._lefts.append(left.detach())
        return self._product(left, self._matrix) if addend is None else self._sum(addend, left, self._matrix)


class RepeatedLinear(RepeatedProduct):
    """A linear layer for many inputs ``[batch, in_features]``, one after the other; see :class:`RepeatedProduct`."""

    def __init__(self, linear: nn.Linear, steps: int, batch: int):
        super().__init__(linear.weight.t(), steps, batch, linear.bias)


class _GradientOfAllSteps(torch.autograd.Function):
    """Identity of the addends. Its backward is called once, after those of all products."""

    @staticmethod
    def forward(ctx, addends: Tensor, matrix: Tensor, lefts: List[Tensor]) -> Tensor:
        ctx.lefts, ctx.shared = lefts, matrix.dim() == 2
        return addends.view_as(addends)

    @staticmethod
    def backward(ctx, grad: Tensor):
        if torch.is_grad_enabled():
            raise RuntimeError("a decoder that runs step by step is differentiable once: leave out create_graph=True")
        if not ctx.needs_input_grad[1] or not ctx.lefts:
            return grad, None, None
        left, grads = _rows(ctx.lefts, ctx.shared), _rows(grad[: len(ctx.lefts)].unbind(0), ctx.shared)
        return grad, torch.matmul(left.transpose(-1, -2), grads), None


def product_dtype(matrix: Tensor) -> torch.dtype:
    """The dtype of products with `matrix`, which under autocast is not that of their factors."""
    # It cannot be queried in a way that all versions of PyTorch have, so the smallest possible product is computed.
    corner = matrix.detach()[..., :1, :1]
    return torch.matmul(corner[:1], corner[:1].transpose(-1, -2)).dtype


def in_dtype(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """``tensor.to(dtype)``, in a tenth of the time where nothing is to be done."""
    return tensor if tensor.dtype == dtype else tensor.to(dtype)


def _requires_grad(tensor: Optional[Tensor]) -> bool:
    return tensor is not None and tensor.requires_grad


def _rows(steps: Sequence[Tensor], shared: bool) -> Tensor:
    # If one matrix serves the whole batch, the items are further rows of the factor.
    return torch.cat(list(steps), 0 if shared else 1)
