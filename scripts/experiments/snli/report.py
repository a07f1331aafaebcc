"""Makes the report from the finished runs: the tables of the README.

    python scripts/experiments/snli/report.py [RESULTS_DIR] [--dest DIR]

Nothing is trained and no corpus is needed. A system without runs is shown as missing.
"""

import argparse
import os
import shutil
from typing import Callable, Dict, List, NamedTuple, Sequence, Tuple

import numpy as np
from make_run import METRICS, unpack
from systems import PAPER, SEEDS, SYSTEMS, TITLES, TRANSLATION_TITLES, WITH_TREES, parsers, runs

from fairseq_structattn.analysis.experiment_report import MISSING, spread
from fairseq_structattn.analysis.files import command, read_json
from fairseq_structattn.analysis.results import markdown_row, put_table

HERE = os.path.dirname(os.path.abspath(__file__))
SAMPLES, SEED = 2000, 12345
DECODINGS = ("argmax", "risk")
Runs = Dict[int, Dict]  # results of one system by seed


class Difference(NamedTuple):
    """Accuracy of a system minus that of another, in points: mean, ends of the 95 % interval, two-sided p, and for how
    many seeds."""

    mean: float
    low: float
    high: float
    p: float
    seeds: int


def read_runs(folder: str) -> Dict[str, Runs]:
    """Results by name and seed."""
    found: Dict[str, Runs] = {}
    for file in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        if file.endswith(".json"):
            content = read_json(os.path.join(folder, file), "name", "seed", "epochs", "test")
            found.setdefault(content["name"], {})[content["seed"]] = content
    return found


def gains(system: Runs, baseline: Runs) -> Tuple[np.ndarray, int]:
    """How much more often the system is right on each test pair, in points ``[pairs]``, as a mean over the seeds that
    both systems have; and the number of these seeds."""
    seeds = sorted(set(system) & set(baseline))
    rights = [[np.array(unpack(of[seed]["test"]["right"]), dtype=float) for seed in seeds] for of in (system, baseline)]
    return 100 * (np.mean(rights[0], 0) - np.mean(rights[1], 0)), len(seeds)


def p_value(gained: np.ndarray) -> float:
    """The probability of a mean at least as far from 0 if both systems are equally good, by approximate randomisation:
    they exchange each test pair with probability 1/2, as in fairseq_structattn/analysis/paired_tests.py."""
    moved = gained[gained != 0]
    signs = 2.0 * np.random.default_rng(SEED).integers(2, size=(SAMPLES, len(moved))) - 1
    as_large = np.abs(signs @ moved) >= abs(moved.sum()) - 1e-9
    return float((as_large.sum() + 1) / (SAMPLES + 1))


def difference(system: Runs, baseline: Runs) -> Difference:
    """The difference of two systems that have a seed in common, with the interval of a paired bootstrap over test pairs
    (Koehn 2004)."""
    gained, seeds = gains(system, baseline)
    drawn = np.random.default_rng(SEED).integers(len(gained), size=(SAMPLES, len(gained)))
    low, high = np.percentile(gained[drawn].mean(1), [2.5, 97.5])
    return Difference(float(gained.mean()), float(low), float(high), p_value(gained), seeds)


def shown_p(p: float) -> str:
    return f"{p:.3f}" if p >= 0.001 else "< 0.001"


def table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rules = ["---"] + ["---:"] * (len(heads) - 1)
    return "\n".join([markdown_row(heads), "| " + " | ".join(rules) + " |", *map(markdown_row, lines)])


def of_test(own: Runs, value: Callable[[Dict], float], digits: int = 1) -> str:
    return spread([value(run["test"]) for run in own.values()], digits)


def best_valid(own: Runs, metric: str) -> str:
    return spread([max(epoch[f"valid_{metric}"] for epoch in run["epochs"]) for run in own.values()])


def count(own: Runs) -> str:
    return f"{len(own)} of {len(SEEDS)}"


def parser_table(found: Dict[str, Runs]) -> str:
    """Attachment scores of the parsers, beside chance."""
    heads = [
        "parser",
        "seeds",
        "valid",
        *(f"{kind}, {how}" for how in DECODINGS for kind in ("directed", "undirected")),
    ]
    lines = []
    for name in parsers():
        own = found.get(name, {})
        cells = [_score(own, how, kind) for how in DECODINGS for kind in ("directed", "undirected")]
        lines.append([name.partition(".")[2].replace(".", ", "), count(own), best_valid(own, "uas"), *cells])
    return table(heads, lines + chance_lines(found, 3))


def _score(own: Runs, how: str, kind: str) -> str:
    return of_test(own, lambda test: test[how][kind])


def chance_lines(found: Dict[str, Runs], columns: int) -> List[List[str]]:
    """Scores of the baselines without a model, from the result of any parser."""
    for name in parsers():
        for run in found.get(name, {}).values():
            return [
                [how, *[""] * (columns - 1), f"{scores['directed']:.1f}", f"{scores['undirected']:.1f}", "", ""]
                for how, scores in run["test"].items()
                if how not in DECODINGS
            ]
    return []


