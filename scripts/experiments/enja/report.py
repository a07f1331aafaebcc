"""Makes the report from the finished runs: tables and pictures in the README.

    python scripts/experiments/enja/report.py [RESULTS_DIR] [--dest DIR]

Nothing is trained and no corpus is needed. A system without runs is shown as missing.
"""

import argparse
import os
import statistics
from typing import Dict, List, Sequence

import report_pictures
from comparison import BOUND_LABELS, Difference, Runs, bias, by_length, coupling, difference
from recipes import read_rows
from segments import Count
from settings import MODELS, SEEDS, TITLES, TUNED, Name, chosen, finals, parse_name

from fairseq_structattn.analysis.files import command, read_json, write_lines
from fairseq_structattn.analysis.results import BEGIN, END, put_table

HERE = os.path.dirname(os.path.abspath(__file__))
TESTS = ("test", "test2")
MISSING = "–"
VALIDATION = (("valid_nll", 2), ("valid_bleu", 1))


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
        self.tried: Dict[str, Dict] = {}
        self.explored: Dict[Name, Runs] = {}
        for file in sorted(os.listdir(folder)):
            if file.endswith(".json"):
                self._add(os.path.join(folder, file))

    def _add(self, path: str) -> None:
        content = read_json(path, "name", "seed", "epochs")
        name = parse_name(content["name"])
        if name.trial is None and not name.is_final:
            self.explored.setdefault(name, {})[content["seed"]] = content
        elif name.trial is None:
            self.runs.setdefault(name, {})[content["seed"]] = content
        else:
            self.tried[str(name)] = content

    def baseline(self, name: Name) -> Runs:
        return self.runs[name._replace(system="softmax")]

    def differences(self, tests: Sequence[str]) -> Dict[Name, Difference]:
        """Differences to softmax of all systems that have a seed in common with it."""
        return {
            name: difference(runs, self.baseline(name), tests)
            for name, runs in self.runs.items()
            if name.system != "softmax" and set(runs) & set(self.baseline(name))
        }


def best_epoch(run: Dict) -> Dict:
    """The epoch whose checkpoint was taken."""
    return max(run["epochs"], key=lambda epoch: epoch["valid_bleu"])


def spread(values: Sequence[float], digits: int = 1) -> str:
    """The mean, and the standard deviation of several values."""
    if not values:
        return MISSING
    text = f"{statistics.mean(values):.{digits}f}"
    return text if len(values) == 1 else f"{text} ± {statistics.stdev(values):.{digits}f}"


def markdown(heads: Sequence[str], lines: Sequence[Sequence[str]], left: int = 1) -> str:
    """A table whose first `left` columns are text."""
    rules = ["---"] * left + ["---:"] * (len(heads) - left)
    return "\n".join("| " + " | ".join(line) + " |" for line in [heads, rules, *lines])


def label(name: Name) -> List[str]:
    return [name.side.upper(), name.model, TITLES[name.system]]


def score_table(results: Results) -> str:
    """A row for each system; a dash is a run that has not been made."""
    heads = ["source", "model", "attention", "seeds", "valid, bits a word", "valid, BLEU"]
    heads += [f"{test}, {metric}" for metric in ("BLEU", "chrF") for test in TESTS] + ["s an epoch"]
    lines = []
    for name, by_seed in results.runs.items():
        runs = list(by_seed.values())
        cells = [spread([best_epoch(run)[key] for run in runs], digits) for key, digits in VALIDATION]
        cells += [spread([run["test"][test][key] for run in runs]) for key in ("bleu", "chrf") for test in TESTS]
        seconds = [epoch["seconds"] for run in runs for epoch in run["epochs"]]
        lines.append([*label(name), f"{len(runs)} of {len(SEEDS)}", *cells, str(min(seconds)) if seconds else MISSING])
    return markdown(heads, lines, 3)


def difference_table(results: Results) -> str:
    """Each system against softmax: on both test sets alone, and together."""
    sets = {"test": ["test"], "test2": ["test2"], "both": list(TESTS)}
    found = {title: results.differences(tests) for title, tests in sets.items()}
    heads = ["source", "model", "attention", "seeds", *sets, "seed by seed (both)"]
    lines = [
        [
            *label(name),
            ", ".join(map(str, both.seeds)),
            *(_difference(found[title][name]) for title in sets),
            ", ".join(f"{value:+.1f}" for value in both.each),
        ]
        for name, both in found["both"].items()
    ]
    return markdown(heads, lines, 4) if lines else "No system has been trained beside softmax yet."


def _difference(found: Difference) -> str:
    return f"{found.mean:+.1f} [{found.low:+.1f}, {found.high:+.1f}], p = {found.p:.3f}"


