"""Translations that were never made by a model, and the files of runs with their scores."""

import json
import random
from typing import Dict, List

from fairseq_structattn.analysis.translation_run import scores, write_compact

WORDS = "the a cat dog sees runs and two of them very slowly".split()
VERSIONS = {"python": "3.11.7", "sacrebleu": "2.6.0"}


def sentences(rng, count):
    return [" ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 9))) for _ in range(count)]


def spoiled(rng, lines, share):
    return [" ".join(rng.choice(WORDS) if rng.random() < share else word for word in line.split()) for line in lines]


def tests() -> Dict[str, List[str]]:
    """References of two test sets."""
    rng = random.Random(5)
    return {"test": sentences(rng, 30), "test2": sentences(rng, 50)}


def scored(rng, references: Dict[str, List[str]], share: float) -> Dict[str, Dict]:
    """Scores of translations of which a share of words is wrong; the last source of each set is short."""
    lines = {test: [" ".join("x" * 12)] * (len(own) - 1) + ["x x"] for test, own in references.items()}
    return {test: scores(spoiled(rng, own, share), own, lines[test]) for test, own in references.items()}


def epoch(number: int, **further) -> Dict:
    return {"train_nll": 4, "valid_nll": 4 - number / 2, "valid_bleu": 9.0 + number, "seconds": 7, **further}


def write_trials(folder, names: List[str], best: int) -> None:
    """Files of trials of one system, of which one is the best."""
    folder.mkdir(exist_ok=True)
    for number, name in enumerate(names):
        epochs = [{**epoch(1), "valid_nll": 2.0 if number == best else 3.0}]
        (folder / f"{name}-1.json").write_text(json.dumps({"name": name, "seed": 1, "epochs": epochs}))


def write_run(folder, name: str, seed: int, share: float, **further) -> None:
    """The file of a run that has a share of words wrong."""
    rng = random.Random(f"{name}{seed}")
    about = {"name": name, "seed": seed, "kind": "final", "fingerprint": "0", "options": "", "versions": VERSIONS}
    content = {**about, "machine": "a machine", "epochs": [epoch(1), epoch(2)], "test": scored(rng, tests(), share)}
    write_compact(str(folder / f"{name}-{seed}.json"), {**content, **further})
