"""Systems against their baseline, over sentences and seeds."""

import random

import made_translations
import pytest

from fairseq_structattn.analysis.paired_tests import p_value
from fairseq_structattn.analysis.system_differences import difference, differences, rows


def made_run(seed, share):
    return {"test": made_translations.scored(random.Random(seed), made_translations.tests(), share)}


def test_identical_systems_do_not_differ():
    run = made_run(1, 0.3)
    found = difference({1: run, 2: run}, {1: run, 2: run}, ["test", "test2"])
    assert found.seeds == [1, 2] and found.each == [0, 0] and (found.low, found.high, found.p) == (0, 0, 1)


def test_differences_are_those_of_bleu_and_paired_seed_by_seed():
    better = {seed: made_run(seed, 0.15) for seed in (1, 2)}
    worse = {seed: made_run(9 + seed, 0.4) for seed in (2, 3)}
    found = difference(better, worse, ["test"])
    assert found.seeds == [2]
    scores = [runs[2]["test"]["test"]["bleu"] for runs in (better, worse)]
    assert found.each == [pytest.approx(scores[0] - scores[1], abs=2e-3)]
    assert 0 < found.low < found.mean < found.high and found.p < 0.01
    near = {seed: made_run(20 + seed, 0.35) for seed in (2, 3)}
    mine = difference(near, worse, ["test"])
    kinds = rows(worse[2], ["test"]), rows(near[2], ["test"])
    one = difference({2: near[2]}, worse, ["test"])
    assert one.p == pytest.approx(p_value("bs", *kinds, 1000, 1), abs=0.05)  # other samples
    assert mine.low > one.low or mine.high < one.high  # two seeds tell more than one


def test_only_systems_with_a_seed_of_the_baseline_are_compared():
    good, bad = made_run(1, 0.1), made_run(2, 0.5)
    systems = {"flat": {1: bad}, "chain": {1: good, 2: good}, "tree": {2: good}, "none": {}}
    found = differences(systems, lambda name: systems["flat"], ["test"])
    assert list(found) == ["chain"] and found["chain"].seeds == [1] and found["chain"].mean > 0
