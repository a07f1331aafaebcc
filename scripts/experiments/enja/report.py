"""Makes the report from the finished runs: tables and pictures in the README.

    python scripts/experiments/enja/report.py [RESULTS_DIR] [--dest DIR]

Nothing is trained and no corpus is needed. A system without runs is shown as missing.
"""

import os
from functools import partial
from typing import Dict, List

import report_pictures
from comparison import BOUND_LABELS, bias, by_length, coupling
from recipes import read_rows
from segments import Count
from settings import MODELS, SEEDS, TITLES, TUNED, Name, chosen, finals, parse_name

from fairseq_structattn.analysis import experiment_report
from fairseq_structattn.analysis.experiment_report import (
    TESTS,
    VALIDATION_HEADS,
    Systems,
    choice,
    fastest_epoch,
    kept_runs,
    markdown,
    sections,
    spread,
    validation_cells,
    write_report,
)
from fairseq_structattn.analysis.files import command
from fairseq_structattn.analysis.system_differences import Runs

HERE = os.path.dirname(os.path.abspath(__file__))


class Results:
    """The runs of a folder.

    Attributes:
        runs: results by seed for each reported system, in order; empty without runs
        tried: results of the trials, by name
        explored: results by seed of the systems that are not tested
    """

    def __init__(self, folder: str):
        self.folder = folder
        self.runs: Dict[Name, Runs] = {name: {} for group in finals() for name in group}
        self.tried: Dict[Name, Dict] = {}
        self.explored: Dict[Name, Runs] = {}
        for content in kept_runs(folder):
            self._add(content)

    def _add(self, content: Dict) -> None:
        name = parse_name(content["name"])
        if name.trial is None and not name.is_final:
            self.explored.setdefault(name, {})[content["seed"]] = content
        elif name.trial is None:
            self.runs.setdefault(name, {})[content["seed"]] = content
        else:
            self.tried[name] = content

    def baseline(self, name: Name) -> Runs:
        return self.runs[name._replace(system="softmax")]


def label(name: Name) -> List[str]:
    return [name.side.upper(), name.model, TITLES[name.system]]


def length_table(results: Results) -> str:
    """BLEU of both test sets together by the number of characters."""
    lines, sizes = [], []
    for name, runs in results.runs.items():
        if name.side == "char" and runs:
            found = by_length(runs)
            sizes = [size for size, _ in found]
            lines.append([name.model, TITLES[name.system], *(spread(scores) for _, scores in found)])
    heads = ["model", "attention", *(f"{text} ({size})" for text, size in zip(BOUND_LABELS, sizes))]
    return markdown(heads, lines, 2)


def boundary_table(results: Results) -> str:
    """Ends of segments as a prediction of word boundaries; all seeds of a system together."""
    heads = ["model", "attention", "selected", "precision", "recall", "F1", "random: precision", "recall", "F1"]
    heads += ["per target word: precision", "random"]
    lines = []
    for name, by_seed in results.runs.items():
        found = [run["boundaries"] for run in by_seed.values() if "boundaries" in run]
        if not found:
            continue
        whole, steps = Count(), Count()
        for own in found:
            whole, steps = whole + Count(*own["sentence"]), steps + Count(*own["steps"])
        thresholds = sorted({own["threshold"] for own in found})
        how = "best segments" if thresholds == [0] else "p ≥ " + ", ".join(f"{value:g}" for value in thresholds)
        scores = [f"{score:.1f}" for score in (*whole.scores, *whole.chance_scores)]
        scores += [f"{steps.scores[0]:.1f}", f"{steps.chance_scores[0]:.1f}"]
        lines.append([name.model, TITLES[name.system], how, *scores])
    return markdown(heads, lines, 3)


def coupling_table(results: Results) -> str:
    """J and the bias after each epoch, mean over seeds."""
    lines = []
    for name, by_seed in results.runs.items():
        tables = [[epoch["pairwise"] for epoch in run["epochs"]] for run in by_seed.values()]
        if tables and tables[0][0] is not None:
            cells = {}
            for what, value in (("J", coupling), ("bias", bias)):
                if what == "bias" or name.system != "uncoupled":
                    cells[what] = [spread([value(table) for table in epoch], 2) for epoch in zip(*tables)]
            lines += [[*label(name), what, *values] for what, values in cells.items()]
    if not lines:
        return ""
    longest = max(map(len, lines))
    heads = ["source", "model", "attention", "after epoch", *map(str, range(1, longest - 3))]
    return markdown(heads, [line + [""] * (longest - len(line)) for line in lines], 4)


def trial_table(results: Results) -> str:
    """The trials, and the settings chosen from them."""

    def cells(name: Name) -> List[str]:
        return [name.model, TITLES[name.system], name.trial.replace(",", ", ")]

    table = experiment_report.trial_table(["model", "attention", "trial"], cells, results.tried)
    choices = [choice(model, partial(chosen, model, results=results.folder), TUNED) for model in MODELS]
    return "\n\n".join([table, *choices])


def exploration_table(results: Results) -> str:
    """The explored systems, beside softmax and the chain at the same seeds, on validation data."""
    if not results.explored:
        return ""
    seeds = sorted({seed for runs in results.explored.values() for seed in runs})
    beside = {name: results.runs[name] for name in (Name("char", "paper", system) for system in TUNED)}
    lines = []
    for name, by_seed in {**beside, **results.explored}.items():
        runs = [by_seed[seed] for seed in seeds if seed in by_seed]
        made = ", ".join(str(seed) for seed in seeds if seed in by_seed)
        lines.append([TITLES[name.system], made, *validation_cells(runs), fastest_epoch(runs)])
    return markdown(["CHAR, paper", "seeds", *VALIDATION_HEADS, "s an epoch"], lines, 2)


RECIPES = {
    "chain": "chain, one seed",
    "average": "mean of the parameters after the last three epochs",
    "fp16": "`--fp16`",
    "seeds": "ensemble of its three seeds",
    "lstm": "fairseq's `lstm`, one seed",
    "chain and lstm": "ensemble of chain and `lstm`",
    "softmax": "softmax, one seed",
    "student": "softmax, trained on the chain's translations",
}


def recipe_table(results: Results) -> str:
    """Scores of the recipes for trained models, see recipes.py."""
    rows = read_rows(os.path.join(results.folder, "..", "recipes.jsonl"))
    heads = ["CHAR, modern"] + [f"{test}, {metric}" for metric in ("BLEU", "chrF") for test in TESTS]
    cells = ([f"{row[test][key]:.1f}" for key in ("bleu", "chrf") for test in TESTS] for row in rows)
    return markdown(heads, [[RECIPES[row["recipe"]], *scores] for row, scores in zip(rows, cells)])


def parts(folder: str, dest: str) -> List[str]:
    """Pictures and sections of the report."""
    results = Results(folder)
    shown = "\n".join(report_pictures.draw_all(results, dest))
    tables = {
        "By length of the source, characters": length_table(results),
        "Ends of segments and of words": boundary_table(results),
        "What the chain learned": coupling_table(results),
        "What else was tried, on validation data": exploration_table(results),
        "Around a trained model": recipe_table(results),
        "Trials": trial_table(results),
    }
    systems = Systems(("source", "model", "attention"), label, results.runs, results.baseline, len(SEEDS))
    return [shown, *sections(systems, tables, "bash scripts/experiments/enja/run.sh --corpus FOLDER")]


@command
def main(arguments=None) -> None:
    write_report(HERE, __doc__, parts, arguments)


if __name__ == "__main__":
    main()
