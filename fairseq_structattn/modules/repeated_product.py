"""Repeated products with the same matrix, whose gradient is computed once.

A decoder that runs step by step multiplies by the keys and values of a sentence, and by its own weights, once per
target word. Autograd would compute, for each of these products, a gradient as large as the matrix, and add it to the
sum. Here each step only saves its factors, and one product over all steps computes the gradient at the end.
"""

from typing import List, Optional, Tuple

import torch
from torch import Tensor, nn
from torch.autograd import Variable

Notes = List[Tuple[Tensor, Tensor]]


class RepeatedProduct:
    """The function ``left ↦ left · matrix``. Values and gradients are those of ``torch.matmul``; once differentiable.

    Args:
        matrix: the constant factor, ``[inner, columns]``, or one for each item of a batch, ``[batch, inner, columns]``
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
            # A backward pass that does not reach the matrix leaves its notes, which must not reach the next pass.
            Variable._execution_engine.queue_callback(ctx.notes.clear)
        ctx.notes.append((left, grad))
        return torch.matmul(grad, matrix.transpose(-1, -2)), None, None


class _GradientOfAllSteps(torch.autograd.Function):
    """Identity. Autograd calls its backward after that of all products with the matrix."""

    @staticmethod
    def forward(ctx, matrix: Tensor, notes: Notes) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.notes, ctx.shared = notes, matrix.dim() == 2
        return matrix.view_as(matrix)

    @staticmethod
    def backward(ctx, _: Optional[Tensor]):
        # If one matrix serves the whole batch, the items are further rows of the factor.
        rows = [[part.flatten(0, -2) if ctx.shared else part for part in note] for note in ctx.notes]
        left, grad = (torch.cat(parts, -2) for parts in zip(*rows))
        return torch.matmul(left.transpose(-1, -2), grad), None


def _dtype_of_products(matrix: Tensor) -> torch.dtype:
    # Under autocast a product has another dtype than its factors, so the smallest possible product is computed.
    corner = matrix.detach()[..., :1, :1]
    return torch.matmul(corner[:1], corner[:1].transpose(-1, -2)).dtype
