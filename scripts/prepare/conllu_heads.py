"""Prepares the heads of a text from its trees in CoNLL-U, in the format that --load-heads reads.

    python scripts/prepare/conllu_heads.py --trees train.premise.conllu --words snli/train.premise \
        --output snli/bin/train.heads.premise

The trees are those that a parser found for the sentences of --words, in the same order and tokenisation; upper and
lower case may differ. Ranges of multiword tokens and empty nodes are left out, and their numbers printed. A sentence
without words has no tree. Writes a line for each sentence, with the number of the head of each word, 0 for the root.
"""

import argparse
from collections import Counter
from typing import Iterator, List

from conllu import LEFT_OUT, Tree, read_trees

from fairseq_structattn.analysis.files import (
    InputError,
    check_inputs,
    check_outputs,
    command,
    numbered_lines,
    write_lines,
)


def heads_of(words: str, trees: Iterator[Tree], path: str) -> Iterator[List[int]]:
    """The heads of each sentence of a file.

    Args:
        words: the file, words with spaces between
        trees: of its sentences, in order
        path: where the trees were read

    Raises:
        InputError: more or fewer trees than sentences, or a tree of other words, by line of both
    """
    for number, line in numbered_lines(words):
        sentence = line.split()
        if not sentence:
            yield []
            continue
        place, tree = f"{words}, line {number}", next(trees, None)
        if tree is None:
            raise InputError(f"{place}: no tree for it; {path} ends before")
        _check_words(sentence, tree, place)
        yield tree.heads
    left = next(trees, None)
    if left is not None:
        raise InputError(f"{left.place}: no sentence for this tree; {words} ends before")


def _check_words(sentence: List[str], tree: Tree, place: str) -> None:
    if len(sentence) != len(tree.words):
        raise InputError(
            f"{place}: {len(sentence)} words, but its tree ({tree.place}) has {len(tree.words)}; let the parser take "
            "words as they are"
        )
    for number, (word, other) in enumerate(zip(sentence, tree.words), 1):
        if word.lower() != other.lower():
            raise InputError(f"{place}: word {number} is {word!r}, but in its tree ({tree.place}) {other!r}")


@command
def main(arguments=None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trees", required=True, metavar="FILE", help=".conllu file, may be compressed with gzip")
    parser.add_argument(
        "--words", required=True, metavar="FILE", help="sentences, one a line, words separated by spaces"
    )
    parser.add_argument("--output", required=True, metavar="FILE")
    options = parser.parse_args(arguments)
    check_inputs({"--trees": options.trees, "--words": options.words})
    check_outputs({"--output": options.output})
    left_out: Counter = Counter()
    found = list(heads_of(options.words, read_trees(options.trees, left_out), options.trees))
    write_lines(options.output, [" ".join(map(str, heads)) for heads in found])
    print(f"{options.output}: {len(found):,} sentences, {sum(map(len, found)):,} words")
    print(f"  left out: {', '.join(f'{left_out[key]} {LEFT_OUT[key]}' for key in ('ranges', 'empty'))}")


if __name__ == "__main__":
    main()
