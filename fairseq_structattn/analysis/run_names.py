"""Names of the runs of an experiment, such as ``char.paper.chain``, and of the trials that choose their settings.

The name of a trial has settings behind it, ``char.paper.chain@lr=2,dropout=0.3``. It is a shorter training that is
compared with others on validation data.
"""

import os
import re
import sys
from typing import Callable, Dict, Iterable, List, Optional, Sequence, Tuple

from fairseq_structattn.analysis.files import InputError, read_json

TRIAL = re.compile(r"^lr=[\d.]+,dropout=[\d.]+$")


def grid(*points: Tuple[str, str]) -> List[Dict[str, str]]:
    """The settings of trials, from learning rates and dropouts."""
    return [{"lr": lr, "dropout": dropout} for lr, dropout in points]


def trial_text(point: Dict[str, str]) -> str:
    """Settings as they stand in the name of a trial."""
    return ",".join(f"{option}={value}" for option, value in point.items())


def trial_point(text: str) -> Dict[str, str]:
    """The inverse of :func:`trial_text`."""
    return dict(part.split("=") for part in text.split(","))


def parse(text: str, form: str, known: Sequence[Sequence[str]]) -> Tuple[List[str], Optional[str]]:
    """The parts of a name, and the settings of a trial if it is one.

    Args:
        text: the name
        form: what its parts are, such as ``SIDE.MODEL.SYSTEM``
        known: the values of each part

    Raises:
        InputError: it names no run
    """
    name, _, trial = text.partition("@")
    parts = name.split(".")
    for part, values in zip(parts + [""] * len(known), known):
        if part not in values:
            raise InputError(f"unknown run {text}: {part or 'nothing'} is none of {' '.join(values)}")
    if len(parts) > len(known):
        raise InputError(f"unknown run {text}: {form} has {('two', 'three')[len(known) - 2]} parts")
    if trial and not TRIAL.match(trial):
        raise InputError(f"unknown trial {text}: after @ it has settings such as lr=2,dropout=0.3")
    return parts, trial or None


def best_point(results: str, name: str, points: Sequence[Dict[str, str]], way_out: str) -> Dict[str, str]:
    """The settings whose trial, with seed 1, has the lowest validation loss.

    Args:
        results: folder of the results
        name: the run, without settings
        points: the settings of its trials
        way_out: the call that makes them, for the message

    Raises:
        InputError: a trial is missing
    """
    losses = {}
    for point in points:
        trial = f"{name}@{trial_text(point)}"
        path = os.path.join(results, f"{trial}-1.json")
        if not os.path.exists(path):
            raise InputError(f"{trial}: this trial has to be made before any run is: {way_out}")
        losses[min(epoch["valid_nll"] for epoch in read_json(path, "epochs")["epochs"])] = point
    return losses[min(losses)]


def print_groups(plan: Callable[[List[str]], Iterable[Iterable]], arguments: Optional[List[str]] = None) -> None:
    """The command that run.sh calls for the order of the runs: prints a line for each group.

    Args:
        plan: groups of runs that words stand for
        arguments: the words; None for those of the process
    """
    words = sys.argv[1:] if arguments is None else arguments
    print("\n".join(" ".join(map(str, group)) for group in plan(words)))
