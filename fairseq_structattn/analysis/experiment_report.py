"""Tables of the report of an experiment with translation, from the files that its runs left."""

import argparse
import os
import statistics
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Sequence, TypeVar

from fairseq_structattn.analysis.files import read_json, write_lines
from fairseq_structattn.analysis.results import BEGIN, END, put_table
from fairseq_structattn.analysis.system_differences import Difference, Runs, differences

TESTS = ("test", "test2")
MISSING = "–"
VALIDATION = (("valid_nll", 2), ("valid_bleu", 1))
VALIDATION_HEADS = ("valid, bits a word", "valid, BLEU")
Name = TypeVar("Name")


def kept_runs(folder: str) -> Iterator[Dict]:
    """The contents of the files of runs and trials in a folder, in the order of their names."""
    for file in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        if file.endswith(".json"):
            yield read_json(os.path.join(folder, file), "name", "seed", "epochs")


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
    """A table whose first `left` columns are text; empty without lines."""
    rules = ["---"] * left + ["---:"] * (len(heads) - left)
    return "\n".join("| " + " | ".join(line) + " |" for line in [heads, rules, *lines]) if lines else ""


def validation_cells(runs: Sequence[Dict]) -> List[str]:
    """Loss and BLEU on validation data, as in :data:`VALIDATION_HEADS`."""
    return [spread([best_epoch(run)[key] for run in runs], digits) for key, digits in VALIDATION]


def fastest_epoch(runs: Sequence[Dict]) -> str:
    """Seconds of the fastest epoch: others may have been slowed down by what the machine did besides."""
    return str(min((epoch["seconds"] for run in runs for epoch in run["epochs"]), default=MISSING))


class Systems(NamedTuple):
    """The systems of an experiment.

    Attributes:
        heads: heads of the columns that tell the system
        label: the cells of these columns
        runs: results by name and seed; empty for a system without runs
        baseline: the results of the system that another is compared with; of a baseline, its own
        seeds: how many a system is to have
    """

    heads: Sequence[str]
    label: Callable[[Any], List[str]]
    runs: Mapping[Any, Runs]
    baseline: Callable[[Any], Runs]
    seeds: int


def score_table(systems: Systems) -> str:
    """A row for each system; a dash is a run that has not been made."""
    titles = [*systems.heads, "seeds", *VALIDATION_HEADS]
    titles += [f"{test}, {metric}" for metric in ("BLEU", "chrF") for test in TESTS] + ["s an epoch"]
    lines = []
    for name, by_seed in systems.runs.items():
        runs = list(by_seed.values())
        cells = [spread([run["test"][test][key] for run in runs]) for key in ("bleu", "chrf") for test in TESTS]
        cells = [f"{len(runs)} of {systems.seeds}", *validation_cells(runs), *cells, fastest_epoch(runs)]
        lines.append([*systems.label(name), *cells])
    return markdown(titles, lines, len(systems.heads))


def difference_table(systems: Systems) -> str:
    """Each system against its baseline: on both test sets alone, and together."""
    sets = {**{test: [test] for test in TESTS}, "both": list(TESTS)}
    found = {title: differences(systems.runs, systems.baseline, tests) for title, tests in sets.items()}
    lines = [
        [
            *systems.label(name),
            ", ".join(map(str, both.seeds)),
            *(_difference(found[title][name]) for title in sets),
            ", ".join(f"{value:+.1f}" for value in both.each),
        ]
        for name, both in found["both"].items()
    ]
    made = markdown([*systems.heads, "seeds", *sets, "seed by seed (both)"], lines, len(systems.heads) + 1)
    return made or "No system has been trained beside softmax yet."


def _difference(found: Difference) -> str:
    return f"{found.mean:+.1f} [{found.low:+.1f}, {found.high:+.1f}], p = {found.p:.3f}"


def trial_table(heads: Sequence[str], label: Callable[[Name], List[str]], trials: Mapping[Name, Dict]) -> str:
    """A row for each trial; the cells of `label` are those of `heads`, the last of which is of the settings."""
    lines = []
    for name, run in trials.items():
        best = min(epoch["valid_nll"] for epoch in run["epochs"])
        lines.append([*label(name), f"{best:.3f}", f"{best_epoch(run)['valid_bleu']:.1f}"])
    return markdown([*heads, *VALIDATION_HEADS], lines, len(heads))


def choice(of: str, chosen: Callable[[str], Dict[str, str]], systems: Iterable[str]) -> str:
    """A sentence on what the trials decided.

    Args:
        of: model or corpus
        chosen: the settings of a system; an InputError where a trial is missing
        systems: those that have trials
    """
    try:
        points = {system: chosen(system) for system in systems}
    except ValueError:
        return f"{of}: not all trials have been made."
    said = "; ".join(f"{system}: lr {point['lr']}, dropout {point['dropout']}" for system, point in points.items())
    return f"{of}: chosen {said}."


def origin(call: str, systems: Systems) -> str:
    """The command, versions and machines of the runs, and the signatures of the metrics."""
    runs = [run for by_seed in systems.runs.values() for run in by_seed.values()]
    used = {", ".join(f"{name} {version}" for name, version in run["versions"].items()) for run in runs}
    machines = sorted({run["machine"] for run in runs})
    lines = [f"{versions}; {machine}." for versions in sorted(used) for machine in machines]
    tests = [test for run in runs for test in run["test"].values()]
    signatures = sorted({test[key] for test in tests for key in ("signature", "chrf_signature")})
    return "  \n".join([f"`{call}`", *lines, *(f"`{one}`" for one in signatures)])


def sections(systems: Systems, further: Mapping[str, str], call: str) -> List[str]:
    """The parts of a report: scores, differences, and further tables, of which empty ones are left out.

    Args:
        systems: of the experiment
        further: tables by title
        call: the command that makes the runs
    """
    made, wanted = sum(map(len, systems.runs.values())), systems.seeds * len(systems.runs)
    tables = {
        f"Scores: {made} of {wanted} runs": score_table(systems),
        "Against softmax": difference_table(systems),
        **further,
    }
    return [*(f"### {title}\n\n{text}" for title, text in tables.items() if text), origin(call, systems)]


def write_report(here: str, about: Optional[str], parts: Callable[[str, str], List[str]], arguments=None) -> None:
    """The command of a report: puts it into the README.

    Args:
        here: folder of the experiment
        about: text of ``--help``
        parts: from the folder of the results and that of README and pictures
        arguments: of the command; None for those of the process
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="?", default=os.path.join(here, "results"), metavar="RESULTS_DIR")
    parser.add_argument("--dest", default=here, metavar="DIR", help="folder of README.md and pictures (default: here)")
    options = parser.parse_args(arguments)
    readme = os.path.join(options.dest, "README.md")
    if not os.path.exists(readme):
        write_lines(readme, [BEGIN, END])
    put_table(readme, "\n\n".join(part for part in parts(options.results, options.dest) if part))
