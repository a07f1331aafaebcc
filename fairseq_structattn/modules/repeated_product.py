"""Products of many matrices, one after the other, with one that stays the same.

A decoder that runs step by step multiplies the keys and the values of a sentence, and its own weights, once per target
word. Left to autograd, each of these products makes a gradient as large as that matrix, which is written and added up
again, step after step. Here the steps only note their factors, and one product over all steps makes the gradient at the
end.
"""

from typing import List, Optional, Tuple

import torch
from torch import Tensor, nn
from torch.autograd import Variable

Notes = List[Tuple[Tensor, Tensor]]


class RepeatedProduct:
    """The function ``left ↦ left · matrix``. Values and gradients are those of ``torch.matmul``; once differentiable.

    Args:
        matrix: the factor that stays the same, ``[inner, columns]``, or one for each item of a batch, ``[batch, inner,
            columns]``
    """

    def __init__(self, matrix: Tensor):
        self._notes: Notes = []
        self._matrix = _GradientOfAllSteps.apply(matrix.to(_dtype_of_products(matrix)), self._notes)

    def __call__(self, left: Tensor) -> Tensor:
        """The product ``[..., columns]`` for `left` ``[..., inner]``; with a batch of matrices, for ``[batch, rows,
        inner]``."""
        with torch.autocast(left.device.type, enabled=False):
            return _Product.apply(left.to(self._matrix.dtype), self._matrix, self._notes)


class RepeatedLinear:
    """A linear layer for many inputs, one after the other; see :class:`RepeatedProduct`."""

    def __init__(self, linear: nn.Linear):
        self._product = RepeatedProduct(linear.weight.t())
        self._bias = linear.bias

    def __call__(self, inputs: Tensor) -> Tensor:
        """``[..., out_features]`` for inputs ``[..., in_features]``."""
        outputs = self._product(inputs)
        return outputs if self._bias is None else outputs + self._bias


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, left: Tensor, matrix: Tensor, notes: Notes) -> Tensor:
        ctx.save_for_backward(left, matrix)
        ctx.notes = notes
        return torch.matmul(left, matrix)

    @staticmethod
    def backward(ctx, grad: Tensor):
        if torch.is_grad_enabled():
            raise RuntimeError("a decoder that runs step by step is differentiable once: leave out create_graph=True")
        left, matrix = ctx.saved_tensors
        if not ctx.notes:
            # A pass that stops short of the matrix leaves its notes behind; they must not reach the next one.
            Variable._execution_engine.queue_callback(ctx.notes.clear)
        ctx.notes.append((left, grad))
        return torch.matmul(grad, matrix.transpose(-1, -2)), None, None


class _GradientOfAllSteps(torch.autograd.Function):
    """Identity. Autograd comes back to it when it has been through all products with the matrix."""

    @staticmethod
    def forward(ctx, matrix: Tensor, notes: Notes) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.notes, ctx.shared = notes, matrix.dim() == 2
        return matrix.view_as(matrix)

    @staticmethod
    def backward(ctx, _: Optional[Tensor]):
        # One matrix for the whole batch: its items are rows like any others.
        rows = [[part.flatten(0, -2) if ctx.shared else part for part in note] for note in ctx.notes]
        left, grad = (torch.cat(parts, -2) for parts in zip(*rows))
        return torch.matmul(left.transpose(-1, -2), grad), None


def _dtype_of_products(matrix: Tensor) -> torch.dtype:
    # Under autocast products have another dtype than their factors; the least of products tells.
    corner = matrix.detach()[..., :1, :1]
    return torch.matmul(corner[:1], corner[:1].transpose(-1, -2)).dtype
