"""Random choices in Triton kernels."""

import triton
import triton.language as tl


@triton.jit
def drawn(weights, share, numbers, beyond):
    """The number of the first weight along the first dimension at which the running sum exceeds a share of the total.

    Rounding may leave none; then it is the last whose weight is not 0, and 0 if all are 0.

    Args:
        weights: not negative, ``[count]`` or ``[count, columns]``.
        share: uniform in [0, 1), one number or ``[columns]``.
        numbers: of the weights, increasing, in the shape of a column.
        beyond: a number above all of them.
    """
    total = share * tl.sum(weights, 0)
    if len(weights.shape) == 2:
        total = total[None, :]
    first = tl.min(tl.where((tl.cumsum(weights, 0) > total) & (weights > 0), numbers, beyond), 0)
    last = tl.max(tl.where(weights > 0, numbers, 0), 0)
    return tl.where(first < beyond, first, last)
