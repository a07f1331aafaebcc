"""Prepares the data that runs need, each in a folder of WORK_DIR with its fingerprint.

    python scripts/experiments/snli/prepare.py WORK_DIR NAME ... [--corpus DIR] [--treebank DIR] [--multi30k DIR]

NAME is a run. Existing folders stay as they are.
"""

import argparse
import glob
import hashlib
import os
import re
import shutil
import subprocess
import sys
from typing import List

from systems import TEACHER, WITH_TREES, data_of, teacher

from fairseq_structattn.analysis.files import InputError, command, write_lines

HERE = os.path.dirname(os.path.abspath(__file__))
SCRIPTS = os.path.join(HERE, "..", "..")
# Rows of the development set, whose pairs are the only labelled ones without the training set, apart from the test set.
# The two parts have different premises.
ROWS = {"train": "0:8842", "valid": "8842:9842"}
SPLITS = ("train", "valid", "test")


def call(script: str, *arguments: str) -> None:
    """Runs a script of scripts/prepare, and prints what it left out."""
    words = [sys.executable, os.path.join(SCRIPTS, "prepare", script), *arguments]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise InputError(re.sub(r"(?m)^error: ", "", done.stdout[-3000:]))
    print("".join(f"{line}\n" for line in done.stdout.splitlines() if line.startswith((*SPLITS, "  left out"))), end="")


def given(folder: str, option: str, name: str) -> str:
    """The file `name`, or its compressed form, in a folder that an option names."""
    found = [path for path in (os.path.join(folder or "", name), os.path.join(folder or "", f"{name}.gz"))
             if os.path.exists(path)]  # fmt: skip
    if not folder or not found:
        raise InputError(
            f"{option} {folder or ''}: no {name} there; see {os.path.relpath(HERE)}/README.md for the data"
        )
    return found[0]


def prepare_treebank(options: argparse.Namespace, name: str, dest: str) -> None:
    _, trees, case = name.split(".")
    words = []
    for split, part in zip(SPLITS, ("train", "dev", "test")):
        words += [f"--{split}", given(options.treebank, "--treebank", f"en_ewt-ud-{part}.conllu")]
    words += ["--lowercase"] if case == "lower" else []
    call("conllu.py", *words, "--crossing", "drop" if trees == "projective" else "keep", "--dest", dest)


def prepare_pairs(options: argparse.Namespace, dest: str) -> None:
    words = []
    for split, part in zip(SPLITS, ("dev", "dev", "test")):
        files = [given(options.corpus, "--corpus", f"{side}.{part}") for side in ("s1", "s2", "labels")]
        words += [f"--{split}", ",".join(files)]
        words += [f"--{split}-rows", ROWS[split]] if split in ROWS and not options.tiny else []
    call("snli.py", *words, "--dest", f"{dest}.cased")
    call("snli.py", *words, "--lowercase", "--dest", dest)
    _keep_cased(f"{dest}.cased", dest)
    shutil.rmtree(f"{dest}.cased")


def prepare_published(options: argparse.Namespace, dest: str) -> None:
    words = []
    for split, part in zip(SPLITS, ("train", "dev", "test")):
        words += [f"--{split}", given(options.corpus, "--corpus", f"snli_1.0_{part}.jsonl")]
    call("snli.py", *words, "--all-words", "--dest", dest)
    _keep_cased(dest, dest)


def _keep_cased(source: str, dest: str) -> None:
    """Copies the sentences with capital letters, for parsers."""
    for split in SPLITS:
        for side in ("premise", "hypothesis"):
            shutil.copy(os.path.join(source, f"{split}.{side}"), os.path.join(dest, f"{split}.{side}.cased"))


def prepare_translation(options: argparse.Namespace, dest: str) -> None:
    words = ["--source-lang", "en", "--target-lang", "de", "--dest", dest]
    for split, part in zip(SPLITS, ("train", "val", "test_2016_flickr")):
        path = given(options.multi30k, "--multi30k", os.path.join("tok", f"{part}.lc.norm.tok.en"))
        words += [f"--{split}", path[: path.rindex(".en")]]
    call("parallel_corpus.py", *words)


def fingerprint(folder: str) -> str:
    """The fingerprint of all files in a folder."""
    found = hashlib.sha256()
    for path in sorted(glob.glob(os.path.join(folder, "*"))):
        if os.path.isfile(path):
            with open(path, "rb") as file:
                found.update(os.path.basename(path).encode() + hashlib.sha256(file.read()).digest())
    return found.hexdigest()[:16]


def needed(names: List[str]) -> List[str]:
    """Folders that runs need, with those of their parsers and of the trees with which they are compared."""
    folders = []
    for name in names:
        folders += [data_of(name)] + [data_of(parser) for parser in [teacher(name)] if parser]
        kind, _, system = name.partition(".")
        folders += [data_of(TEACHER)] if kind in ("pairs", "published") and system in WITH_TREES else []
    return list(dict.fromkeys(folders))


@command
def main(arguments=None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", metavar="WORK_DIR")
    parser.add_argument("names", nargs="+", metavar="NAME")
    for option in ("--corpus", "--treebank", "--multi30k"):
        parser.add_argument(option, metavar="DIR")
    parser.add_argument("--tiny", action="store_true", help="all rows in both parts")
    options = parser.parse_args(arguments)
    for name in needed(options.names):
        folder = os.path.join(options.work, name)
        if os.path.exists(os.path.join(folder, "fingerprint")):
            continue
        print(f"== data: {name}", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        if name.startswith("treebank."):
            prepare_treebank(options, name, folder)
        else:
            {"pairs": prepare_pairs, "published": prepare_published, "translation": prepare_translation}[name](
                options, folder
            )
        write_lines(os.path.join(folder, "fingerprint"), [fingerprint(folder)])


if __name__ == "__main__":
    main()
