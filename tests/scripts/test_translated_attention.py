"""scripts/analysis/translated_attention.py: records of translations, and what is said where there is no attention."""

import pytest
import torch
from helpers_scripts import load_script

translated_attention = load_script("analysis/translated_attention.py")


class Dictionary:
    def __getitem__(self, index):
        return "<pad>" if index == self.pad() else str(index)

    def pad(self):
        return 1

    def eos(self):
        return 2


class Task:
    source_dictionary = target_dictionary = Dictionary()


def test_padding_is_stripped_on_either_side():
    attention = torch.arange(8.0).view(4, 2)
    hypothesis = {"attention": attention, "tokens": torch.tensor([7, 2]), "score": torch.tensor(-0.5)}
    source, reference = torch.tensor([1, 5, 2, 1]), torch.tensor([1, 9, 8, 2])
    one = translated_attention.as_record(3, source, reference, hypothesis, Task())
    assert (one.id, one.score, one.forced) == (3, -0.5, False)
    assert one.source == ["5", "2"] and one.target == ["7", "2"] and one.reference == ["9", "8"]
    assert one.weights == [[2.0, 4.0], [3.0, 5.0]]


def test_a_model_without_attention_is_refused():
    hypothesis = {"attention": torch.empty(0), "tokens": torch.tensor([2]), "score": torch.tensor(0.0)}
    with pytest.raises(translated_attention.TranslationError, match="returns no attention"):
        translated_attention.as_record(0, torch.tensor([5, 2]), None, hypothesis, Task())
