"""Repairs of the search: the defect each is for, that it repairs it, and that it leaves a healthy version alone."""

import math

import pytest
import torch

pytest.importorskip("fairseq")

from fairseq.data import Dictionary  # noqa: E402
from fairseq.ngram_repeat_block import NGramRepeatBlock  # noqa: E402
from fairseq.search import DiverseBeamSearch, LengthConstrainedBeamSearch, Sampling  # noqa: E402
from fairseq.sequence_generator import SequenceGenerator  # noqa: E402

from fairseq_structattn.compat import generation  # noqa: E402

REPAIRED = (
    (NGramRepeatBlock, "_no_repeat_ngram"),
    (DiverseBeamSearch, "step"),
    (Sampling, "step"),
    (SequenceGenerator, "_generate"),
    (SequenceGenerator, "finalize_hypos"),
    (LengthConstrainedBeamSearch, "set_src_lengths"),
)


def current():
    return [getattr(owner, name) for owner, name in REPAIRED]


def repair():
    generation.repair_ngram_blocking()
    generation.repair_diverse_beams()
    generation.repair_sampling()
    generation.repair_source_length()


def test_what_is_wrong_is_repaired_once(monkeypatch):
    for (owner, name), function in zip(REPAIRED, current()):
        monkeypatch.setattr(owner, name, getattr(function, "__wrapped__", function))
    stock = current()
    assert generation.lets_ngrams_repeat() and generation.looks_up_by_number() and generation.counts_ends()
    assert generation.fails_to_sample()
    repair()
    repaired = current()
    assert not set(stock) & set(repaired)
    assert not (generation.lets_ngrams_repeat() or generation.looks_up_by_number() or generation.counts_ends())
    assert not generation.fails_to_sample()
    repair()
    assert current() == repaired


@pytest.mark.parametrize(
    "size, words, forbidden",
    [
        (1, [], []),
        (1, [5, 6], [5, 6]),
        (2, [5], []),
        (2, [5, 5], [5]),
        (2, [5, 6, 5, 7, 5], [6, 7]),
        (3, [5, 5, 5], [5]),
        (3, [5, 6, 7, 6, 5], []),
        (3, [5, 6, 7, 5, 6], [7]),
        (4, [5, 6, 7], []),
    ],
)
def test_words_that_would_repeat_an_ngram(size, words, forbidden):
    tokens = torch.tensor([[2, *words, 1, 1, 1], [2, *range(3, 3 + len(words)), 1, 1, 1]])
    scores = NGramRepeatBlock(size, use_extension=False)(tokens, torch.zeros(2, 9), 1, 2, len(words))
    assert (scores[0] == -math.inf).nonzero().flatten().tolist() == sorted(forbidden)
    assert size == 1 or torch.equal(scores[1], torch.zeros(9))


def test_the_only_word_left_may_repeat():
    scores = torch.full((1, 9), -math.inf)
    scores[0, 5] = -3.0
    assert NGramRepeatBlock(1, use_extension=False)(torch.tensor([[2, 5, 1]]), scores, 1, 1, 1)[0, 5] == -3


def test_groups_of_beams_do_not_depend_on_the_numbers_of_their_sentences():
    def chosen(numbers):
        search, scores = DiverseBeamSearch(Dictionary(), 2, 0.5), torch.zeros(3, 2, 1)
        words = torch.randn(3, 3, 2, 4, generator=torch.Generator().manual_seed(0)).log_softmax(-1)
        first, second = (search.step(step, words[step], scores, None, numbers) for step in (0, 1))
        # After two steps the sentence in the middle is finished.
        third = search.step(2, words[2][[0, 2]], torch.zeros(2, 2, 2), None, numbers[[0, 2]])
        return [part for step in (first, second, third) for part in step]

    expected = chosen(torch.arange(3))
    for numbers in (torch.tensor([2, 0, 1]), torch.tensor([97, 4, 51])):
        assert all(torch.equal(part, other) for part, other in zip(chosen(numbers), expected))


def test_samples_of_words_that_vanish_are_the_best_of_them():
    scores = torch.full((1, 1, 4), -math.inf)
    scores[..., 2], scores[..., 3] = -1000.0, -2000.0
    drawn, words, _ = Sampling(Dictionary()).step(0, scores, None)
    assert words.item() == 2 and drawn.item() == 0
