"""Collects the runs of ``run.sh`` in results.json, and writes the table of the README and the pictures.

python scripts/experiments/tree_transduction/report.py WORK_DIR
"""

import argparse
import glob
import os
import statistics
from typing import Dict, List, Tuple

from fairseq_structattn.analysis.files import (
    InputError,
    check_folders,
    check_inputs,
    check_output_folders,
    command,
    read_json,
)
from fairseq_structattn.analysis.picture_files import check_picture, save_picture
from fairseq_structattn.analysis.results import (
    add_rows,
    log_records,
    markdown_row,
    put_table,
    read_results,
    sources,
    split_readme,
)

DEPTHS = (2, 3, 4, 5, 6)
SYSTEMS = ("none", "flat", "uniform", "nonprojective", "tree")
SETTINGS = ("sgd", "sgd_no_tanh", "sgd_paper_init", "adam", "best", "best, ensemble")
# Kim et al. 2017, table 2: "no atten", "simple", "structured".
PUBLISHED = {
    "none": (7.6, 4.1, 2.8, 2.1, 1.5),
    "flat": (87.4, 49.6, 23.3, 15.0, 8.5),
    "tree": (99.2, 87.0, 64.5, 30.8, 18.2),
}
# fairseq's names of the validation sets; the first, of depths 2 to 4, chooses the checkpoint.
VALIDATION = {"valid": "chosen", "valid1": 2, "valid2": 3, "valid3": 4, "valid4": 5, "valid5": 6}


def learning_curve(log: str) -> List[Dict[str, float]]:
    """Length to failure of each validation set at the end of each epoch."""
    epochs: Dict[int, Dict[str, float]] = {}
    for record in log_records(log):
        for subset, depth in VALIDATION.items():
            if f"{subset}_length_to_failure" in record:
                value = float(record[f"{subset}_length_to_failure"])
                epochs.setdefault(record["epoch"], {})[f"depth{depth}"] = value
    if not epochs:
        raise InputError(f"{log}: no validation was finished; run the training again")
    return [epochs[epoch] for epoch in sorted(epochs)]


def validation_of(folder: str) -> List[Tuple[str, str, float]]:
    """``("valid", metric, value)`` of the chosen checkpoint, and of depth 3 after each epoch."""
    curve = learning_curve(os.path.join(folder, "train.log"))
    best = max(curve, key=lambda epoch: epoch["depthchosen"])
    found = [("valid", f"length_to_failure@{depth}", value) for depth, value in best.items() if depth != "depthchosen"]
    return found + [
        ("valid", f"length_to_failure@depth3_after_epoch{n}", epoch["depth3"]) for n, epoch in enumerate(curve, 1)
    ]


def rows_of(folder: str) -> List[Dict]:
    """Results of one run: of the test set, and of the validation sets at the epoch whose checkpoint was taken; of an
    ensemble, whose folder is named after several seeds, those of the test set."""
    name, _, seed = os.path.basename(folder).rpartition("-")
    system, _, setting = name.partition(".")
    if system not in SYSTEMS or setting not in SETTINGS or not seed.replace("+", "").isdecimal():
        raise InputError(f"{folder}: no run of run.sh, which are named SYSTEM.SETTING-SEED; move it elsewhere")
    if "+" in seed:
        own = {"system": system, "setting": f"{setting}, ensemble", "seed": seed}
        found, files = [], ["test.json"]
    else:
        own = {"system": system, "setting": setting, "seed": int(seed)}
        found, files = validation_of(folder), ["test.json", "induced_trees.json"]
    for file in files:
        scores = read_json(os.path.join(folder, file))
        found += [("test", metric, value) for metric, value in scores.items() if metric != "lines"]
    return [{**own, "split": split, "metric": metric, "value": value} for split, metric, value in found]


def means(rows: List[Dict], split: str, metric: str) -> Dict[str, List[float]]:
    """Values over seeds, by ``system.setting``."""
    found: Dict[str, List[float]] = {}
    for row in rows:
        if (row["split"], row["metric"]) == (split, metric):
            found.setdefault(f"{row['system']}.{row['setting']}", []).append(row["value"])
    return found


def cell(values: List[float]) -> str:
    if not values:
        return ""
    return f"{statistics.mean(values):.1f}" + (f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else "")


