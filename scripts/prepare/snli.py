"""Prepares a corpus of labelled sentence pairs, such as SNLI, for --task structattn_sentence_pair.

    python scripts/prepare/snli.py --train snli_1.0_train.jsonl --valid snli_1.0_dev.jsonl --test snli_1.0_test.jsonl \
        --all-words --dest snli
    python scripts/prepare/snli.py --train s1.dev,s2.dev,labels.dev --train-rows 0:8842 \
        --valid s1.dev,s2.dev,labels.dev --valid-rows 8842:9842 --test s1.test,s2.test,labels.test --dest snli

A split is SNLI's .jsonl, its tab-separated .txt with a header, or three files with a line for each pair, with commas
between their names: premises, hypotheses (words with spaces between) and labels. The tokens of the first two formats
are those of the binary parses. Pairs without a gold label, `-`, are left out and counted.

Writes SPLIT.premise, SPLIT.hypothesis and SPLIT.label into the folder of --dest, and the same, binarised, into bin/.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from typing import Dict, Iterator, List, NamedTuple, Optional, Tuple

from fairseq_structattn.analysis.files import (
    InputError,
    check_inputs,
    check_output_folders,
    command,
    numbered_lines,
    read_lines,
    write_lines,
)

SIDES = ("premise", "hypothesis")
NO_LABEL = "-"
FIELDS = ("sentence1_binary_parse", "sentence2_binary_parse", "gold_label")
# What fairseq would take for its own marks, and what stands for the root of a sentence.
MARKS = ("<s>", "<pad>", "</s>")


class Pair(NamedTuple):
    """A labelled pair, and where it was read."""

    premise: str
    hypothesis: str
    label: str
    place: str


def leaves(parse: str) -> str:
    """The words of a binary parse, ``( ( a dog ) ( runs . ) )``."""
    return " ".join(token for token in parse.split() if token not in "()")


def read_jsonl(path: str) -> Iterator[Pair]:
    """Pairs of a file with an object of JSON in each line."""
    for number, line in numbered_lines(path):
        place = f"{path}, line {number}"
        try:
            record = json.loads(line)
        except ValueError as error:
            raise InputError(f"{place}: not JSON ({error}); was the file cut off?") from None
        missing = [name for name in FIELDS if not isinstance(record, dict) or not isinstance(record.get(name), str)]
        if missing:
            raise InputError(f"{place}: no text under {', '.join(missing)}; is it a file of SNLI?")
        first, second, label = (record[name] for name in FIELDS)
        yield Pair(leaves(first), leaves(second), label, place)


def read_table(path: str) -> Iterator[Pair]:
    """Pairs of a table with tabs between its columns, whose names are in its first line."""
    columns: Dict[str, int] = {}
    for number, line in numbered_lines(path):
        cells = line.rstrip("\r\n").split("\t")
        if number == 1:
            columns = {name: place for place, name in enumerate(cells)}
            missing = [name for name in FIELDS if name not in columns]
            if missing:
                raise InputError(f"{path}, line 1: no column {', '.join(missing)}; is it a table of SNLI?")
        elif len(cells) <= max(columns[name] for name in FIELDS):
            raise InputError(f"{path}, line {number}: {len(cells)} columns, the first line has {len(columns)}")
        else:
            first, second, label = (cells[columns[name]] for name in FIELDS)
            yield Pair(leaves(first), leaves(second), label, f"{path}, line {number}")


def read_parallel(paths: List[str]) -> Iterator[Pair]:
    """Pairs of three files: premises, hypotheses, labels."""
    lines = [read_lines(path) for path in paths]
    if len({len(of_file) for of_file in lines}) > 1:
        counts = ", ".join(f"{path} {len(of_file)}" for path, of_file in zip(paths, lines))
        raise InputError(f"files of unequal length: {counts} lines; line n of each belongs to pair n")
    for number, (first, second, label) in enumerate(zip(*lines), 1):
        yield Pair(" ".join(first.split()), " ".join(second.split()), label.strip(), f"{paths[2]}, line {number}")


def read_pairs(source: str) -> List[Pair]:
    """All pairs of a split, those without a label too.

    Raises:
        InputError: what is wrong in a file, with its line
    """
    parts = source.split(",")
    if len(parts) == 3:
        pairs = read_parallel(parts)
    elif len(parts) == 1:
        pairs = read_jsonl(source) if re.search(r"\.jsonl(\.gz)?$", source) else read_table(source)
    else:
        raise InputError(f"{source}: {len(parts)} files; name one, or premises, hypotheses and labels")
    return list(pairs)


def parse_rows(text: Optional[str], option: str, pairs: int) -> Tuple[int, int]:
    """First row, and that behind the last, of ``FIRST:END``."""
    if text is None:
        return 0, pairs
    match = re.match(r"^(\d+):(\d+)$", text)
    if match is None:
        raise InputError(f"{option} {text}: write FIRST:END, rows counted from 0, END not included")
    first, end = map(int, match.groups())
    if not first < end <= pairs:
        raise InputError(f"{option} {text}: the split has rows 0:{pairs}")
    return first, end


def labelled(pairs: List[Pair], labels: Optional[List[str]]) -> List[Pair]:
    """Pairs with a label, which are checked: labels must be among those given, words none of fairseq's marks."""
    kept = [pair for pair in pairs if pair.label != NO_LABEL]
    for pair in kept:
        if not pair.label or labels is not None and pair.label not in labels:
            known = f"; those of the training data are {', '.join(labels)}" if labels else ""
            raise InputError(f"{pair.place}: {pair.label!r} is no label{known}; write - where there is none")
        for mark in MARKS:
            if mark in pair.premise.split() or mark in pair.hypothesis.split():
                raise InputError(f"{pair.place}: the word {mark} means something else to fairseq; write it otherwise")
    return kept


