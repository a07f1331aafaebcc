"""Products of many matrices, one after the other, with one that stays the same.

A decoder that runs step by step multiplies the keys and the values of a sentence once per target word. Left to
autograd, each of these products makes a gradient as large as all keys, which is written and added up again, step after
step. Here the steps only note their factors, and one product over all steps makes the gradient at the end.
"""

from typing import List, Optional, Tuple

import torch
from torch import Tensor
from torch.autograd import Variable

Notes = List[Tuple[Tensor, Tensor]]


class RepeatedProduct:
    """The function ``left ↦ left · matrix``. Values and gradients are those of ``torch.bmm``; once differentiable.

    Args:
        matrix: ``[batch, inner, columns]``, the factor that stays the same
    """

    def __init__(self, matrix: Tensor):
        self._notes: Notes = []
        self._matrix = _GradientOfAllSteps.apply(matrix.to(_dtype_of_products(matrix)), self._notes)

    def __call__(self, left: Tensor) -> Tensor:
        """The product ``[batch, rows, columns]`` for `left` ``[batch, rows, inner]``."""
        with torch.autocast(left.device.type, enabled=False):
            return _Product.apply(left.to(self._matrix.dtype), self._matrix, self._notes)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, left: Tensor, matrix: Tensor, notes: Notes) -> Tensor:
        ctx.save_for_backward(left, matrix)
        ctx.notes = notes
        return torch.bmm(left, matrix)

    @staticmethod
    def backward(ctx, grad: Tensor):
        if torch.is_grad_enabled():
            raise RuntimeError("attention step by step can be differentiated once: leave out create_graph=True")
        left, matrix = ctx.saved_tensors
        if not ctx.notes:
            # A pass that stops short of the matrix leaves its notes behind; they must not reach the next one.
            Variable._execution_engine.queue_callback(ctx.notes.clear)
        ctx.notes.append((left, grad))
        return torch.bmm(grad, matrix.transpose(1, 2)), None, None


class _GradientOfAllSteps(torch.autograd.Function):
    """Identity. Autograd comes back to it when it has been through all products with the matrix."""

    @staticmethod
    def forward(ctx, matrix: Tensor, notes: Notes) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.notes = notes
        return matrix.view_as(matrix)

    @staticmethod
    def backward(ctx, _: Optional[Tensor]):
        left, grad = zip(*ctx.notes)
        return torch.bmm(torch.cat(left, 1).transpose(1, 2), torch.cat(grad, 1)), None


def _dtype_of_products(matrix: Tensor) -> torch.dtype:
    # Under autocast products have another dtype than their factors; the least of products tells.
    corner = matrix.detach()[:1, :1, :1]
    return torch.bmm(corner, corner.transpose(1, 2)).dtype
