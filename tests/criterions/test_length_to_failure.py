"""The measure of tree transduction, by hand."""

import pytest
import torch

from fairseq_structattn.criterions.length_to_failure import length_to_failure

PADDING, END = 1, 2


@pytest.mark.parametrize(
    "predicted, target, share",
    [
        ([5, 6, 7, 2], [5, 6, 7, 2], 1.0),
        ([5, 6, 8, 2], [5, 6, 7, 2], 2 / 3),
        ([9, 6, 7, 2], [5, 6, 7, 2], 0.0),
        ([5, 9, 7, 2], [5, 6, 7, 2], 1 / 3),  # what is right after the error does not count
        ([5, 6, 7, 9], [5, 6, 7, 2], 1.0),  # nor does the end
        ([5, 2, 7, 2], [5, 6, 7, 2], 1 / 3),
        ([5, 9, 9, 9], [5, 2, 1, 1], 1.0),  # padding is no error
        ([9, 9, 9, 9], [2, 1, 1, 1], 1.0),  # an empty target
    ],
)
def test_share_of_the_target_before_the_first_error(predicted, target, share):
    found = length_to_failure(torch.tensor([predicted]), torch.tensor([target]), PADDING, END)
    torch.testing.assert_close(found, torch.tensor([share]))


def test_sentences_are_measured_one_by_one():
    predicted, target = torch.tensor([[5, 6, 2], [5, 9, 2]]), torch.tensor([[5, 6, 2], [5, 6, 2]])
    assert length_to_failure(predicted, target, PADDING, END).tolist() == [1.0, 0.5]
