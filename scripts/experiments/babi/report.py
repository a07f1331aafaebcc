"""Makes the tables of the README from the starts that ``trainings.py`` has measured.

    python scripts/experiments/babi/report.py

For each model and task, the answers are those of the start with the most correct answers on the held-out questions,
and among equals of the start with the least loss there. Facts are the mean over the better half of the starts in this
order; the paper has the mean over the ten best of twenty.
"""

import argparse
import os
import statistics
from typing import Dict, List, Optional, Tuple

from trainings import SETTINGS, STEPS, SYSTEMS, read_rows

from fairseq_structattn.analysis.files import InputError, check_inputs, command
from fairseq_structattn.analysis.results import markdown_row, put_table

HERE = os.path.dirname(os.path.abspath(__file__))
NAMES = {
    2: "two supporting facts",
    3: "three supporting facts",
    7: "counting",
    8: "lists and sets",
    11: "basic coreference",
    13: "compound coreference",
    14: "time reasoning",
    15: "basic deduction",
    16: "basic induction",
    17: "positional reasoning",
    18: "size reasoning",
    19: "path finding",
}
# Kim et al. 2017, table 4: answers and facts, in percent. Facts of tasks 7 and 8 are not counted.
PUBLISHED = {
    "memn2n": (
        (87.3, 52.6, 83.2, 94.1, 97.8, 95.6, 99.9, 100.0, 97.1, 61.1, 86.4, 21.3),
        (46.8, 1.4, None, None, 38.2, 14.8, 77.6, 59.3, 91.0, 23.9, 3.3, 10.2),
    ),
    "chain": (
        (84.7, 40.5, 83.5, 93.3, 97.7, 97.0, 99.7, 100.0, 97.9, 60.6, 92.2, 24.4),
        (81.8, 0.1, None, None, 80.8, 36.4, 98.2, 89.5, 85.6, 49.6, 3.9, 11.5),
    ),
    "unary_chain": (
        (43.5, 28.2, 79.3, 87.1, 88.6, 94.4, 90.5, 100.0, 98.0, 59.7, 92.0, 24.3),
        (22.3, 0.0, None, None, 0.0, 9.3, 30.2, 51.4, 41.4, 10.5, 1.4, 7.8),
    ),
}
# As printed; the mean of the facts of memn2n, as they are printed, is 36.6.
PUBLISHED_AVERAGES = {"memn2n": (81.4, 39.6), "chain": (81.0, 53.7), "unary_chain": (73.8, 17.4)}
WITHOUT_FACTS = (7, 8)


def latest(rows: List[Dict]) -> List[Dict]:
    """The last row of each task, system, setting and seed; changed options have another fingerprint."""
    return list({(row["task"], row["system"], row["setting"], row["seed"]): row for row in rows}.values())


def best_first(rows: List[Dict]) -> List[Dict]:
    """The starts in order of their results on the held-out questions."""
    return sorted(rows, key=lambda row: (-row["valid_accuracy"], row["valid_loss"], row["seed"]))


def reported(rows: List[Dict], task: int) -> Tuple[Optional[float], Optional[float], int]:
    """Answers and facts on the test set, and the number of starts, of the rows of one task, system and setting."""
    ranked = best_first(rows)
    if not ranked:
        return None, None, 0
    half = ranked[: (len(ranked) + 1) // 2]
    facts = None if task in WITHOUT_FACTS else statistics.mean(row["test_fact_accuracy"] for row in half)
    return ranked[0]["test_accuracy"], facts, len(ranked)


def mean(values: List[Optional[float]]) -> Optional[float]:
    """The mean; None if a value is missing."""
    return None if None in values else statistics.mean(values)


def cell(value: Optional[float]) -> str:
    return "–" if value is None else f"{value:.1f}"


def table(rows: List[Dict], setting: str) -> str:
    """Answers and facts of each task and system beside the published ones, as a table of Markdown."""
    heads = ["task"]
    for system in SYSTEMS:
        heads += [f"{system}: answers", "paper", "facts", "paper", "starts"]
    lines = [heads, ["---"] * len(heads)]
    columns: Dict[Tuple[str, str], List[Optional[float]]] = {}
    for place, task in enumerate(STEPS):
        line = [f"{task} {NAMES[task]}"]
        for system in SYSTEMS:
            own = [row for row in rows if (row["task"], row["system"], row["setting"]) == (task, system, setting)]
            answers, facts, starts = reported(own, task)
            published = [column[place] for column in PUBLISHED[system]]
            line += [cell(answers), cell(published[0]), cell(facts), cell(published[1]), str(starts)]
            columns.setdefault((system, "answers"), []).append(answers)
            if task not in WITHOUT_FACTS:
                columns.setdefault((system, "facts"), []).append(facts)
        lines.append(line)
    lines.append(_averages(columns))
    return "\n".join(map(markdown_row, lines))


def _averages(columns: Dict[Tuple[str, str], List[Optional[float]]]) -> List[str]:
    line = ["average"]
    for system in SYSTEMS:
        published = PUBLISHED_AVERAGES[system]
        own = [mean(columns[system, what]) for what in ("answers", "facts")]
        line += [cell(own[0]), cell(published[0]), cell(own[1]), cell(published[1]), ""]
    return line


def sources(rows: List[Dict]) -> str:
    """The commands that made the rows, with versions and machines."""
    made = {}
    for row in rows:
        used = ", ".join(f"{name} {version}" for name, version in row["versions"].items())
        made.setdefault(f"{used}; {row['machine']}.", set()).add(f"`{row['command']}`")
    return "\n".join(f"{', '.join(sorted(commands))}  \n{where}  " for where, commands in made.items())


@command
def main(arguments=None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", default=os.path.join(HERE, "results.jsonl"), metavar="FILE")
    parser.add_argument("--readme", default=os.path.join(HERE, "README.md"), metavar="FILE")
    options = parser.parse_args(arguments)
    check_inputs({"--results": options.results, "--readme": options.readme})
    rows = latest(read_rows(options.results))
    if not rows:
        raise InputError(f"--results {options.results}: no rows; run.sh makes them")
    tables = [
        f"Setting `{setting}`:\n\n{table(rows, setting)}"
        for setting in SETTINGS
        if any(row["setting"] == setting for row in rows)
    ]
    put_table(options.readme, "\n\n".join([*tables, sources(rows)]))


if __name__ == "__main__":
    main()