def table(rows: List[Dict]) -> str:
    """Length to failure by depth beside the published one, and recovered brackets."""
    heads = [
        "system",
        "setting",
        "seeds",
        *(f"depth {depth}" for depth in DEPTHS),
        "brackets",
        "by chance",
        "previous word",
        "by chance",
    ]
    lines = [heads, ["---"] * len(heads)]
    for system, values in PUBLISHED.items():
        lines.append([system, "Kim et al. 2017", "", *map(str, values), "", "", "", ""])
    names = sorted(
        {(row["system"], row["setting"]) for row in rows},
        key=lambda name: (SETTINGS.index(name[1]), SYSTEMS.index(name[0])),
    )
    scores = [means(rows, "test", f"length_to_failure@depth{depth}") for depth in DEPTHS]
    for system, setting in names:
        name = f"{system}.{setting}"
        seeds = dict.fromkeys(str(row["seed"]) for row in rows if (row["system"], row["setting"]) == (system, setting))
        kinds = (f"{what}_{whose}" for what in ("brackets", "previous") for whose in ("model", "uniform"))
        found = [_over_depths(rows, name, kind) for kind in kinds]
        lines.append([system, setting, ", ".join(seeds), *(cell(score[name]) for score in scores), *map(cell, found)])
    return "\n".join(map(markdown_row, lines))


def _over_depths(rows: List[Dict], name: str, metric: str) -> List[float]:
    """Mean of a metric over depths, for each seed."""
    by_depth = [means(rows, "test", f"{metric}@depth{depth}").get(name, []) for depth in DEPTHS]
    return [statistics.mean(values) for values in zip(*by_depth)]


def plot(rows: List[Dict], folder: str) -> None:
    """``by_depth.png`` and ``learning.png``."""
    from matplotlib.figure import Figure  # not pyplot: it would look for a display

    settings = {"none.sgd": "none", "flat.sgd": "flat", "tree.sgd": "tree", "uniform.sgd": "uniform trees"}
    scores = [means(rows, "test", f"length_to_failure@depth{depth}") for depth in DEPTHS]
    figure = Figure(figsize=(5, 3.5), layout="tight")
    axes = figure.add_subplot()
    for number, (name, label) in enumerate(settings.items()):
        values = [score[name] for score in scores if name in score]
        if values:
            spread = [statistics.stdev(value) if len(value) > 1 else 0 for value in values]
            axes.errorbar(
                DEPTHS, list(map(statistics.mean, values)), spread, label=label, color=f"C{number}", capsize=3
            )
        if label in PUBLISHED:
            axes.plot(DEPTHS, PUBLISHED[label], "--", color=f"C{number}", alpha=0.6)
    _finish(figure, axes, "depth", "right before the first error, %", os.path.join(folder, "by_depth.png"), DEPTHS)
    figure = Figure(figsize=(5, 3.5), layout="tight")
    axes = figure.add_subplot()
    for number, (name, label) in enumerate(settings.items()):
        curve = []
        while name in means(rows, "valid", f"length_to_failure@depth3_after_epoch{len(curve) + 1}"):
            values = means(rows, "valid", f"length_to_failure@depth3_after_epoch{len(curve) + 1}")[name]
            curve.append((min(values), statistics.mean(values), max(values)))
        if curve:
            epochs = range(1, len(curve) + 1)
            least, mean, most = zip(*curve)
            axes.plot(epochs, mean, label=label, color=f"C{number}")
            axes.fill_between(epochs, least, most, color=f"C{number}", alpha=0.2, linewidth=0)
    _finish(figure, axes, "epoch", "validation, depth 3, %", os.path.join(folder, "learning.png"))


def _finish(figure, axes, x: str, y: str, path: str, ticks=None) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_ylim(0, 102)
    if ticks:
        axes.set_xticks(ticks)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncol=4, handlelength=1.5)
    save_picture(figure, path)


@command
def main(arguments=None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", metavar="WORK_DIR")
    parser.add_argument("--command", default="bash scripts/experiments/tree_transduction/run.sh")
    parser.add_argument("--dest", required=True, metavar="DIR", help="folder of results.json, README.md and pictures")
    options = parser.parse_args(arguments)
    check_folders({"WORK_DIR": options.work})
    check_output_folders({"--dest": options.dest})
    readme, results = (os.path.join(options.dest, name) for name in ("README.md", "results.json"))
    check_inputs({"--dest": readme})
    split_readme(readme)
    check_picture("--dest", os.path.join(options.dest, "by_depth.png"))
    last = ("*/induced_trees.json", "*+*/test.json")  # what a run, and an ensemble, writes at its end
    done = sorted(os.path.dirname(path) for name in last for path in glob.glob(os.path.join(options.work, name)))
    if not done:
        raise InputError(f"{options.work}: no finished run; run run.sh first")
    add_rows(results, options.command, [row for folder in done for row in rows_of(folder)])
    content = read_results(results)
    put_table(readme, f"{table(content['rows'])}\n\n{sources(content)}")
    plot(content["rows"], options.dest)


if __name__ == "__main__":
    main()
