"""Statistics of BLEU as text."""

import random

import pytest
from made_translations import sentences, spoiled

from fairseq_structattn.analysis import kept_statistics
from fairseq_structattn.analysis.paired_tests import sentence_statistics


def test_kept_statistics_are_all_that_bleu_needs():
    rng = random.Random(3)
    references = sentences(rng, 40)
    hypotheses = spoiled(rng, references, 0.3)
    hypotheses[5] = ""
    kept = kept_statistics.encode_translations(hypotheses, references)
    assert len(kept) == 40 * 5
    lengths = kept_statistics.encode([len(line.split()) for line in references])
    found = kept_statistics.decode_translations(kept, lengths)
    assert (found == sentence_statistics(hypotheses, references, "none")).all()


def test_long_sentences_are_not_kept_wrongly():
    with pytest.raises(ValueError, match="a sentence has 64 tokens; 63 is the most"):
        kept_statistics.encode([3, 64])
    with pytest.raises(ValueError, match="statistics of 1 translations, but 2 references"):
        kept_statistics.decode_translations("00000", "12")
