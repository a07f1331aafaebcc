"""The runs of this experiment: their names, and the options of fairseq-train that a name stands for.

A run is ``parser.SCORE.TREES.ROOTS.CASE``, ``pairs.SYSTEM``, ``published.SYSTEM`` or ``translation.SYSTEM``.
"""

import sys
from typing import Dict, List

from fairseq_structattn.analysis.files import InputError, command

SEEDS = (1, 2, 3)
TREES = {"projective": "projective-tree", "spanning": "spanning-tree"}
SCORES = {"biaffine": "biaffine", "additive": "parser"}
ROOTS = ("single", "multi")
CASES = ("cased", "lower")

# The parsers whose trees are given to other runs.
TEACHER = "parser.biaffine.projective.single.cased"
TEACHER_OF_SMALL_LETTERS = "parser.biaffine.projective.single.lower"

PARSER_EPOCHS, PARSER_UPDATES = 10, 230  # an epoch in batches of 1,000 words
PARSER = (
    "--task structattn_parsing --arch structattn_parser --affixes --criterion structattn_parsing --optimizer adam "
    "--lr 0.002 --lr-scheduler polynomial_decay --warmup-updates 50 --clip-norm 5 --max-tokens 1000 "
    f"--total-num-update {PARSER_EPOCHS * PARSER_UPDATES} --max-epoch {PARSER_EPOCHS} --best-checkpoint-metric uas"
).split() + ["--adam-betas", "(0.9, 0.9)"]

# Options of fairseq-train, by the vector that is concatenated to a word.
SYSTEMS: Dict[str, List[str]] = {
    "none": ["--arch", "structattn_decomposable"],
    "flat": ["--arch", "structattn_decomposable_flat"],
    "tree": ["--arch", "structattn_decomposable_tree"],
    "nonprojective": ["--arch", "structattn_decomposable_tree_nonprojective"],
    "uniform": ["--arch", "structattn_decomposable_tree", "--arc-score", "uniform"],
    "given": ["--arch", "structattn_decomposable_given", "--load-heads"],
    "pretrained": ["--arch", "structattn_decomposable_tree", "--load-heads"],
}
SUPERVISED = {"pretrained": "--tree-supervision 0.05 --tree-supervision-epochs 1".split()}
TITLES = {
    "none": "no attention",
    "flat": "softmax (simple)",
    "tree": "projective tree (structured)",
    "nonprojective": "spanning tree",
    "uniform": "projective tree, all arcs alike",
    "given": "heads of the parser (hard parent)",
    "pretrained": "projective tree, first epoch supervised (pretrained)",
}
PAPER = {"none": 85.8, "flat": 86.2, "tree": 86.8, "given": 86.1, "pretrained": 86.5}
WITH_TREES = ("flat", "tree", "nonprojective", "uniform", "pretrained")
WITH_HEADS = ("given", "pretrained")

# Hidden sizes with which all systems have the same number of parameters, embeddings not counted, within 1 %.
HIDDEN = {"none": 148, "uniform": 127, "given": 127}
COMMON = (
    "--task structattn_sentence_pair --criterion structattn_sentence_pair --best-checkpoint-metric accuracy".split()
)
PAIRS_EPOCHS, PAIRS_UPDATES = 6, 278  # an epoch in batches of 32
PAIRS = (
    COMMON
    + (
        "--embed-dim 100 --parser-hidden-size 50 --init-std 0 --dropout 0.2 --optimizer adam --lr 0.001 --clip-norm 5 "
        f"--batch-size 32 --max-epoch {PAIRS_EPOCHS} --lr-scheduler polynomial_decay --warmup-updates 100 "
        f"--total-num-update {PAIRS_EPOCHS * PAIRS_UPDATES}"
    ).split()
)
# Kim et al. 2017, section 4.4, and their released code; word vectors are given separately.
PUBLISHED = COMMON + "--optimizer structattn_adagrad --lr 0.05 --clip-norm 5 --batch-size 32 --max-epoch 100".split()

