"""The runs of this experiment: their names, and the options of fairseq-train that a name stands for.

A run is ``SIDE.MODEL.SYSTEM``, such as ``char.paper.chain``; with ``@lr=…,dropout=…`` behind it, it is a trial:
shorter, for choosing those two on validation data.
"""

from typing import Dict, Iterator, List, NamedTuple, Optional

from fairseq_structattn.analysis import run_names
from fairseq_structattn.analysis.files import command
from fairseq_structattn.analysis.run_names import grid, trial_text

LANGUAGES = ("ja", "en")
SIDES = ("char", "word", "pieces")
SEEDS = (1, 2, 3)

# Options of fairseq-train, by system; those of the models follow and take precedence.
SYSTEMS = {
    "softmax": ["--arch", "structattn_rnn_simple"],
    "softmax_2": ["--arch", "structattn_rnn_simple", "--attention-scale", "2"],
    "sigmoid": ["--arch", "structattn_rnn_sigmoid"],
    "sigmoid_2": ["--arch", "structattn_rnn_sigmoid", "--attention-normalize", "sum", "--attention-scale", "2"],
    "chain": ["--arch", "structattn_rnn_crf"],
    "uncoupled": ["--arch", "structattn_rnn_crf", "--attention-distribution", "uncoupled-chain"],
}
# What the paper leaves open, and candidates for an improvement: a system and options that follow those of the model.
# Compared on validation data only: characters, the paper's model, settings of the chain.
EXPLORED = {
    "slow": ("chain", ["--attention-distribution", "slow-chain", "--pairwise-l2", "0.00045"]),
    "words": ("chain", ["--attention-distribution", "word-chain"]),
    "query": ("chain", ["--attention-couplings", "query"]),
    "heads": ("chain", ["--arch", "enja_crf_heads"]),
    "softmax_heads": ("softmax", ["--arch", "enja_simple_heads"]),
    "started": ("chain", ["--attention-distribution", "started-chain"]),
    "bounded": ("chain", ["--attention-distribution", "bounded-chain"]),
    "neighbours": ("chain", ["--attention-couplings", "neighbours"]),
    "one_span": ("chain", ["--attention-distribution", "one-span"]),
    "unpenalised": ("chain", ["--pairwise-l2", "0"]),
    "bridge": ("chain", ["--decoder-start", "bridge"]),
    "softmax_bridge": ("softmax", ["--decoder-start", "bridge"]),
}
TITLES = {
    "softmax": "softmax",
    "softmax_2": "softmax, λ = 2",
    "sigmoid": "sigmoid",
    "sigmoid_2": "sigmoid, normalised, λ = 2",
    "chain": "chain",
    "uncoupled": "chain, J = 0",
    "slow": "chain, its table at a tenth of the rate",
    "words": "chain without `</s>`",
    "query": "chain, couplings of the query",
    "heads": "chain, four heads",
    "softmax_heads": "softmax, four heads",
    "started": "chain, table starts at J = 0.9",
    "bounded": "chain, potentials at both ends",
    "neighbours": "chain, couplings of neighbours",
    "one_span": "one span: before, inside, after",
    "unpenalised": "chain without a penalty",
    "bridge": "chain, decoder starts from the encoder's state",
    "softmax_bridge": "softmax, decoder starts from the encoder's state",
}
TUNED = ("softmax", "chain")  # the others use the settings of the chain


class Model(NamedTuple):
    """Options of fairseq-train that all systems share, epochs of runs and of trials, and the settings of the trials."""

    options: List[str]
    epochs: int
    trial_epochs: int
    grid: List[Dict[str, str]]


def _sizes(embedding: int, encoder: int, decoder: int, layers: int) -> List[str]:
    return (
        f"--encoder-embed-dim {embedding} --encoder-hidden-size {encoder} --encoder-layers {layers} "
        f"--decoder-embed-dim {embedding} --decoder-hidden-size {decoder} --decoder-layers {layers} "
        f"--decoder-out-embed-dim {decoder if layers > 1 else embedding}"
    ).split()


MODELS = {
    # Kim et al. 2017, section 4.2, in a smaller size: one direction, zero start state, no input feeding, SGD, gradients
    # of norm 1, a loss summed over sentences. Batches of 32, not of 128: the paper has 117,000 updates on ten times as
    # many sentences, and a quarter of an hour allows about 10,000.
    "paper": Model(
        _sizes(192, 256, 256, layers=2)
        + "--optimizer sgd --clip-norm 1 --sentence-avg --label-smoothing 0 --pairwise-l2 0.005".split()
        + "--batch-size 32".split(),
        epochs=9,
        trial_epochs=3,
        grid=grid(("2", "0.2"), ("2", "0.3"), ("4", "0.2"), ("8", "0.2")),
    ),
    # The paper's penalty, scaled to a loss that is a mean over words: a sentence has about nine.
    "modern": Model(
        _sizes(192, 192, 384, layers=1)
        + "--encoder-bidirectional --decoder-start bridge --input-feeding --optimizer adam --clip-norm 1 "
        "--label-smoothing 0.1 --pairwise-l2 0.0005 --max-tokens 2000".split(),
        epochs=5,
        trial_epochs=2,
        grid=grid(("0.002", "0.2"), ("0.002", "0.3"), ("0.004", "0.2"), ("0.008", "0.2"), ("0.016", "0.2")),
    ),
}
TINY = "--encoder-embed-dim 8 --encoder-hidden-size 8 --decoder-embed-dim 8 --decoder-hidden-size 8".split()
TINY += "--decoder-out-embed-dim 8 --batch-size 8".split()


