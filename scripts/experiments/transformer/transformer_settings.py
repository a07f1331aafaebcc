"""The runs of this experiment: their names, and the options of fairseq-train that a name stands for.

A run is ``CORPUS.SYSTEM``, such as ``enja.chain``; with ``@lr=…,dropout=…`` behind it, it is a trial: shorter, for
choosing those two on validation data.
"""

import os
from typing import Dict, List, NamedTuple, Optional, Tuple

from fairseq_structattn.analysis import run_names
from fairseq_structattn.analysis.files import command
from fairseq_structattn.analysis.run_names import grid, trial_text

SEEDS = (1, 2, 3)
PIECES = "4000"  # of both languages of Multi30k
LAYERS = 2

# Options of fairseq-train by system. Trees are in the top layer, where a word knows its sentence.
SYSTEMS = {
    "softmax": [],
    "chain": ["--cross-attention-heads", "linear-chain"],
    "tree": [
        *("--encoder-self-attention-heads", "projective-tree:2,softmax"),
        *("--encoder-self-attention-layers", str(LAYERS - 1)),
    ],
    "entmax": ["--cross-attention-heads", "entmax15"],
}
TITLES = {
    "softmax": "softmax",
    "chain": "chains in all heads to the source",
    "tree": "trees in two heads of the encoder",
    "entmax": "1.5-entmax in all heads to the source",
}


class Corpus(NamedTuple):
    """Data, and how long trainings on them are.

    Attributes:
        title: for tables
        languages: source and target
        data: folder of the prepared data in WORK_DIR
        text: folder of their words in WORK_DIR
        updates: of a run; a trial has a third
        options: of fairseq-train, for all systems
        generation: of fairseq-generate
    """

    title: str
    languages: Tuple[str, str]
    data: str
    text: str
    updates: int
    options: List[str]
    generation: List[str]


# An update takes 0.13 s (enja) or 0.17 s (multi30k) of one core with softmax, up to a fifth more with the others. With
# its validations a run takes about ten minutes, in which it sees all sentences four to five times.
CORPORA = {
    "enja": Corpus(
        "Japanese to English", ("ja", "en"), "char", "raw", 3900, ["--share-decoder-input-output-embed"], []
    ),
    "multi30k": Corpus(
        "English to German",
        ("en", "de"),
        "multi30k",
        "multi30k.raw",
        2700,
        ["--share-all-embeddings", "--eval-bleu-remove-bpe", "sentencepiece"],
        ["--post-process", "sentencepiece"],
    ),
}

# A Transformer in a size that one core trains in ten minutes, 1.2 to 1.4 million parameters. Layers are normalised
# before their parts, which lets a rate this high work from the start. Small batches: updates are scarcer than words.
MODEL = (
    f"--arch structattn_transformer --encoder-layers {LAYERS} --decoder-layers {LAYERS} "
    "--encoder-embed-dim 128 --decoder-embed-dim 128 --encoder-ffn-embed-dim 256 --decoder-ffn-embed-dim 256 "
    "--encoder-attention-heads 4 --decoder-attention-heads 4 --encoder-normalize-before --decoder-normalize-before "
    "--optimizer adam --lr-scheduler inverse_sqrt --warmup-updates 400 --clip-norm 1 --label-smoothing 0.1 "
    "--pairwise-l2 0.0005 --max-tokens 1000 --no-epoch-checkpoints"
).split() + ["--adam-betas", "(0.9, 0.98)"]
GRID = grid(("0.002", "0.1"), ("0.005", "0.1"), ("0.005", "0.2"))
TINY = (
    "--encoder-embed-dim 8 --decoder-embed-dim 8 --encoder-ffn-embed-dim 8 --decoder-ffn-embed-dim 8 --batch-size 8"
).split()


class Name(NamedTuple):
    """A run without its seed."""

    corpus: str
    system: str
    trial: Optional[str] = None  # "lr=0.002,dropout=0.1"

    def __str__(self) -> str:
        return f"{self.corpus}.{self.system}" + ("" if self.trial is None else f"@{self.trial}")


def parse_name(text: str) -> Name:
    """The run that `text` names.

    Raises:
        InputError: it names no run of this experiment
    """
    parts, trial = run_names.parse(text, "CORPUS.SYSTEM", (tuple(CORPORA), tuple(SYSTEMS)))
    return Name(*parts, trial)


def trials(corpus: str) -> List[Name]:
    """The trials of a corpus, as many for each system."""
    return [Name(corpus, system, trial_text(point)) for point in GRID for system in SYSTEMS]


def finals() -> List[Name]:
    """All runs that are reported."""
    return [Name(corpus, system) for corpus in CORPORA for system in SYSTEMS]


def plan(words: List[str]) -> List[List[Name]]:
    """Groups of runs, in order, that names stand for: names of runs, ``trials.CORPUS``, ``CORPUS`` and ``finals``.

    Raises:
        InputError: a name that is none of them
    """
    groups = []
    for word in words:
        of_word = [name for name in finals() if word in ("finals", name.corpus)]
        if word.startswith("trials.") and word[len("trials.") :] in CORPORA:
            of_word = trials(word[len("trials.") :])
        groups.append(of_word or [parse_name(word)])
    return groups


def chosen(corpus: str, system: str, results: str) -> Dict[str, str]:
    """Learning rate and dropout of a system: those whose trial has the lowest validation loss.

    Raises:
        InputError: a trial is missing
    """
    return run_names.best_point(results, str(Name(corpus, system)), GRID, f"run.sh WORK_DIR trials.{corpus}")


def train_options(name: Name, results: str, tiny: bool = False) -> List[str]:
    """Options of fairseq-train: all that determine the result, except data and seed."""
    corpus = CORPORA[name.corpus]
    updates = corpus.updates // 3 if name.trial else corpus.updates
    point = run_names.trial_point(name.trial) if name.trial else chosen(name.corpus, name.system, results)
    options = MODEL + SYSTEMS[name.system] + corpus.options
    options += ["--lr", point["lr"], "--dropout", point["dropout"], "--max-update", str(12 if tiny else updates)]
    return options + (TINY if tiny else [])


def text_folder(corpus: str, work: str) -> str:
    """The folder with the words of a corpus: train, valid, test and test2, each .<lang>."""
    return os.path.join(work, CORPORA[corpus].text)


@command
def main(arguments=None) -> None:
    run_names.print_groups(plan, arguments)


if __name__ == "__main__":
    main()
