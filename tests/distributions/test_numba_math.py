"""exp and log of compiled kernels against numpy's."""

import numpy as np
import pytest

pytest.importorskip("numba")

from fairseq_structattn.distributions.kernels import numba_compile, numba_math  # noqa: E402

exp, log = (numba_compile.kernel(function.py_func) for function in (numba_math.exp, numba_math.log))
ULP = np.finfo(float).eps


def test_exp_is_accurate_to_a_few_units_in_the_last_place():
    x = np.concatenate((np.linspace(-708, 709, 5001), np.linspace(-1, 1, 1001), [0.0, -1e-300, 1e-17]))
    np.testing.assert_allclose([exp(value) for value in x], np.exp(x), rtol=2 * ULP)


@pytest.mark.parametrize("x", (-708.5, -1e9, -np.inf))
def test_exp_is_zero_far_below(x):
    assert exp(x) == 0


def test_nan_goes_through():
    assert np.isnan(exp(np.nan)) and np.isnan(log(np.nan))


def test_log_is_accurate_to_a_few_units_in_the_last_place():
    x = np.concatenate((np.logspace(-307, 308, 5001), np.linspace(0.5, 2, 1001), 1 + np.logspace(-16, -1, 200)))
    np.testing.assert_allclose([log(value) for value in x], np.log(x), rtol=4 * ULP)
