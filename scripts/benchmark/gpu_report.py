"""Joins the measurements of ``scripts/gpu_check.sh`` on a GPU into one file, and compares them with their targets.

    python scripts/benchmark/gpu_report.py WORK_DIR --output scripts/benchmark/results/CARD.json

``WORK_DIR`` holds ``tests.xml``, ``distributions.json``, ``training_speed.json`` and ``half_precision.json``; what is
not there yet counts as not measured.
"""

import argparse
import math
import os
import xml.etree.ElementTree as ElementTree
from typing import Dict, Iterator, List, NamedTuple, Optional

from fairseq_structattn.analysis.files import check_folders, check_outputs, command
from fairseq_structattn.analysis.results import machine, read_results, table, write_json

PARTS = ("distributions", "training_speed", "half_precision")


class Bar(NamedTuple):
    """What was found, and the most or the least that it should be.

    ``found`` is None where it was not measured, infinite where training collapsed.
    """

    what: str
    found: Optional[float]
    most: float = math.inf
    least: float = 0.0

    def row(self) -> Dict:
        bound = f"≤ {self.most:g}" if self.most < math.inf else f"≥ {self.least:g}"
        met = None if self.found is None else self.least <= self.found <= self.most
        found = self.found if self.found is None else "not finite"
        if self.found is not None and math.isfinite(self.found):
            found = float(f"{self.found:.3g}")
        return {"bar": self.what, "bound": bound, "found": found, "met": {None: None, True: "yes", False: "no"}[met]}


class Found:
    """The rows of one file of results."""

    def __init__(self, rows: List[Dict]):
        self.rows = rows

    def value(self, column: str, **wanted) -> Optional[float]:
        """Of the first row with these values; None if there is none."""
        rows = (row for row in self.rows if all(row.get(name) == value for name, value in wanted.items()))
        return next(rows, {}).get(column)


def quotient(one: Optional[float], other: Optional[float]) -> Optional[float]:
    """None where either was not measured."""
    return one / other if one and other else None


def bars(tests: Dict[str, int], kernels: Found, speed: Found, precision: Found) -> Iterator[Bar]:
    """All that is asked of a GPU."""
    yield Bar("tests of kernels that failed", tests.get("failed"), most=0)
    yield Bar("tests of kernels that passed", tests.get("passed"), least=1)
    chains = {"job": "binary chain", "batch": 100_000, "length": 200}
    chain = kernels.value("forward_ms", backend="cuda", **chains)
    yield Bar(
        "100,000 chains of 200, forward and backward, ms",
        kernels.value("forward_backward_ms", backend="cuda", **chains),
        most=0.6,
    )
    copy = kernels.value("forward_ms", library="copy", **chains)
    yield Bar("the same, forward, against copying its input", quotient(chain, copy), most=3)
    for name, fewest in (("projective tree", 50), ("spanning tree", None)):
        trees = {"job": name, "batch": 256, "length": 64}
        both = kernels.value("forward_backward_ms", backend="cuda", **trees)
        yield Bar(f"256 × {name} of 64 words, forward and backward, ms", both, most=1)
        if fewest:
            yield Bar(
                "the same, torch-struct's time", kernels.value("ratio", library="torch-struct", **trees), least=fewest
            )
    yield Bar("words per second, luong_general against lstm", relative(speed, "lstm", "luong_general"), least=4)
    yield Bar(
        "time of a training step, crf against softmax", inverse(relative(speed, "luong_general", "crf")), most=1.05
    )
    for system in ("tree", "tree_nonprojective"):
        against_flat = inverse(relative(speed, "flat", system))
        yield Bar(f"time of a training step, {system} against flat", against_flat, most=1.2)
    for row in precision.rows:
        held = row["updates"] >= int(row["job"].split()[0]) and row["last_loss"] is not None
        what = f"{row['job']} of {row['system']} in {row['precision']}: last loss against first"
        yield Bar(what, quotient(row["last_loss"], row["first_loss"]) if held else math.inf, most=1)


def relative(speed: Found, baseline: str, system: str) -> Optional[float]:
    """The baseline's time divided by the system's, in float32."""
    rows = [row for row in speed.rows if row["job"].startswith(f"training step against {baseline}")]
    full = [row for row in rows if not row["job"].endswith(("16", "amp"))]
    return Found(full).value("ratio", system=system)


def inverse(ratio: Optional[float]) -> Optional[float]:
    """1 / ratio."""
    return quotient(1.0, ratio)


def count_tests(path: str) -> Dict[str, int]:
    """Of a file written by ``pytest --junitxml``; nothing if there is no such file."""
    if not os.path.exists(path):
        return {}
    suite = ElementTree.parse(path).getroot().find("testsuite")
    counts = {name: int(suite.get(name)) for name in ("tests", "failures", "errors", "skipped")}
    failed = counts["failures"] + counts["errors"]
    return {**counts, "failed": failed, "passed": counts["tests"] - failed - counts["skipped"]}


def report(work: str) -> Dict:
    """All parts as one file of results; its rows are the bars."""
    parts = {name: read_results(os.path.join(work, name + ".json")) for name in PARTS}
    tests = count_tests(os.path.join(work, "tests.xml"))
    found = [Found(parts[name]["rows"]) for name in PARTS]
    measured = [part for part in parts.values() if part["rows"]]
    return {
        "command": "bash scripts/gpu_check.sh",
        "versions": {name: version for part in measured for name, version in part["versions"].items()},
        "machine": measured[-1]["machine"] if measured else machine(),
        "rows": [bar.row() for bar in bars(tests, *found)],
        "tests": tests,
        **{name: part["rows"] for name, part in parts.items()},
    }


@command
def main(arguments=None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", metavar="WORK_DIR")
    parser.add_argument("--output", required=True, metavar="FILE")
    arguments = parser.parse_args(arguments)
    check_folders({"WORK_DIR": arguments.work})
    check_outputs({"--output": arguments.output})
    made = report(arguments.work)
    write_json(arguments.output, made)
    print(table(made))
    print(f"results       {arguments.output}")


if __name__ == "__main__":
    main()
