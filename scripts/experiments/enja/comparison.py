"""What the report says of single systems: BLEU by length, and what a chain's table means."""

from typing import List, Tuple

import numpy as np

from fairseq_structattn.analysis.kept_statistics import decode
from fairseq_structattn.analysis.paired_tests import bleu
from fairseq_structattn.analysis.system_differences import Runs, rows

BOUNDS = (10, 15, 20)  # characters of a source sentence
BOUND_LABELS = ("< 10", "10–14", "15–19", "≥ 20")


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
