"""Systems against their baseline, from statistics of single sentences: paired bootstrap, and BLEU by length."""

import statistics
from typing import Dict, List, NamedTuple, Sequence, Tuple

import numpy as np
from kept_statistics import decode, decode_translations

from fairseq_structattn.analysis.paired_tests import TIE, bleu

BOUNDS = (10, 15, 20)  # characters of a source sentence
BOUND_LABELS = ("< 10", "10–14", "15–19", "≥ 20")
SAMPLES = 1000
SEED = 12345  # sacrebleu's
Runs = Dict[int, Dict]  # results of one system by seed


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


def _bleus(sums: np.ndarray) -> np.ndarray:
    return np.array([bleu(row) for row in sums])


def by_length(runs: Runs) -> List[Tuple[int, List[float]]]:
    """Buckets of the sentences of both test sets by source length, with the bounds :data:`BOUNDS`: the number of
    sentences, and BLEU of each seed."""
    found = []
    for low, high in zip([0, *BOUNDS], [*BOUNDS, 10**6]):
        scores = []
        for run in runs.values():
            lengths = np.array([length for test in run["test"].values() for length in decode(test["source_lengths"])])
            chosen = rows(run, list(run["test"]))[(lengths >= low) & (lengths < high)]
            scores.append(bleu(chosen.sum(0)) if len(chosen) else 0.0)
        found.append((len(chosen), scores))
    return found


def coupling(table: List[List[float]]) -> float:
    """J = b₀₀ + b₁₁ − b₀₁ − b₁₀: the only part of a table of pairwise potentials that couples neighbours."""
    return table[0][0] + table[1][1] - table[0][1] - table[1][0]


def bias(table: List[List[float]]) -> float:
    """The score that the table adds to selecting a position between two that are not selected."""
    return table[0][1] + table[1][0] - 2 * table[0][0]