def lowered(pair: Pair) -> Pair:
    return pair._replace(premise=pair.premise.lower(), hypothesis=pair.hypothesis.lower())


def words_of(pairs: List[Pair]) -> Counter:
    return Counter(word for pair in pairs for side in SIDES for word in getattr(pair, side).split())


def dictionary(splits: Dict[str, List[Pair]], threshold: int, all_words: bool) -> List[str]:
    """Lines of a fairseq dictionary: words and how often the training data has them, the more frequent first."""
    counts = words_of(splits["train"])
    kept = {word: count for word, count in counts.items() if count >= threshold}
    if all_words:
        kept = {word: counts[word] for pairs in splits.values() for word in words_of(pairs)}
    return [f"{word} {count}" for word, count in sorted(kept.items(), key=lambda item: (-item[1], item[0]))]


def binarise(dest: str, splits: List[str]) -> None:
    """fairseq-preprocess into dest/bin, which is replaced as a whole once it is complete."""
    output = os.path.join(dest, "bin")
    shutil.rmtree(output + ".tmp", ignore_errors=True)
    call = [sys.executable, "-m", "fairseq_cli.preprocess", "--source-lang", SIDES[0], "--target-lang", SIDES[1]]
    call += ["--joined-dictionary", "--srcdict", os.path.join(dest, "dict.txt"), "--destdir", output + ".tmp"]
    call += [word for split in splits for word in (f"--{split}pref", os.path.join(dest, split))]
    done = subprocess.run(call, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise InputError(f"fairseq-preprocess failed: {done.stdout[-2000:]}")
    for name in [*(f"{split}.label" for split in splits), "dict.label.txt"]:
        shutil.copy(os.path.join(dest, name), os.path.join(output + ".tmp", name))
    shutil.rmtree(output, ignore_errors=True)
    os.replace(output + ".tmp", output)


def parse_arguments(arguments=None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for split in ("train", "valid", "test"):
        parser.add_argument(
            f"--{split}", required=True, metavar="FILE", help="file in SNLI's format, or PREMISES,HYPOTHESES,LABELS"
        )
        parser.add_argument(f"--{split}-rows", metavar="FIRST:END", help="only these rows, counted from 0")
    parser.add_argument("--dest", required=True, metavar="DIR")
    parser.add_argument(
        "--threshold", type=int, default=1, metavar="N", help="training words with a lower count become <unk>"
    )
    parser.add_argument("--lowercase", action="store_true", help="convert words to lower case")
    parser.add_argument(
        "--all-words",
        action="store_true",
        help="the dictionary has the words of all splits, not only of the training set: for word vectors from a file "
        "(--embed-path)",
    )
    return parser.parse_args(arguments)


@command
def main(arguments=None) -> None:
    options = parse_arguments(arguments)
    sources = {split: getattr(options, split) for split in ("train", "valid", "test")}
    for split, source in sources.items():
        for path in source.split(","):
            check_inputs({f"--{split}": path})
    check_output_folders({"--dest": options.dest})
    splits: Dict[str, List[Pair]] = {}
    labels: Optional[List[str]] = None
    for split, source in sources.items():
        pairs = read_pairs(source)
        first, end = parse_rows(getattr(options, f"{split}_rows"), f"--{split}-rows", len(pairs))
        splits[split] = labelled(pairs[first:end], labels)
        if options.lowercase:
            splits[split] = [lowered(pair) for pair in splits[split]]
        if not splits[split]:
            raise InputError(f"--{split} {source}: no pair with a label")
        labels = labels or sorted({pair.label for pair in splits[split]})
        print(f"{split}: {len(splits[split]):,} pairs, {end - first - len(splits[split]):,} without a label left out")
    for split, pairs in splits.items():
        for side in (*SIDES, "label"):
            write_lines(os.path.join(options.dest, f"{split}.{side}"), [getattr(pair, side) for pair in pairs])
    counts = Counter(pair.label for pair in splits["train"])
    write_lines(os.path.join(options.dest, "dict.label.txt"), [f"{label} {counts[label]}" for label in labels])
    write_lines(os.path.join(options.dest, "dict.txt"), dictionary(splits, options.threshold, options.all_words))
    binarise(options.dest, list(splits))
    print(f"prepared: {options.dest}, binarised: {os.path.join(options.dest, 'bin')}")


if __name__ == "__main__":
    main()