class Name(NamedTuple):
    """A run without its seed."""

    side: str
    model: str
    system: str
    trial: Optional[str] = None  # "lr=1,dropout=0.3"

    @property
    def is_final(self) -> bool:
        """Whether it is scored on the test sets."""
        return self.trial is None and self.system in SYSTEMS

    def __str__(self) -> str:
        return f"{self.side}.{self.model}.{self.system}" + ("" if self.trial is None else f"@{self.trial}")


def parse_name(text: str) -> Name:
    """The run that `text` names.

    Raises:
        InputError: it names no run of this experiment
    """
    parts, trial = run_names.parse(text, "SIDE.MODEL.SYSTEM", (SIDES, tuple(MODELS), (*SYSTEMS, *EXPLORED)))
    return Name(*parts, trial)


def trials(model: str) -> List[Name]:
    """The trials of a model, as many for softmax as for the chain."""
    return [Name("char", model, system, trial_text(point)) for point in MODELS[model].grid for system in TUNED]


def finals() -> List[List[Name]]:
    """All runs that are reported, in groups, the most informative first."""
    controls = [system for system in SYSTEMS if system not in TUNED]
    groups = [[Name("char", model, system) for system in systems] for model in MODELS for systems in (TUNED, controls)]
    others = [[Name(side, "paper", system) for system in ("softmax", "chain", "sigmoid")] for side in SIDES[1:]]
    return groups + others


def explored() -> List[Name]:
    return [Name("char", "paper", system) for system in EXPLORED]


def plan(words: List[str]) -> List[List[Name]]:
    """Groups of runs, in order, that names stand for: names of runs, ``trials.MODEL``, ``SIDE.MODEL``, ``explored`` and
    ``finals``.

    Raises:
        InputError: a name that is none of them
    """
    groups = []
    for word in words:
        of_word = [group for group in finals() if word in ("finals", f"{group[0].side}.{group[0].model}")]
        if of_word:
            groups += of_word
        elif word.startswith("trials.") and word[7:] in MODELS:
            groups.append(trials(word[7:]))
        elif word == "explored":
            groups.append(explored())
        else:
            groups.append([parse_name(word)])
    return groups


def chosen(model: str, system: str, results: str) -> Dict[str, str]:
    """Learning rate and dropout of a system: those whose trial has the lowest validation loss.

    Raises:
        InputError: a trial is missing
    """
    tuned = system if system in TUNED else "chain"
    name = str(Name("char", model, tuned))
    return run_names.best_point(results, name, MODELS[model].grid, f"run.sh WORK_DIR trials.{model}")


def train_options(name: Name, results: str, tiny: bool = False) -> List[str]:
    """Options of fairseq-train: all that determine the result, except data and seed."""
    model = MODELS[name.model]
    point = run_names.trial_point(name.trial) if name.trial else None
    epochs = model.epochs if point is None else model.trial_epochs
    point = point or chosen(name.model, name.system, results)
    system, further = EXPLORED.get(name.system, (name.system, []))
    options = SYSTEMS[system] + model.options + ["--lr", point["lr"], "--dropout", point["dropout"]]
    options += [word for place in _dropout_places(name.model) for word in (place, point["dropout"])]
    epochs = 2 if tiny else epochs
    options += ["--max-epoch", str(epochs)] + _schedule(name.model, epochs)
    return options + further + (TINY if tiny else [])


def _dropout_places(model: str) -> Iterator[str]:
    """Options of dropout beyond the paper's, which is between layers and on the attentional state."""
    if model == "modern":
        for side in ("encoder", "decoder"):
            yield from (f"--{side}-dropout-in", f"--{side}-dropout-out")


def _schedule(model: str, epochs: int) -> List[str]:
    """SGD: in the last third of the epochs each has half the rate of the one before. Adam: down to zero, after a
    warm-up."""
    if model == "paper":
        return ["--lr-scheduler", "fixed", "--lr-shrink", "0.5", "--force-anneal", str(epochs - epochs // 3 + 1)]
    updates = epochs * UPDATES_OF_MODERN
    return f"--lr-scheduler polynomial_decay --warmup-updates 200 --total-num-update {updates}".split()


UPDATES_OF_MODERN = 400  # an epoch in batches of 2,000 tokens


@command
def main(arguments=None) -> None:
    run_names.print_groups(plan, arguments)


if __name__ == "__main__":
    main()
