"""Prepares Multi30k for this experiment: a second test set, and both languages in the pieces of one model.

python scripts/experiments/transformer/prepare.py MULTI30K_DIR WORK_DIR
"""

import argparse
import os
import subprocess
import sys

from transformer_settings import CORPORA, PIECES, text_folder

from fairseq_structattn.analysis.experiment_corpus import preparing, write_fingerprint, write_splits
from fairseq_structattn.analysis.files import InputError, command

HERE = os.path.dirname(os.path.abspath(__file__))
PREPARE = os.path.join(HERE, "..", "..", "prepare", "parallel_corpus.py")
HELD_OUT = 1000
FILES = {"train": "train", "valid": "val", "test": "test_2016_flickr"}  # tok/FILE.lc.norm.tok.<lang>


@command
def main(arguments=None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", metavar="MULTI30K_DIR", help="folder with tok/train.lc.norm.tok.en and others")
    parser.add_argument("work", metavar="WORK_DIR")
    parser.add_argument("--held-out", type=int, default=HELD_OUT, metavar="N", help="pairs (default: %(default)s)")
    parser.add_argument("--pieces", default=PIECES, metavar="N", help="of both languages (default: %(default)s)")
    options = parser.parse_args(arguments)
    corpus = CORPORA["multi30k"]
    dest, raw = os.path.join(options.work, corpus.data), text_folder("multi30k", options.work)
    prefixes = {split: os.path.join(options.corpus, "tok", f"{file}.lc.norm.tok") for split, file in FILES.items()}
    write_splits(prefixes, corpus.languages, raw, options.held_out)
    call = [sys.executable, PREPARE, *preparing(raw, corpus.languages, dest)]
    if subprocess.run([*call, "--joint-sentencepiece", options.pieces, "--character-coverage", "1.0"]).returncode != 0:
        raise InputError(f"{dest}: could not be prepared, the reason is above")
    write_fingerprint(dest, corpus.languages)


if __name__ == "__main__":
    main()
