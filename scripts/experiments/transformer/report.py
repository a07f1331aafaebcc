"""Makes the report from the finished runs: tables and the picture in the README.

    python scripts/experiments/transformer/report.py [RESULTS_DIR] [--dest DIR]

Nothing is trained and no corpus is needed. A system without runs is shown as missing.
"""

import os
from functools import partial
from typing import Dict, List

from transformer_settings import CORPORA, SEEDS, SYSTEMS, TITLES, Name, chosen, finals, parse_name

from fairseq_structattn.analysis import experiment_report
from fairseq_structattn.analysis.difference_figure import draw_differences, save_all
from fairseq_structattn.analysis.experiment_report import TESTS, Systems, choice, kept_runs, sections, write_report
from fairseq_structattn.analysis.files import command
from fairseq_structattn.analysis.system_differences import Runs, differences

HERE = os.path.dirname(os.path.abspath(__file__))
COLOURS = {system: f"C{number}" for number, system in enumerate(SYSTEMS)}
SYSTEM = ("corpus", "attention")  # columns of `label`


class Results:
    """The runs of a folder.

    Attributes:
        folder: where their files are
        runs: results by seed for each system, in order; empty without runs
        tried: results of the trials, by name
    """

    def __init__(self, folder: str):
        self.folder = folder
        self.runs: Dict[Name, Runs] = {name: {} for name in finals()}
        self.tried: Dict[Name, Dict] = {}
        for content in kept_runs(folder):
            name = parse_name(content["name"])
            if name.trial is None:
                self.runs[name][content["seed"]] = content
            else:
                self.tried[name] = content

    def baseline(self, name: Name) -> Runs:
        return self.runs[name._replace(system="softmax")]


def label(name: Name) -> List[str]:
    return [CORPORA[name.corpus].title, TITLES[name.system]]


def draw_answer(results: Results):
    """All systems against softmax, both test sets together."""
    found = differences(results.runs, results.baseline, TESTS)
    names = {": ".join(label(name)): one for name, one in found.items()}
    return draw_differences(names, [COLOURS[name.system] for name in found])


def trial_table(results: Results) -> str:
    """The trials, and the settings chosen from them."""

    def cells(name: Name) -> List[str]:
        return [*label(name), name.trial.replace(",", ", ")]

    table = experiment_report.trial_table([*SYSTEM, "trial"], cells, results.tried)
    choices = [choice(CORPORA[one].title, partial(chosen, one, results=results.folder), SYSTEMS) for one in CORPORA]
    return "\n\n".join([table, *choices])


def parts(folder: str, dest: str) -> List[str]:
    """The picture and the sections of the report."""
    results = Results(folder)
    shown = "\n".join(save_all({"differences to softmax": ("answer.png", draw_answer)}, results, dest))
    systems = Systems(SYSTEM, label, results.runs, results.baseline, len(SEEDS))
    call = "bash scripts/experiments/transformer/run.sh --enja FOLDER --multi30k FOLDER"
    return [shown, *sections(systems, {"Trials": trial_table(results)}, call)]


@command
def main(arguments=None) -> None:
    write_report(HERE, __doc__, parts, arguments)


if __name__ == "__main__":
    main()