TRANSLATION: Dict[str, List[str]] = {
    "none": [],
    "flat": ["--source-attention", "softmax"],
    "tree": ["--source-attention", "projective-tree"],
    "supervised": "--source-attention projective-tree --load-heads --tree-supervision 0.2".split(),
}
TRANSLATION_TITLES = {
    "none": "none",
    "flat": "softmax",
    "tree": "projective tree",
    "supervised": "projective tree, supervised by the parser",
}
TRANSLATOR = (
    "--source-lang en --target-lang de --task structattn_translation --arch structattn_rnn --arc-score biaffine "
    "--encoder-embed-dim 192 --encoder-hidden-size 192 --encoder-bidirectional --decoder-embed-dim 192 "
    "--decoder-hidden-size 384 --decoder-out-embed-dim 192 --parser-hidden-size 100 --dropout 0.3 "
    "--criterion structattn_label_smoothed_cross_entropy --label-smoothing 0.1 --optimizer adam --lr 0.002 "
    "--lr-scheduler polynomial_decay --warmup-updates 200 --total-num-update 2400 --clip-norm 1 --max-tokens 2000 "
    "--max-epoch 10 --eval-bleu --eval-tokenized-bleu --best-checkpoint-metric bleu"
).split()

ALWAYS = "--maximize-best-checkpoint-metric --no-epoch-checkpoints --num-workers 0 --log-format json --log-interval 50"
TINY = {
    "parser": "--embed-dim 8 --parser-hidden-size 8 --max-epoch 2 --max-tokens 100".split(),
    "pairs": "--embed-dim 8 --hidden-size 8 --parser-hidden-size 4 --max-epoch 2".split(),
    "published": "--hidden-size 8 --parser-hidden-size 4 --max-epoch 2".split(),
    "translation": "--encoder-embed-dim 8 --encoder-hidden-size 8 --decoder-embed-dim 8 --decoder-hidden-size 8 "
    "--decoder-out-embed-dim 8 --parser-hidden-size 4 --max-epoch 2".split(),
}


def parsers() -> List[str]:
    """Names of all parsers, those that others need first."""
    others = [
        f"parser.{score}.{trees}.{roots}.cased"
        for score in SCORES
        for trees in TREES
        for roots in ROOTS
        if score == "biaffine" or roots == "single"
    ]
    return [TEACHER, *(name for name in others if name != TEACHER), TEACHER_OF_SMALL_LETTERS]


def runs(kind: str) -> List[str]:
    """Names of all runs of a kind, in order."""
    if kind == "parser":
        return parsers()
    return [f"{kind}.{system}" for system in (TRANSLATION if kind == "translation" else SYSTEMS)]


KINDS = ("parser", "pairs", "translation", "published")


def plan(words: List[str]) -> List[str]:
    """Names of the runs that words stand for: kinds, or runs.

    Raises:
        InputError: a word is neither
    """
    names = []
    for word in words:
        if word in KINDS:
            names += runs(word)
        elif word in (name for kind in KINDS for name in runs(kind)):
            names.append(word)
        else:
            known = ", ".join([*KINDS, *(name for kind in KINDS for name in runs(kind))])
            raise InputError(f"unknown run {word}; choose from {known}")
    return names


def teacher(name: str) -> str:
    """The parser whose trees a run is given; empty if it needs none."""
    kind, _, system = name.partition(".")
    if kind in ("pairs", "published") and system in WITH_HEADS:
        return TEACHER
    return TEACHER_OF_SMALL_LETTERS if kind == "translation" and system == "supervised" else ""


def data_of(name: str) -> str:
    """The folder in WORK_DIR with the data of a run."""
    kind, _, rest = name.partition(".")
    if kind != "parser":
        return kind
    trees, case = rest.split(".")[1], rest.split(".")[3]
    return f"treebank.{trees}.{case}"


def train_options(name: str, tiny: bool = False) -> List[str]:
    """Options of fairseq-train: all that determine the result, except data, word vectors and seed."""
    kind, _, rest = name.partition(".")
    if kind == "parser":
        score, trees, roots, _ = rest.split(".")
        options = [*PARSER, "--arc-score", SCORES[score], "--source-attention", TREES[trees], "--tree-roots", roots]
    elif kind == "translation":
        options = TRANSLATOR + TRANSLATION[rest]
    else:
        options = [*(PAIRS if kind == "pairs" else PUBLISHED), *SYSTEMS[rest], *SUPERVISED.get(rest, [])]
        options += ["--hidden-size", str(HIDDEN.get(rest, 100))] if kind == "pairs" else []
    return options + (TINY[kind] if tiny else []) + ALWAYS.split()


@command
def main(arguments=None) -> None:
    """Prints each run and the parser that it needs."""
    for name in plan(sys.argv[1:] if arguments is None else arguments):
        print(name, teacher(name))


if __name__ == "__main__":
    main()
