"""Prepares the data of this experiment: a second test set, and the Japanese side as characters, words and pieces.

python scripts/experiments/enja/prepare.py CORPUS_DIR WORK_DIR [SIDE ...]
"""

import argparse
import hashlib
import os
import subprocess
import sys
from collections import Counter
from typing import List, Tuple

from settings import SIDES

from fairseq_structattn.analysis.files import InputError, command, write_lines
from fairseq_structattn.analysis.parallel_text import check_aligned, read_sentences

HERE = os.path.dirname(os.path.abspath(__file__))
SCRIPTS = os.path.join(HERE, "..", "..")
PREPARE = os.path.join(SCRIPTS, "prepare")
HELD_OUT = 2000
SOURCE_OPTIONS = {
    "char": ["--source-characters"],
    "word": ["--source-words"],
    "pieces": ["--source-joined", "--source-sentencepiece", "4000", "--character-coverage", "1.0"],
}


def split(sources: List[str], targets: List[str], count: int) -> Tuple[List[int], List[int]]:
    """Numbers of the pairs to train on, and of the last `count` whose target sentence no other pair has."""
    known = Counter(targets)
    held_out = [number for number, target in enumerate(targets) if known[target] == 1][-count:]
    apart = set(held_out)
    return [number for number in range(len(sources)) if number not in apart], held_out


def read_pair(prefix: str) -> Tuple[List[str], List[str]]:
    paths = [f"{prefix}.ja", f"{prefix}.en"]
    sentences = {path: read_sentences(path) for path in paths}
    check_aligned(sentences)
    return sentences[paths[0]], sentences[paths[1]]


def write_raw(corpus: str, raw: str, held_out: int) -> None:
    """Writes the text of the four splits."""
    os.makedirs(raw, exist_ok=True)
    sources, targets = read_pair(os.path.join(corpus, "train"))
    pairs = {"valid": read_pair(os.path.join(corpus, "dev")), "test": read_pair(os.path.join(corpus, "test"))}
    for name, numbers in zip(("train", "test2"), split(sources, targets, held_out)):
        pairs[name] = [sources[number] for number in numbers], [targets[number] for number in numbers]
    for name, (source, target) in pairs.items():
        write_lines(os.path.join(raw, f"{name}.ja"), source)
        write_lines(os.path.join(raw, f"{name}.en"), target)


def prepare_side(raw: str, dest: str, side: str) -> None:
    """Tokenises and binarises; fairseq calls the second test set ``test1``."""
    call = [sys.executable, os.path.join(PREPARE, "parallel_corpus.py")]
    call += ["--source-lang", "ja", "--target-lang", "en"]
    call += ["--train", f"{raw}/train", "--valid", f"{raw}/valid", "--test", f"{raw}/test", f"{raw}/test2"]
    if subprocess.run([*call, *SOURCE_OPTIONS[side], "--dest", dest]).returncode != 0:
        raise InputError(f"{dest}: could not be prepared, the reason is above")


def fingerprint(folder: str) -> str:
    """The fingerprint of the text from which a side was binarised."""
    found = hashlib.sha256()
    for name in ("train", "valid", "test", "test1"):
        for language in ("ja", "en"):
            with open(os.path.join(folder, f"{name}.{language}"), "rb") as file:
                found.update(file.read())
    return found.hexdigest()[:16]


@command
def main(arguments=None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", metavar="CORPUS_DIR", help="folder with train, dev and test, each .ja and .en")
    parser.add_argument("work", metavar="WORK_DIR")
    parser.add_argument("sides", nargs="*", metavar="SIDE", default=SIDES, help=f"{', '.join(SIDES)} (default: all)")
    parser.add_argument("--held-out", type=int, default=HELD_OUT, metavar="N", help="pairs (default: %(default)s)")
    options = parser.parse_args(arguments)
    raw = os.path.join(options.work, "raw")
    write_raw(options.corpus, raw, options.held_out)
    for side in options.sides:
        folder = os.path.join(options.work, side)
        prepare_side(raw, folder, side)
        write_lines(os.path.join(folder, "fingerprint"), [fingerprint(folder)])


if __name__ == "__main__":
    main()
