"""Prepares trees in CoNLL-U, such as those of Universal Dependencies: words and their heads, for fairseq.

    python scripts/prepare/conllu.py --train en_ewt-ud-train.conllu --valid en_ewt-ud-dev.conllu \
        --test en_ewt-ud-test.conllu --crossing drop --dest ewt

Writes SPLIT.words, a sentence a line, and SPLIT.heads.words, numbers of the head of each word, 0 for the root, into the
folder of --dest, and the same, binarised for --task structattn_parsing, into bin/. Its dictionary has the words of all
splits, with their counts in the training data.

Ranges of multiword tokens (their words stay), empty nodes, and everything but words and heads are left out; the script
prints how many. With --crossing drop sentences with crossing arcs, which have no projective tree, are left out of train
and valid; the test set keeps them. White space within a word becomes _.
"""

import argparse
import os
import shutil
import subprocess
import sys
from collections import Counter
from typing import Dict, Iterator, List, NamedTuple, Tuple

from fairseq_structattn.analysis.files import (
    InputError,
    check_inputs,
    check_output_folders,
    command,
    numbered_lines,
    write_lines,
)

COLUMNS = 10
ID, FORM, HEAD = 0, 1, 6
# What fairseq would take for its own marks, and what stands for the root of a sentence.
MARKS = ("<s>", "<pad>", "</s>")
LEFT_OUT = {"ranges": "ranges of multiword tokens", "empty": "empty nodes", "crossing": "sentences with crossing arcs"}


class Tree(NamedTuple):
    """The words of a sentence, the head of each, 0 for the root, and where it was read."""

    words: List[str]
    heads: List[int]
    place: str

    def is_crossing(self) -> bool:
        """Whether two arcs cross, that from the root before the first word among them."""
        arcs = [(min(head, word), max(head, word)) for word, head in enumerate(self.heads, 1)]
        return any(first < start < last < end for first, last in arcs for start, end in arcs)


def read_trees(path: str, left_out: Counter) -> Iterator[Tree]:
    """The trees of a file; numbers of items that are left out are added to the counts.

    Raises:
        InputError: a line that is not as the format has it, by number
    """
    block: List[Tuple[int, List[str]]] = []
    for number, line in numbered_lines(path):
        line = line.rstrip("\r\n")
        if not line.strip():
            if block:
                yield _tree(path, block, left_out)
            block = []
        elif not line.startswith("#"):
            cells = line.split("\t")
            if len(cells) != COLUMNS:
                raise InputError(f"{path}, line {number}: {len(cells)} columns with tabs between, not {COLUMNS}")
            block.append((number, cells))
    if block:
        yield _tree(path, block, left_out)


def _tree(path: str, block: List[Tuple[int, List[str]]], left_out: Counter) -> Tree:
    words, heads, lines = [], [], []
    for number, cells in block:
        if "-" in cells[ID] or "." in cells[ID]:
            left_out["ranges" if "-" in cells[ID] else "empty"] += 1
            continue
        place = f"{path}, line {number}"
        if cells[ID] != str(len(words) + 1):
            raise InputError(f"{place}: word {cells[ID]!r} where {len(words) + 1} is due")
        if not cells[HEAD].isdecimal():
            raise InputError(f"{place}: {cells[HEAD]!r} is no head; 0 is that of a root")
        words.append(_word(cells[FORM], place))
        heads.append(int(cells[HEAD]))
        lines.append(place)
    _check(heads, lines)
    return Tree(words, heads, f"{path}, line {block[0][0]}")


def _word(form: str, place: str) -> str:
    if not form or form in MARKS:
        raise InputError(f"{place}: the word {form!r} means something else to fairseq; write it otherwise")
    return "_".join(form.split()) or "_"


def _check(heads: List[int], places: List[str]) -> None:
    for head, place in zip(heads, places):
        if head > len(heads):
            raise InputError(f"{place}: head {head}, but the sentence has {len(heads)} words")
    for word, place in enumerate(places, 1):
        above = word
        for _ in heads:
            above = heads[above - 1] if above else 0
        if above:
            raise InputError(f"{place}: following the heads from word {word} leads round in a circle")


def binarise(dest: str, splits: Dict[str, List[Tree]]) -> None:
    """fairseq-preprocess into dest/bin, which is replaced as a whole once it is complete."""
    output, dictionary = os.path.join(dest, "bin"), os.path.join(dest, "dict.txt")
    counts = Counter(word for tree in splits["train"] for word in tree.words)
    words = sorted({word for trees in splits.values() for tree in trees for word in tree.words})
    words.sort(key=lambda word: -counts[word])
    write_lines(dictionary, [f"{word} {counts[word]}" for word in words])
    shutil.rmtree(output + ".tmp", ignore_errors=True)
    call = [sys.executable, "-m", "fairseq_cli.preprocess", "--only-source", "--source-lang", "words"]
    call += ["--srcdict", dictionary, "--destdir", output + ".tmp"]
    call += [word for split in splits for word in (f"--{split}pref", os.path.join(dest, split))]
    done = subprocess.run(call, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise InputError(f"fairseq-preprocess failed: {done.stdout[-2000:]}")
    for split in splits:
        shutil.copy(os.path.join(dest, f"{split}.heads.words"), output + ".tmp")
    shutil.rmtree(output, ignore_errors=True)
    os.replace(output + ".tmp", output)


def parse_arguments(arguments=None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for split in ("train", "valid", "test"):
        parser.add_argument(
            f"--{split}", required=True, metavar="FILE", help=".conllu file, may be compressed with gzip"
        )
    parser.add_argument("--dest", required=True, metavar="DIR")
    parser.add_argument(
        "--crossing",
        choices=("keep", "drop"),
        default="keep",
        help="treatment of sentences with crossing arcs in train and valid (default: keep)",
    )
    parser.add_argument("--lowercase", action="store_true", help="convert words to lower case")
    return parser.parse_args(arguments)


@command
def main(arguments=None) -> None:
    options = parse_arguments(arguments)
    sources = {split: getattr(options, split) for split in ("train", "valid", "test")}
    check_inputs({f"--{split}": path for split, path in sources.items()})
    check_output_folders({"--dest": options.dest})
    splits = {}
    for split, path in sources.items():
        left_out: Counter = Counter()
        trees = list(read_trees(path, left_out))
        if options.lowercase:
            trees = [tree._replace(words=[word.lower() for word in tree.words]) for tree in trees]
        crossing = [tree for tree in trees if tree.is_crossing()]
        if options.crossing == "drop" and split != "test":
            trees = [tree for tree in trees if not tree.is_crossing()]
            left_out["crossing"] = len(crossing)
        if not trees:
            raise InputError(f"--{split} {path}: no trees are left")
        splits[split] = trees
        said = ", ".join(f"{left_out[kind]:,} {name}" for kind, name in LEFT_OUT.items())
        words = sum(len(tree.words) for tree in trees)
        print(f"{split}: {len(trees):,} sentences, {words:,} words; {len(crossing):,} had crossing arcs")
        print(f"  left out: {said}")
    for split, trees in splits.items():
        write_lines(os.path.join(options.dest, f"{split}.words"), [" ".join(tree.words) for tree in trees])
        heads = [" ".join(map(str, tree.heads)) for tree in trees]
        write_lines(os.path.join(options.dest, f"{split}.heads.words"), heads)
    binarise(options.dest, splits)
    print(f"prepared: {options.dest}, binarised: {os.path.join(options.dest, 'bin')}")


if __name__ == "__main__":
    main()
