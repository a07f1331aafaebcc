"""Paired tests of BLEU: the probability of a difference at least as large between equally good systems.

A p-value is (c + 1) / (N + 1), where c of N trials have a difference that is at least as large, ties included
(Riezler & Maxwell 2005, On Some Pitfalls in Automatic Evaluation and Significance Testing for MT, figures 1 and 2): two
identical systems have p = 1. Tests are two-sided.

The tests of sacrebleu (2.6.0) differ. They count only strictly larger differences, so that identical systems have
p = 1 / (N + 1); and its bootstrap takes absolute values before it centres the differences, so that one in ten pairs of
equal systems, not one in twenty, has p < 0.05.
"""

from typing import Iterator, List

import numpy as np

DEFAULT_TRIALS = {"ar": 10000, "bs": 1000}
# p cannot fall below 1 / (N + 1).
LEAST_TRIALS = 100
# In points of BLEU: differences by rounding alone, from another order of summation, are ties.
TIE = 1e-9


def sentence_statistics(lines: List[str], references: List[str], tokenize: str) -> np.ndarray:
    """Sufficient statistics of BLEU ``[sentences, 10]``: matches and candidates of 1 to 4 words, and the lengths of
    translation and reference. BLEU of any set of sentences is computed from their sum, see :func:`bleu`."""
    from sacrebleu.metrics import BLEU

    # effective_order has no influence on the counts; without it sacrebleu warns
    metric = BLEU(tokenize=tokenize, effective_order=True)
    scores = [metric.sentence_score(line, [reference]) for line, reference in zip(lines, references)]
    return np.array([[*score.counts, *score.totals, score.sys_len, score.ref_len] for score in scores], dtype=np.int64)


def bleu(statistics: np.ndarray) -> float:
    """sacrebleu's BLEU from summed statistics ``[10]``."""
    from sacrebleu.metrics import BLEU

    order = (len(statistics) - 2) // 2
    numbers = statistics.tolist()
    counts, totals, lengths = numbers[:order], numbers[order : 2 * order], numbers[2 * order :]
    return BLEU.compute_bleu(counts, totals, *lengths, smooth_method="exp").score


def p_value(kind: str, baseline: np.ndarray, system: np.ndarray, trials: int, seed: int) -> float:
    """p of the difference between two systems.

    Args:
        kind: ``"ar"``, approximate randomisation, which is right for any number of sentences; or ``"bs"``, paired
            bootstrap resampling (Koehn 2004), whose p-values are too small for few sentences
        baseline, system: :func:`sentence_statistics`
        trials: number of shuffles or resamples
        seed: of the random numbers
    """
    difference = bleu(system.sum(0)) - bleu(baseline.sum(0))
    draw, centre = {"ar": (_shuffled, 0.0), "bs": (_resampled, difference)}[kind]
    drawn = draw(baseline, system, trials, seed)
    as_large = sum(abs(bleu(two) - bleu(one) - centre) >= abs(difference) - TIE for one, two in drawn)
    return (as_large + 1) / (trials + 1)


def _shuffled(baseline: np.ndarray, system: np.ndarray, trials: int, seed: int) -> Iterator:
    """Summed statistics of two systems after each translation is exchanged with probability 1/2."""
    generator = np.random.default_rng(seed)
    both = baseline.sum(0) + system.sum(0)
    for _ in range(trials):
        one = np.where(generator.integers(2, size=(len(baseline), 1), dtype=bool), system, baseline).sum(0)
        yield one, both - one


def _resampled(baseline: np.ndarray, system: np.ndarray, trials: int, seed: int) -> Iterator:
    """Summed statistics of both systems on sentences drawn with replacement."""
    generator = np.random.default_rng(seed)
    for _ in range(trials):
        chosen = generator.integers(len(baseline), size=len(baseline))
        yield baseline[chosen].sum(0), system[chosen].sum(0)
