"""Prepares the data of this experiment: a second test set, and the Japanese side as characters, words and pieces.

python scripts/experiments/enja/prepare.py CORPUS_DIR WORK_DIR [SIDE ...]
"""

import argparse
import os
import subprocess
import sys

from settings import LANGUAGES, SIDES

from fairseq_structattn.analysis.experiment_corpus import preparing, write_fingerprint, write_splits
from fairseq_structattn.analysis.files import InputError, command

HERE = os.path.dirname(os.path.abspath(__file__))
PREPARE = os.path.join(HERE, "..", "..", "prepare", "parallel_corpus.py")
HELD_OUT = 2000
FILES = {"train": "train", "valid": "dev", "test": "test"}
SOURCE_OPTIONS = {
    "char": ["--source-characters"],
    "word": ["--source-words"],
    "pieces": ["--source-joined", "--source-sentencepiece", "4000", "--character-coverage", "1.0"],
}


def prepare_side(raw: str, dest: str, side: str) -> None:
    """Tokenises and binarises; fairseq calls the second test set ``test1``."""
    call = [sys.executable, PREPARE, *preparing(raw, LANGUAGES, dest), *SOURCE_OPTIONS[side]]
    if subprocess.run(call).returncode != 0:
        raise InputError(f"{dest}: could not be prepared, the reason is above")
    write_fingerprint(dest, LANGUAGES)


@command
def main(arguments=None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", metavar="CORPUS_DIR", help="folder with train, dev and test, each .ja and .en")
    parser.add_argument("work", metavar="WORK_DIR")
    parser.add_argument("sides", nargs="*", metavar="SIDE", default=SIDES, help=f"{', '.join(SIDES)} (default: all)")
    parser.add_argument("--held-out", type=int, default=HELD_OUT, metavar="N", help="pairs (default: %(default)s)")
    options = parser.parse_args(arguments)
    raw = os.path.join(options.work, "raw")
    prefixes = {split: os.path.join(options.corpus, file) for split, file in FILES.items()}
    write_splits(prefixes, LANGUAGES, raw, options.held_out)
    for side in options.sides:
        prepare_side(raw, os.path.join(options.work, side), side)


if __name__ == "__main__":
    main()
