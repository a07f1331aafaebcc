"""Random choices in kernels compiled with numba."""

from .numba_compile import subroutine
from .numba_math import exp


@subroutine
def draw_index(scores, uniform):
    """An index with probability proportional to the exponential of its score, which is not −inf for all; the scores are
    overwritten. ``uniform`` is a number in [0, 1)."""
    best, total = scores[0], 0.0
    for a in range(1, scores.shape[0]):
        best = max(best, scores[a])
    for a in range(scores.shape[0]):
        scores[a] = exp(scores[a] - best)
        total += scores[a]
    rest, choice = uniform * total, 0
    for a in range(scores.shape[0]):
        # What has weight 0 is never drawn, even if rounding leaves a remainder after the last choice.
        if scores[a] > 0 and rest >= 0:
            choice = a
            rest -= scores[a]
    return choice