def length_table(results: Results) -> str:
    """BLEU of both test sets together by the number of characters."""
    lines, sizes = [], []
    for name, runs in results.runs.items():
        if name.side == "char" and runs:
            found = by_length(runs)
            sizes = [size for size, _ in found]
            lines.append([name.model, TITLES[name.system], *(spread(scores) for _, scores in found)])
    if not lines:
        return ""
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
    return markdown(heads, lines, 3) if lines else ""


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
    lines = []
    for text, run in results.tried.items():
        name, best = parse_name(text), min(epoch["valid_nll"] for epoch in run["epochs"])
        bleu = f"{best_epoch(run)['valid_bleu']:.1f}"
        lines.append([name.model, TITLES[name.system], name.trial.replace(",", ", "), f"{best:.3f}", bleu])
    table = markdown(["model", "attention", "trial", "valid, bits a word", "valid, BLEU"], lines, 3) if lines else ""
    return table + "".join(_choice(model, results.folder) for model in MODELS)


def _choice(model: str, folder: str) -> str:
    try:
        points = {system: chosen(model, system, folder) for system in TUNED}
    except ValueError:
        return f"\n\n{model}: not all trials have been made."
    said = "; ".join(f"{system}: lr {point['lr']}, dropout {point['dropout']}" for system, point in points.items())
    return f"\n\n{model}: chosen {said}."


def exploration_table(results: Results) -> str:
    """The explored systems, beside softmax and the chain at the same seeds, on validation data."""
    if not results.explored:
        return ""
    seeds = sorted({seed for runs in results.explored.values() for seed in runs})
    beside = {name: results.runs[name] for name in (Name("char", "paper", system) for system in TUNED)}
    lines = []
    for name, by_seed in {**beside, **results.explored}.items():
        runs = [by_seed[seed] for seed in seeds if seed in by_seed]
        cells = [spread([best_epoch(run)[key] for run in runs], digits) for key, digits in VALIDATION]
        seconds = [epoch["seconds"] for run in runs for epoch in run["epochs"]]
        made = ", ".join(str(seed) for seed in seeds if seed in by_seed)
        lines.append([TITLES[name.system], made, *cells])
        lines[-1].append(str(min(seconds, default=MISSING)))
    return markdown(["CHAR, paper", "seeds", "valid, bits a word", "valid, BLEU", "s an epoch"], lines, 2)


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
    return markdown(heads, [[RECIPES[row["recipe"]], *scores] for row, scores in zip(rows, cells)]) if rows else ""


def origin(results: Results) -> str:
    """The command, versions and machines of the runs, and the signatures of the metrics."""
    runs = [run for by_seed in results.runs.values() for run in by_seed.values()]
    lines = {", ".join(f"{name} {version}" for name, version in run["versions"].items()) for run in runs}
    lines = [f"{line}; {machine}." for line in sorted(lines) for machine in sorted({run["machine"] for run in runs})]
    tests = [test for run in runs for test in run["test"].values()]
    signatures = sorted({test[key] for test in tests for key in ("signature", "chrf_signature")})
    made = "bash scripts/experiments/enja/run.sh --corpus FOLDER"
    return "  \n".join([f"`{made}`", *lines, *(f"`{one}`" for one in signatures)])


def sections(results: Results) -> List[str]:
    made = sum(len(runs) for runs in results.runs.values())
    wanted = len(SEEDS) * len(results.runs)
    tables = {
        f"Scores: {made} of {wanted} runs": score_table,
        "Against softmax": difference_table,
        "By length of the source, characters": length_table,
        "Ends of segments and of words": boundary_table,
        "What the chain learned": coupling_table,
        "What else was tried, on validation data": exploration_table,
        "Around a trained model": recipe_table,
        "Trials": trial_table,
    }
    found = {title: table(results) for title, table in tables.items()}
    return [*(f"### {title}\n\n{text}" for title, text in found.items() if text), origin(results)]


@command
def main(arguments=None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="?", default=os.path.join(HERE, "results"), metavar="RESULTS_DIR")
    parser.add_argument("--dest", default=HERE, metavar="DIR", help="folder of README.md and pictures (default: here)")
    options = parser.parse_args(arguments)
    readme = os.path.join(options.dest, "README.md")
    if not os.path.exists(readme):
        write_lines(readme, [BEGIN, END])
    results = Results(options.results)
    shown = "\n".join(f"![{title}]({file})" for title, file in report_pictures.draw_all(results, options.dest))
    put_table(readme, "\n\n".join(part for part in [shown, *sections(results)] if part))


if __name__ == "__main__":
    main()
