"""analysis/paired_tests.py: p-values that are known, sacrebleu's BLEU, and how often equal systems differ."""

import itertools
import random

import numpy as np
import pytest

from fairseq_structattn.analysis import paired_tests

TRIALS = 400


def corpus(count, *rates, seed=1):
    """References, and a translation of them for each rate of wrong words."""
    rng = random.Random(seed)
    references = [" ".join(rng.choice("abcdefgh") for _ in range(rng.randint(4, 9))) for _ in range(count)]
    spoiled = [[" ".join("z" if rng.random() < rate else w for w in r.split()) for r in references] for rate in rates]
    return references, spoiled


def statistics(references, systems):
    return [paired_tests.sentence_statistics(lines, references, "none") for lines in systems]


@pytest.mark.parametrize("tokenize", ["none", "13a"])
def test_bleu_of_the_statistics_is_that_of_sacrebleu(tokenize):
    from sacrebleu.metrics import BLEU

    references, (lines,) = corpus(20, 0.3)
    lines[3] = ""
    found = paired_tests.sentence_statistics(lines, references, tokenize)
    metric = BLEU(tokenize=tokenize, force=True)
    assert paired_tests.bleu(found.sum(0)) == metric.corpus_score(lines, [references]).score
    assert paired_tests.bleu(found[:1].sum(0)) == metric.corpus_score(lines[:1], [references[:1]]).score


@pytest.mark.parametrize("kind", ["ar", "bs"])
def test_ties_are_no_evidence(kind):
    references, systems = corpus(30, 0.2)
    one = statistics(references, systems)[0]
    assert paired_tests.p_value(kind, one, one, TRIALS, 1) == 1
    # one sentence differs: to exchange it changes the sign of the difference and nothing else
    other = one.copy()
    other[0, 0] += 1
    p = paired_tests.p_value(kind, one, other, TRIALS, 1)
    assert p == 1 if kind == "ar" else p > 0.4


@pytest.mark.parametrize("kind", ["ar", "bs"])
def test_systems_that_always_differ(kind):
    one, other = statistics(*corpus(30, 0.0, 0.9))
    assert paired_tests.p_value(kind, one, other, TRIALS, 1) == 1 / (TRIALS + 1)


def test_randomisation_agrees_with_the_enumeration_of_all_exchanges():
    one, other = statistics(*corpus(8, 0.2, 0.4, seed=3))
    observed = abs(paired_tests.bleu(one.sum(0)) - paired_tests.bleu(other.sum(0)))
    as_large = 0
    for choice in itertools.product((False, True), repeat=8):
        swap = np.array(choice)[:, None]
        sides = np.where(swap, other, one).sum(0), np.where(swap, one, other).sum(0)
        as_large += abs(paired_tests.bleu(sides[0]) - paired_tests.bleu(sides[1])) >= observed - 1e-9
    expected = as_large / 2**8
    assert 0.02 < expected < 0.9
    found = paired_tests.p_value("ar", one, other, 4000, 1)
    assert found == pytest.approx(expected, abs=4 * (expected * (1 - expected) / 4000) ** 0.5)


@pytest.mark.parametrize("kind", ["ar", "bs"])
def test_equal_systems_seldom_differ(kind):
    """Of 200 pairs of equally good systems, those with p < 0.1 are a tenth within three standard deviations."""
    rejected = 0
    for seed in range(200):
        one, other = statistics(*corpus(40, 0.3, 0.3, seed=seed))
        rejected += paired_tests.p_value(kind, one, other, 100, seed + 1) < 0.1
    assert rejected == pytest.approx(20, abs=3 * (200 * 0.1 * 0.9) ** 0.5)


def test_the_seed_decides():
    one, other = statistics(*corpus(30, 0.2, 0.25))
    for kind in ("ar", "bs"):
        found = [paired_tests.p_value(kind, one, other, 100, seed) for seed in (1, 1, 2, 3)]
        assert found[0] == found[1] and len(set(found)) > 1
