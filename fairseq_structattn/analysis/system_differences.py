"""BLEU of systems minus that of a baseline, from the statistics of single sentences that runs kept."""

import statistics
from typing import Callable, Dict, List, Mapping, NamedTuple, Sequence, TypeVar

import numpy as np

from fairseq_structattn.analysis.kept_statistics import decode_translations
from fairseq_structattn.analysis.paired_tests import TIE, bleu

SAMPLES = 1000
SEED = 12345  # sacrebleu's
Runs = Dict[int, Dict]  # results of one system by seed
Name = TypeVar("Name")


class Difference(NamedTuple):
    """BLEU of a system minus that of its baseline, mean over the seeds that both have.

    Attributes:
        seeds: the seeds that both have
        each: the difference for each seed
        low, high: ends of the 95 % interval, over sentences
        p: two-sided p-value
    """

    seeds: List[int]
    each: List[float]
    low: float
    high: float
    p: float

    @property
    def mean(self) -> float:
        return statistics.mean(self.each)


def rows(run: Dict, tests: Sequence[str]) -> np.ndarray:
    """The statistics of each sentence of some test sets, one after the other."""
    found = [(run["test"][test]["statistics"], run["test"][test]["reference_lengths"]) for test in tests]
    return np.concatenate([decode_translations(*pair) for pair in found])


def resamples(sentences: int) -> np.ndarray:
    """How often each sentence is in each sample ``[SAMPLES, sentences]``; the same for all systems."""
    drawn = np.random.default_rng(SEED).choice(sentences, size=(SAMPLES, sentences), replace=True)
    return np.stack([np.bincount(sample, minlength=sentences) for sample in drawn])


def difference(system: Runs, baseline: Runs, tests: Sequence[str]) -> Difference:
    """Paired bootstrap resampling (Koehn 2004); a seed is paired with the same seed of the other system.

    A sample has the same sentences for all systems and seeds. p is defined as in ``paired_tests.py``: the share of
    samples whose difference is at least as far from the measured difference as the latter is from 0. Identical systems
    have p = 1, because ties count; sacrebleu does not count them.
    """
    seeds = sorted(set(system) & set(baseline))
    pairs = [(rows(system[seed], tests), rows(baseline[seed], tests)) for seed in seeds]
    counts = resamples(len(pairs[0][0]))
    each = [bleu(mine.sum(0)) - bleu(theirs.sum(0)) for mine, theirs in pairs]
    sampled = np.mean([_bleus(counts @ mine) - _bleus(counts @ theirs) for mine, theirs in pairs], 0)
    low, high = np.percentile(sampled, (2.5, 97.5))
    measured = statistics.mean(each)
    as_far = int((np.abs(sampled - measured) >= abs(measured) - TIE).sum())
    return Difference(seeds, each, float(low), float(high), (as_far + 1) / (len(sampled) + 1))


def differences(
    systems: Mapping[Name, Runs], baseline: Callable[[Name], Runs], tests: Sequence[str]
) -> Dict[Name, Difference]:
    """Differences of all systems to their baselines, where both have a seed in common.

    Args:
        systems: results by name and seed
        baseline: the results of the system that another is compared with; of a baseline, its own
        tests: names of test sets, which are taken together
    """
    pairs = {name: (runs, baseline(name)) for name, runs in systems.items()}
    return {
        name: difference(runs, theirs, tests)
        for name, (runs, theirs) in pairs.items()
        if runs is not theirs and set(runs) & set(theirs)
    }


def _bleus(sums: np.ndarray) -> np.ndarray:
    return np.array([bleu(row) for row in sums])
