"""Checks a parallel corpus, tokenises it and binarises it for fairseq-train.

Each split is a pair of files PREFIX.<lang>, one sentence a line, line n of one being the translation of line n of the
other. Writes train, valid and test .<lang> (and test1, … for further test sets) and the binarised bin/ into the folder
of --dest. Data that would silently spoil a training are refused with file and line: files of unequal length, text that
is not UTF-8, empty lines, and tokens that fairseq would take for its own symbols of padding and of the end of a
sentence. Files may be compressed with gzip, and may then be called PREFIX.<lang>.gz.

Subwords of sentencepiece (extra `subwords`): --source-sentencepiece 8000 learns a model of 8000 pieces from the
training sentences, --target-sentencepiece too, --joint-sentencepiece one for both languages; instead of a number they
take an existing model. Learned models are kept in DIR as sentencepiece.<lang>.model or sentencepiece.model, and are not
learned again from the same text. The dictionaries of fairseq hold the pieces of the model.
"""

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
from collections import Counter
from typing import Callable, Dict, List

from subwords import TYPES, Settings, Subwords, build

from fairseq_structattn.analysis.files import InputError, check_output_folders, command, write_lines
from fairseq_structattn.analysis.parallel_text import CorpusError, check_aligned, read_sentences

MARKS = ("<pad>", "</s>")
SIDES = {"source": "src", "target": "tgt"}  # as fairseq-preprocess abbreviates them


def check_tokens(path: str, sentences: List[str]) -> None:
    """Refuses tokens that fairseq-preprocess would give the numbers of its own marks: models would skip them."""
    for number, sentence in enumerate(sentences, start=1):
        for mark in set(MARKS).intersection(sentence.split()):
            raise CorpusError(
                f"{path}, line {number}: the token {mark} means something else to fairseq; write it otherwise, for "
                f"example {mark.replace('<', '&lt;').replace('>', '&gt;')}"
            )


def as_words(sentence: str) -> str:
    """The tokens as they are, with exactly one space between two of them."""
    return " ".join(sentence.split())


def as_characters(sentence: str) -> str:
    """One token a character; spaces, which only show somebody's segmentation, are dropped."""
    return " ".join("".join(sentence.split()))


def as_joined(sentence: str) -> str:
    """No spaces at all: for sentencepiece to find pieces of its own where spaces only show somebody's segmentation."""
    return "".join(sentence.split())


def describe(sentences: List[str]) -> str:
    lengths = [len(sentence.split()) for sentence in sentences]
    types = Counter(token for sentence in sentences for token in sentence.split())
    return f"{len(sentences):10,} {sum(lengths):12,} {len(types):9,} {max(lengths):9,}"


def sentence_file(prefix: str, language: str) -> str:
    """PREFIX.<lang>, or PREFIX.<lang>.gz if only that is there."""
    plain = f"{prefix}.{language}"
    return f"{plain}.gz" if os.path.exists(f"{plain}.gz") and not os.path.exists(plain) else plain


def prepare_split(prefix: str, tokenisers: Dict[str, Callable[[str], str]]) -> Dict[str, List[str]]:
    """Reads, checks and tokenises PREFIX.<lang> of every language: language -> sentences."""
    paths = {language: sentence_file(prefix, language) for language in tokenisers}
    raw = {path: read_sentences(path) for path in paths.values()}
    check_aligned(raw)
    tokenised = {
        language: [tokenise(sentence) for sentence in raw[paths[language]]] for language, tokenise in tokenisers.items()
    }
    for language, sentences in tokenised.items():
        check_tokens(paths[language], sentences)
    return tokenised


def subword_settings(options: argparse.Namespace) -> Dict[str, Settings]:
    """What sentencepiece is asked for, by language; the same for both if it is to be one model.

    Raises:
        InputError: options that exclude each other
    """
    sides = {"source": options.source_lang, "target": options.target_lang}
    asked = {side: getattr(options, f"{side}_sentencepiece") for side in (*sides, "joint")}
    if asked["joint"] and (asked["source"] or asked["target"]):
        raise InputError(
            "--joint-sentencepiece: a model for both sides; leave out --source- and --target-sentencepiece"
        )
    found = {}
    for side, language in sides.items():
        name = "joint" if asked["joint"] else side
        tokeniser = getattr(options, f"{side}_tokeniser")
        if asked[name] and tokeniser is as_characters:
            raise InputError(f"--{side}-characters: not with --{name}-sentencepiece; --{side}-joined drops the spaces")
        if not asked[name] and tokeniser is as_joined:
            raise InputError(f"--{side}-joined: makes one token of a sentence; add --{side}-sentencepiece")
        if asked[name]:
            option = f"--{name}-sentencepiece"
            found[language] = Settings(option, asked[name], options.character_coverage, options.sentencepiece_type)
    return found


def build_subwords(
    settings: Dict[str, Settings], sentences: Dict[str, List[str]], dest: str, joint: bool
) -> Dict[str, Subwords]:
    """The models by language, learned from training sentences."""
    if joint:
        both = [sentence for language in settings for sentence in sentences[language]]
        own = next(iter(settings.values()))
        return dict.fromkeys(settings, build(own, os.path.join(dest, "sentencepiece.model"), both))
    return {
        language: build(own, os.path.join(dest, f"sentencepiece.{language}.model"), sentences[language])
        for language, own in settings.items()
    }


def split_into_pieces(subwords: Subwords, path: str, sentences: List[str]) -> List[str]:
    """The pieces of each sentence; refuses a sentence without any piece."""
    found = [subwords.split(sentence) for sentence in sentences]
    for number, pieces in enumerate(found, start=1):
        if not pieces:
            raise CorpusError(
                f"{path}, line {number}: only characters that sentencepiece drops; remove it here and in the other file"
            )
    return found


