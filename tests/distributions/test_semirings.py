import torch

from fairseq_structattn.distributions.semirings import SignedLog

NUMBERS = torch.tensor([[2.5, -1e-3, 0.0], [-2.5, 3.0, 0.0], [1e-300, 5.0, -7.0]], dtype=torch.double)


def test_signed_logarithms_add_and_multiply_like_real_numbers():
    numbers = SignedLog.of(NUMBERS)
    other = SignedLog.of(NUMBERS.flip(0))
    torch.testing.assert_close(numbers.real(), NUMBERS)
    torch.testing.assert_close(numbers.sum(0).real(), NUMBERS.sum(0))
    torch.testing.assert_close(numbers.plus(other).real(), NUMBERS + NUMBERS.flip(0))
    torch.testing.assert_close(numbers.times(other).real(), NUMBERS * NUMBERS.flip(0))


def test_signed_logarithms_reach_beyond_floating_point():
    huge = SignedLog.exp(torch.tensor([5000.0, 4999.0], dtype=torch.double))
    total = huge.times(SignedLog.of(torch.tensor([1.0, -1.0], dtype=torch.double))).sum(0)
    expected = 5000 + torch.log1p(-torch.exp(torch.tensor(-1.0, dtype=torch.double)))
    torch.testing.assert_close(total.log_size, expected)
    assert total.sign == 1


def test_sum_of_signed_zeros_is_zero():
    assert SignedLog.of(torch.zeros(3)).sum(0).real() == 0
