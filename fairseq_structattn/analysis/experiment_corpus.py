"""Data of experiments with translation: a second test set from the training pairs, and the fingerprint of the text."""

import hashlib
import os
from collections import Counter
from typing import Dict, List, Sequence, Tuple

from fairseq_structattn.analysis.files import write_lines
from fairseq_structattn.analysis.parallel_text import check_aligned, read_sentences

SPLITS = ("train", "valid", "test", "test2")
AS_PREPARED = ("train", "valid", "test", "test1")  # as parallel_corpus.py calls them


def split(sources: List[str], targets: List[str], count: int) -> Tuple[List[int], List[int]]:
    """Numbers of the pairs to train on, and of the last `count` whose target sentence no other pair has."""
    known = Counter(targets)
    held_out = [number for number, target in enumerate(targets) if known[target] == 1][-count:]
    apart = set(held_out)
    return [number for number in range(len(sources)) if number not in apart], held_out


def read_pair(prefix: str, languages: Sequence[str]) -> Tuple[List[str], List[str]]:
    """Source and target sentences of PREFIX.<lang>.

    Raises:
        InputError: a file is missing, has an empty line, or not as many lines as the other
    """
    paths = [f"{prefix}.{language}" for language in languages]
    sentences = {path: read_sentences(path) for path in paths}
    check_aligned(sentences)
    return sentences[paths[0]], sentences[paths[1]]


def write_splits(prefixes: Dict[str, str], languages: Sequence[str], dest: str, held_out: int) -> None:
    """Writes the text of :data:`SPLITS`, of which test2 is taken from the training pairs.

    Args:
        prefixes: of train, valid and test, by split
        languages: source and target
        dest: a folder, which is made
        held_out: pairs of test2
    """
    os.makedirs(dest, exist_ok=True)
    pairs = {name: read_pair(prefix, languages) for name, prefix in prefixes.items()}
    sources, targets = pairs["train"]
    for name, numbers in zip(("train", "test2"), split(sources, targets, held_out)):
        pairs[name] = [sources[number] for number in numbers], [targets[number] for number in numbers]
    for name, sides in pairs.items():
        for language, sentences in zip(languages, sides):
            write_lines(os.path.join(dest, f"{name}.{language}"), sentences)


def preparing(raw: str, languages: Sequence[str], dest: str) -> List[str]:
    """Arguments of parallel_corpus.py for the splits in `raw`, without those that say what a token is."""
    source, target = languages
    words = ["--source-lang", source, "--target-lang", target, "--dest", dest]
    train, valid, *tests = (os.path.join(raw, name) for name in SPLITS)
    return [*words, "--train", train, "--valid", valid, "--test", *tests]


def write_fingerprint(folder: str, languages: Sequence[str]) -> None:
    """Writes the fingerprint of the text that was binarised: a run is repeated when it changes."""
    found = hashlib.sha256()
    for name in AS_PREPARED:
        for language in languages:
            with open(os.path.join(folder, f"{name}.{language}"), "rb") as file:
                found.update(file.read())
    write_lines(os.path.join(folder, "fingerprint"), [found.hexdigest()[:16]])