def write_dictionaries(subwords: Dict[str, Subwords], train: Dict[str, List[str]], dest: str) -> Dict[str, str]:
    """Dictionaries of pieces by language; of one model, with the counts of both."""
    paths = {}
    for language, own in subwords.items():
        shared = [other for other in subwords if subwords[other] is own]
        paths[language] = os.path.join(dest, f"dict.{language}.txt")
        own.write_dictionary(paths[language], [pieces for other in shared for pieces in train[other]])
    return paths


def binarise(
    dest: str, languages: List[str], tests: List[str], thresholds: List[int], dictionaries: Dict[str, str]
) -> None:
    """fairseq-preprocess into dest/bin, which is replaced as a whole once it is complete.

    Args:
        dest: the folder of the prepared text
        languages: source and target
        tests: names of the test sets
        thresholds: of either side
        dictionaries: their paths by language, where they are not to be counted
    """
    output = os.path.join(dest, "bin")
    shutil.rmtree(output + ".tmp", ignore_errors=True)
    command = [sys.executable, "-m", "fairseq_cli.preprocess"]
    for (side, short), language, threshold in zip(SIDES.items(), languages, thresholds):
        command += [f"--{side}-lang", language, f"--threshold{short}", str(threshold)]
        command += [f"--{short}dict", dictionaries[language]] if language in dictionaries else []
    for split, names in (("train", ["train"]), ("valid", ["valid"]), ("test", tests)):
        command += [f"--{split}pref", ",".join(os.path.join(dest, name) for name in names)]
    command += ["--destdir", output + ".tmp", "--workers", "2"]
    if subprocess.run(command).returncode != 0:
        raise CorpusError(f"fairseq-preprocess failed; its message is above, its command was: {' '.join(command)}")
    shutil.rmtree(output, ignore_errors=True)
    os.replace(output + ".tmp", output)


def parse_arguments(arguments=None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source-lang", required=True, metavar="LANG")
    parser.add_argument("--target-lang", required=True, metavar="LANG")
    for split in ("train", "valid"):
        parser.add_argument(f"--{split}", required=True, metavar="PREFIX", help=f"{split} files PREFIX.<lang>")
    parser.add_argument(
        "--test",
        required=True,
        nargs="+",
        metavar="PREFIX",
        help="test files PREFIX.<lang>; fairseq calls further test sets test1, test2, …",
    )
    parser.add_argument("--dest", required=True, metavar="DIR", help="folder for the prepared corpus")
    for side in SIDES:
        tokens = parser.add_mutually_exclusive_group()
        tokens.add_argument(
            f"--{side}-characters",
            dest=f"{side}_tokeniser",
            action="store_const",
            const=as_characters,
            help=f"{side} tokens are characters, without spaces",
        )
        tokens.add_argument(
            f"--{side}-words",
            dest=f"{side}_tokeniser",
            action="store_const",
            const=as_words,
            help=f"{side} tokens stay as they are (default)",
        )
        tokens.add_argument(
            f"--{side}-joined",
            dest=f"{side}_tokeniser",
            action="store_const",
            const=as_joined,
            help="remove spaces before sentencepiece",
        )
        parser.set_defaults(**{f"{side}_tokeniser": as_words})
        parser.add_argument(
            f"--{side}-threshold",
            type=int,
            default=2,
            metavar="N",
            help=f"{side} types with fewer occurrences in the training set become <unk> (default: 2; 1 keeps all)",
        )
    group = parser.add_argument_group("subwords of sentencepiece, instead of tokens and thresholds")
    for side in (*SIDES, "joint"):
        group.add_argument(
            f"--{side}-sentencepiece",
            metavar="N|FILE",
            help=f"learn a {side} model of N pieces, or use the model in a file",
        )
    group.add_argument(
        "--character-coverage",
        type=float,
        default=0.9995,
        metavar="SHARE",
        help="share of the characters of the training text that are pieces (default: 0.9995; 1.0 for alphabets)",
    )
    group.add_argument(
        "--sentencepiece-type", choices=TYPES, default="unigram", help="algorithm of sentencepiece (default: unigram)"
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
    settings = subword_settings(options)
    tests = {f"test{number or ''}": prefix for number, prefix in enumerate(options.test)}
    prefixes = {"train": options.train, "valid": options.valid, **tests}
    splits = {split: prepare_split(prefix, tokenisers) for split, prefix in prefixes.items()}
    subwords = build_subwords(settings, splits["train"], options.dest, bool(options.joint_sentencepiece))
    for language, own in subwords.items():
        for split, prefix in prefixes.items():
            path = sentence_file(prefix, language)
            splits[split][language] = split_into_pieces(own, path, splits[split][language])
    print(f"{'file':12} {'sentences':>10} {'tokens':>12} {'types':>9} {'longest':>9}")
    for split, languages in splits.items():
        for language, sentences in languages.items():
            write_lines(os.path.join(options.dest, f"{split}.{language}"), sentences)
            print(f"{split + '.' + language:12} {describe(sentences)}", flush=True)
    dictionaries = write_dictionaries(subwords, splits["train"], options.dest)
    thresholds = [options.source_threshold, options.target_threshold]
    binarise(options.dest, list(tokenisers), list(tests), thresholds, dictionaries)
    print(f"prepared: {options.dest}, binarised: {os.path.join(options.dest, 'bin')}")


if __name__ == "__main__":
    main()
