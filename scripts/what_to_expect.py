"""What to expect of the recipes in README.md and docs/: a table of scores and times, from results that scripts wrote.

    python scripts/what_to_expect.py                            into README.md and, one each, into pages of docs/
    python scripts/what_to_expect.py --quickstart quickstart    keeps the result of the quickstart there first

Recipes whose experiment has not been run are left out. Times are of training alone, on the machine in the same row;
with several runs they are means.
"""

import argparse
import glob
import json
import os
import re
import statistics
from typing import Dict, Iterator, List, NamedTuple, Optional

from fairseq_structattn.analysis.files import InputError, check_folders, command, numbered_lines, read_json, write_json
from fairseq_structattn.analysis.results import machine, put_table, versions

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
EXPERIMENTS = os.path.join(HERE, "experiments")
QUICKSTART = os.path.join(HERE, "quickstart.json")
HEADS = ["recipe", "score", "training", "runs", "machine"]


class Recipe(NamedTuple):
    """A line of the table; `title` is Markdown, `page` where in docs/ the recipe stands, None in README.md itself."""

    title: str
    page: Optional[str]
    score: str
    values: List[float]
    seconds: List[float]
    machines: List[str]

    def line(self, linked: bool) -> str:
        seconds = statistics.mean(self.seconds)
        return _row(
            f"[{self.title}](docs/{self.page})" if linked and self.page else self.title,
            f"{statistics.mean(self.values):.4g} {self.score}",
            f"{seconds / 60:.0f} min" if seconds >= 100 else f"{seconds:.0f} s",
            str(len(self.values)),
            " / ".join(sorted(set(self.machines))),
        )


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def keep_quickstart(folder: str) -> None:
    """Writes what a quickstart has measured.

    Raises:
        InputError: it has not come to its end
    """
    check_folders({"--quickstart": folder})
    log = os.path.join(folder, "train.log")
    took = [re.search(r"done training in ([\d.]+) seconds", line) for _, line in numbered_lines(log)]
    took = [float(match.group(1)) for match in took if match]
    if len(took) != 1:
        raise InputError(f"{log}: not a training from beginning to end; name the folder of a new quickstart")
    score = read_json(os.path.join(folder, "bleu.json"), "bleu", "signature")
    made = {"bleu": score["bleu"], "signature": score["signature"], "seconds": took[0]}
    write_json(QUICKSTART, {**made, "versions": versions(), "machine": machine()})


def recipes(experiments: str, quickstart: str) -> Iterator[Recipe]:
    """The recipes that have results."""
    if os.path.exists(quickstart):
        made = read_json(quickstart, "bleu", "seconds", "machine")
        title = "quickstart: German number words, in characters, to English words"
        yield Recipe(title, None, "BLEU", [made["bleu"]], [made["seconds"]], [made["machine"]])
    title = "the commands above, on 48,000 of the pairs"
    yield from _trained(title, None, "BLEU", _runs(experiments, "enja", "char.paper.chain"), "bleu")
    runs = _runs(experiments, "snli", "parser.biaffine.projective.single.cased")
    yield from _trained("parsing: English, UD EWT", "parsing.md", "UAS", runs, "risk")
    answers = _answers(os.path.join(experiments, "babi", "results.jsonl"), task=2, system="chain")
    if answers:
        accuracy, seconds = ([row[name] for row in answers] for name in ("test_accuracy", "seconds"))
        machines = [row["machine"] for row in answers]
        yield Recipe("questions about stories: bAbI, task 2", "stories.md", "% right", accuracy, seconds, machines)


def _trained(title: str, page: Optional[str], score: str, runs: List[Dict], metric: str) -> Iterator[Recipe]:
    """One line for runs of the same options, which have their epochs and a test."""
    if runs:
        values = [_tested(run["test"], metric) for run in runs]
        seconds = [sum(epoch["seconds"] for epoch in run["epochs"]) for run in runs]
        yield Recipe(title, page, score, values, seconds, [run["machine"] for run in runs])


def _tested(test: Dict, metric: str) -> float:
    return test["test"][metric] if "test" in test else test[metric]["directed"]


def _runs(experiments: str, experiment: str, name: str) -> List[Dict]:
    paths = sorted(glob.glob(os.path.join(experiments, experiment, "results", f"{name}-*.json")))
    return [read_json(path, "test", "epochs", "machine") for path in paths]


def _answers(path: str, task: int, system: str) -> List[Dict]:
    rows = [json.loads(line) for _, line in numbered_lines(path)] if os.path.exists(path) else []
    return [row for row in rows if (row["task"], row["system"], row["setting"]) == (task, system, "published")]


def table(found: List[Recipe], linked: bool) -> str:
    return "\n".join([_row(*HEADS), _row(*["---"] * len(HEADS)), *(recipe.line(linked) for recipe in found)])


@command
def main(arguments=None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quickstart", metavar="DIR", help="folder of a finished quickstart, whose result is stored")
    parser.add_argument(
        "--dest", default=ROOT, metavar="DIR", help="folder of README.md and docs/ (default: this project)"
    )
    options = parser.parse_args(arguments)
    if options.quickstart is not None:
        keep_quickstart(options.quickstart)
    found = list(recipes(EXPERIMENTS, QUICKSTART))
    put_table(os.path.join(options.dest, "README.md"), table(found, linked=True))
    for recipe in found:
        if recipe.page is not None:
            put_table(os.path.join(options.dest, "docs", recipe.page), table([recipe], linked=False))


if __name__ == "__main__":
    main()