def pairs_table(found: Dict[str, Runs], kind: str) -> str:
    """Accuracy of the systems, and their differences to the softmax."""
    heads = ["beside a word", "seeds", "parameters", "valid", "test", "to softmax", "95 %", "p", "paper (SNLI)"]
    baseline, lines = found.get(f"{kind}.flat", {}), []
    for system in SYSTEMS:
        own = found.get(f"{kind}.{system}", {})
        sizes = sorted({run["parameters"]["without_embeddings"] for run in own.values()})
        cells = [TITLES[system], count(own), ", ".join(f"{size:,}" for size in sizes) or MISSING]
        cells += [best_valid(own, METRICS[kind]), of_test(own, lambda test: test["accuracy"])]
        cells += _compared(own, baseline) if system != "flat" else ["", "", ""]
        lines.append([*cells, str(PAPER.get(system, ""))])
    return table(heads, lines)


def _compared(own: Runs, baseline: Runs) -> List[str]:
    if not set(own) & set(baseline):
        return [MISSING] * 3
    found = difference(own, baseline)
    return [f"{found.mean:+.1f}", f"{found.low:+.1f} … {found.high:+.1f}", shown_p(found.p)]


def differences_table(found: Dict[str, Runs], kind: str) -> str:
    """Accuracy of each system minus that of each before it, and p."""
    names = list(SYSTEMS)
    lines = []
    for place, system in enumerate(names[1:], 1):
        own = found.get(f"{kind}.{system}", {})
        cells = [_mean_and_p(own, found.get(f"{kind}.{other}", {})) for other in names[:place]]
        lines.append([system, *cells, *[""] * (len(names) - 1 - place)])
    return table(["row − column", *names[:-1]], lines)


def _mean_and_p(own: Runs, other: Runs) -> str:
    if not set(own) & set(other):
        return MISSING
    gained, _ = gains(own, other)
    return f"{gained.mean():+.1f} ({shown_p(p_value(gained))})"


def induced_table(found: Dict[str, Runs], kind: str) -> str:
    """Trees that were learned from labels, against those of the treebank."""
    heads = ["trees of", "seeds", *(f"{which}, {how}" for how in DECODINGS for which in ("directed", "undirected"))]
    lines = []
    for system in WITH_TREES:
        own = {seed: run for seed, run in found.get(f"{kind}.{system}", {}).items() if "trees" in run["test"]}
        cells = [of_test(own, _tree_score(how, which)) for how in DECODINGS for which in ("directed", "undirected")]
        lines.append([TITLES[system], count(own), *cells])
    return table(heads, lines + chance_lines(found, 2)) + _unknown_words(found, kind)


def _unknown_words(found: Dict[str, Runs], kind: str) -> str:
    """The share of unknown words, the same for all models of pairs, which have the same vocabulary."""
    tests = [run["test"] for name, own in found.items() if name.startswith(f"{kind}.") for run in own.values()]
    shares = sorted({test["unknown_words"] for test in tests if "unknown_words" in test})
    if not shares:
        return ""
    return f"\n\nOf the words of these sentences {', '.join(map(str, shares))} % are `<unk>` for the models of pairs."


def _tree_score(how: str, which: str) -> Callable[[Dict], float]:
    return lambda test: test["trees"][how][which]


def translation_table(found: Dict[str, Runs]) -> str:
    heads = ["beside a source word", "seeds", "parameters", "valid, BLEU", "test 2016, BLEU"]
    lines = []
    for name in runs("translation"):
        own = found.get(name, {})
        sizes = sorted({run["parameters"]["all"] for run in own.values()})
        cells = [TRANSLATION_TITLES[name.partition(".")[2]], count(own)]
        cells += [", ".join(f"{size:,}" for size in sizes) or MISSING, best_valid(own, "bleu")]
        lines.append([*cells, of_test(own, lambda test: test["bleu"])])
    return table(heads, lines)


def made_with(found: Dict[str, Runs]) -> str:
    """Versions and machines of all runs, and how long an epoch took."""
    every = [run for own in found.values() for run in own.values()]
    versions = sorted({", ".join(f"{name} {value}" for name, value in run["versions"].items()) for run in every})
    machines = sorted({run["machine"] for run in every})
    return "  \n".join([*versions, *machines])


def _of_kind(found: Dict[str, Runs], kind: str, title: str) -> List[Tuple[str, str]]:
    return [
        (title, pairs_table(found, kind)),
        ("Differences in test accuracy, and p", differences_table(found, kind)),
        ("Their trees, on the test set of UD English EWT", induced_table(found, kind)),
    ]


def report(found: Dict[str, Runs]) -> str:
    """All tables."""
    made = sum(len(own) for own in found.values())
    published = any(name.startswith("published.") for name in found)
    sections = [
        *(_of_kind(found, "published", "SNLI, published setting") if published else []),
        *_of_kind(found, "pairs", "Pairs"),
        ("The parser alone, on the same", parser_table(found)),
        ("Translation, English to German", translation_table(found)),
    ]
    text = "\n\n".join(f"### {title}\n\n{body}" for title, body in sections)
    return f"{text}\n\nRuns made: {made}. {made_with(found)}".rstrip()


@command
def main(arguments=None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="?", default=os.path.join(HERE, "results"), metavar="RESULTS_DIR")
    parser.add_argument("--dest", default=HERE, metavar="DIR", help="folder of README.md (default: here)")
    options = parser.parse_args(arguments)
    readme = os.path.join(options.dest, "README.md")
    if not os.path.exists(readme):
        shutil.copy(os.path.join(HERE, "README.md"), readme)
    put_table(readme, report(read_runs(options.results)))
    print(f"{readme}: written")


if __name__ == "__main__":
    main()
