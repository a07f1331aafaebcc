"""Translations that were never made by a model, and the files of runs with their scores."""

import random
from typing import Dict, List

from fairseq_structattn.analysis.translation_run import scores

WORDS = "the a cat dog sees runs and two of them very slowly".split()
VERSIONS = {"python": "3.11.7", "sacrebleu": "2.6.0"}


def sentences(rng, count):
    return [" ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 9))) for _ in range(count)]


def spoiled(rng, lines, share):
    return [" ".join(rng.choice(WORDS) if rng.random() < share else word for word in line.split()) for line in lines]


def tests(seed: int = 5) -> Dict[str, List[str]]:
    """References of two test sets."""
    rng = random.Random(seed)
    return {"test": sentences(rng, 30), "test2": sentences(rng, 50)}


def scored(rng, references: Dict[str, List[str]], share: float) -> Dict[str, Dict]:
    """Scores of translations of which a share of words is wrong; the last source of each set is short."""
    lines = {test: [" ".join("x" * 12)] * (len(own) - 1) + ["x x"] for test, own in references.items()}
    return {test: scores(spoiled(rng, own, share), own, lines[test]) for test, own in references.items()}
