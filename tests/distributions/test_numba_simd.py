import math

import numpy as np
import pytest

numba = pytest.importorskip("numba")

from fairseq_structattn.distributions.kernels import numba_simd as simd  # noqa: E402

NUMBERS = np.array([0.0, -1.0, -52.0, -1022.0, 3.0, -1023.0, np.nan, np.inf])


def apply(operation, *arrays):
    """What an operation on lanes makes of eight numbers."""

    if len(arrays) == 1:

        @numba.njit
        def run(result, a):
            simd.store(result, 0, operation(simd.load(a, 0)))
    else:

        @numba.njit
        def run(result, a, b):
            simd.store(result, 0, operation(simd.load(a, 0), simd.load(b, 0)))

    result = np.empty(simd.LANES)
    run(result, *arrays)
    return result


def test_powers_of_two():
    expected = [1, 0.5, 2.0**-52, 2.0**-1022, 1, 0, 0, 0]
    assert apply(simd.power_of_two, NUMBERS).tolist() == expected


@pytest.mark.parametrize(
    "operation, function",
    ((simd.add, np.add), (simd.subtract, np.subtract), (simd.multiply, np.multiply), (simd.maximum, np.maximum)),
)
def test_arithmetic(operation, function):
    a, b = np.random.default_rng(0).normal(size=(2, simd.LANES))
    a[0] = b[1] = -math.inf
    assert (apply(operation, a, b) == function(a, b)).all()


def test_loads_and_stores_need_no_alignment():
    @numba.njit
    def run(target, source, at):
        simd.store(target, at, simd.multiply_add(simd.load(source, at), simd.fill(2.0), simd.fill(1.0)))

    source, target = np.arange(20.0), np.zeros(20)
    for at in (0, 1, 5, 12):
        target[:] = 0
        run(target, source, at)
        assert target.tolist() == [2 * x + 1 if at <= x < at + simd.LANES else 0 for x in source]


@pytest.mark.parametrize("count", (0, 1, 8, 1001))
def test_empty_lanes_begin_with_a_cache_line(count):
    @numba.njit
    def run(count):
        return simd.empty_lanes(count)

    room = run(count)
    assert room.shape == (count,) and room.dtype == np.float64
    assert room.ctypes.data % 64 == 0
