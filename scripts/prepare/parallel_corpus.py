"""Checks a parallel corpus, tokenises it and binarises it for fairseq-train.

Each split is a pair of files PREFIX.<lang>, one sentence a line, line n of one being the translation of line n of the
other. Writes train, valid and test .<lang> and the binarised bin/ into the folder of --dest. What would silently spoil
a training is refused with file and line: files of unequal length, text that is not UTF-8, empty lines, and tokens that
fairseq would take for its own marks of padding and of the end of a sentence. Files may be packed by gzip.
"""

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
from collections import Counter
from typing import Callable, Dict, List

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from files import InputError, check_output_folders, command, read_lines, write_lines  # noqa: E402

MARKS = ("<pad>", "</s>")


class CorpusError(InputError):
    """What is wrong with a corpus, where, and what to do about it."""


def read_sentences(path: str) -> List[str]:
    """The lines of a file, refused where they are not UTF-8 or hold no token."""
    sentences = read_lines(path)
    if not sentences:
        raise CorpusError(f"{path}: the file is empty")
    for number, sentence in enumerate(sentences, start=1):
        if not sentence.strip():
            raise CorpusError(
                f"{path}, line {number}: empty line; remove it here and in the file of the other language"
            )
    return sentences


def check_tokens(path: str, sentences: List[str]) -> None:
    """Refuses tokens that fairseq-preprocess would give the numbers of its own marks: models would skip them."""
    for number, sentence in enumerate(sentences, start=1):
        for mark in set(MARKS).intersection(sentence.split()):
            raise CorpusError(
                f"{path}, line {number}: the token {mark} means something else to fairseq; write it otherwise, for "
                f"example {mark.replace('<', '&lt;').replace('>', '&gt;')}"
            )


def check_aligned(sentences: Dict[str, List[str]]) -> None:
    """Refuses files of unequal length: from the first lost line on, every pair would be wrong."""
    counts = {path: len(lines) for path, lines in sentences.items()}
    if len(set(counts.values())) > 1:
        listed = " but ".join(f"{path} has {count:,} lines" for path, count in counts.items())
        raise CorpusError(f"{listed}: line n of one must translate line n of the other")


def as_words(sentence: str) -> str:
    """The tokens as they are, with exactly one space between two of them."""
    return " ".join(sentence.split())


def as_characters(sentence: str) -> str:
    """One token a character; spaces, which only show somebody's segmentation, are dropped."""
    return " ".join("".join(sentence.split()))


def describe(sentences: List[str]) -> str:
    lengths = [len(sentence.split()) for sentence in sentences]
    types = Counter(token for sentence in sentences for token in sentence.split())
    return f"{len(sentences):10,} {sum(lengths):12,} {len(types):9,} {max(lengths):9,}"


def prepare_split(prefix: str, tokenisers: Dict[str, Callable[[str], str]]) -> Dict[str, List[str]]:
    """Reads, checks and tokenises PREFIX.<lang> of every language: language -> sentences."""
    raw = {f"{prefix}.{language}": read_sentences(f"{prefix}.{language}") for language in tokenisers}
    check_aligned(raw)
    tokenised = {
        language: [tokenise(sentence) for sentence in raw[f"{prefix}.{language}"]]
        for language, tokenise in tokenisers.items()
    }
    for language, sentences in tokenised.items():
        check_tokens(f"{prefix}.{language}", sentences)
    return tokenised


def binarise(dest: str, source_lang: str, target_lang: str, source_threshold: int, target_threshold: int) -> None:
    """fairseq-preprocess into dest/bin, which is replaced as a whole once it is complete."""
    output = os.path.join(dest, "bin")
    shutil.rmtree(output + ".tmp", ignore_errors=True)
    command = [sys.executable, "-m", "fairseq_cli.preprocess"]
    command += ["--source-lang", source_lang, "--target-lang", target_lang]
    for split in ("train", "valid", "test"):
        command += [f"--{split}pref", os.path.join(dest, split)]
    command += ["--thresholdsrc", str(source_threshold), "--thresholdtgt", str(target_threshold)]
    command += ["--destdir", output + ".tmp", "--workers", "2"]
    if subprocess.run(command).returncode != 0:
        raise CorpusError(f"fairseq-preprocess failed; its message is above, its command was: {' '.join(command)}")
    shutil.rmtree(output, ignore_errors=True)
    os.replace(output + ".tmp", output)


def parse_arguments(arguments=None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source-lang", required=True, metavar="LANG")
    parser.add_argument("--target-lang", required=True, metavar="LANG")
    for split in ("train", "valid", "test"):
        parser.add_argument(f"--{split}", required=True, metavar="PREFIX", help=f"PREFIX.<lang> are the {split} files")
    parser.add_argument("--dest", required=True, metavar="DIR", help="where the prepared corpus is written")
    for side in ("source", "target"):
        tokens = parser.add_mutually_exclusive_group()
        tokens.add_argument(
            f"--{side}-characters",
            dest=f"{side}_tokeniser",
            action="store_const",
            const=as_characters,
            help=f"one {side} character a token, spaces removed",
        )
        tokens.add_argument(
            f"--{side}-words",
            dest=f"{side}_tokeniser",
            action="store_const",
            const=as_words,
            help=f"the {side} tokens as they are (default)",
        )
        parser.set_defaults(**{f"{side}_tokeniser": as_words})
        parser.add_argument(
            f"--{side}-threshold",
            type=int,
            default=2,
            metavar="N",
            help=f"{side} types seen fewer times in the training set become <unk> (default: 2; 1 keeps all)",
        )
    return parser.parse_args(arguments)


def check_fairseq() -> None:
    if importlib.util.find_spec("fairseq_cli") is None:
        raise CorpusError(
            f"{sys.executable} has no fairseq; run scripts/install.sh or name a Python that has it: PYTHON=/path"
        )


@command
def main(arguments=None) -> None:
    options = parse_arguments(arguments)
    tokenisers = {options.source_lang: options.source_tokeniser, options.target_lang: options.target_tokeniser}
    # everything is checked before anything is written
    check_fairseq()
    check_output_folders({"--dest": options.dest})
    splits = {split: prepare_split(getattr(options, split), tokenisers) for split in ("train", "valid", "test")}
    print(f"{'file':12} {'sentences':>10} {'tokens':>12} {'types':>9} {'longest':>9}")
    for split, languages in splits.items():
        for language, sentences in languages.items():
            write_lines(os.path.join(options.dest, f"{split}.{language}"), sentences)
            print(f"{split + '.' + language:12} {describe(sentences)}", flush=True)
    binarise(
        options.dest,
        options.source_lang,
        options.target_lang,
        options.source_threshold,
        options.target_threshold,
    )
    print(f"prepared: {options.dest}, binarised: {os.path.join(options.dest, 'bin')}")


if __name__ == "__main__":
    main()
