"""Results of experiments and benchmarks: the file format, how it is written, and the tables made from it.

A file of results is ``{"command", "versions", "machine", "rows"}``. Rows of an experiment are
``{system, setting, seed, split, metric, value}``; rows of a benchmark have columns of their own. A row that was made by
another command, other versions or another machine than the file names has these three in a column ``made_with``.

    python -m fairseq_structattn.analysis.results score --results R --system S … --bleu BLEU --train-log LOG
    python -m fairseq_structattn.analysis.results table --results R --readme README.md
"""

import argparse
import json
import os
import platform
import re
import statistics
from collections import OrderedDict
from importlib import metadata
from typing import Dict, Iterable, List, Sequence, Tuple

from fairseq_structattn.analysis.files import (
    InputError,
    check_inputs,
    check_outputs,
    command,
    numbered_lines,
    read_json,
    replaced,
    write_json,
)

BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
SOURCE = ("command", "versions", "machine")
PACKAGES = ("torch", "numpy", "sacrebleu", "fairseq", "ve-fairseq", "fairseq-fixed")


def versions(*others: str) -> Dict[str, str]:
    """Versions of Python, of the packages that all results depend on, and of those of `others` that are installed."""
    found = {"python": platform.python_version()}
    for package in (*PACKAGES, *others):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def machine() -> str:
    """Description of this machine: processor, cores, GPU."""
    import torch

    processor = platform.processor() or platform.machine()
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
        processor = names[0] if names else processor
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return f"{processor}, {os.cpu_count()} cores, {gpu}"


def read_results(path: str) -> Dict:
    """The results in `path`; empty results if there is no such file."""
    if not os.path.exists(path):
        return {"command": "", "versions": {}, "machine": "", "rows": []}
    results = read_json(path, "command", "versions", "machine", "rows")
    if not isinstance(results["rows"], list) or not all(isinstance(row, dict) for row in results["rows"]):
        raise InputError(f"{path}: no file of results, its rows are not objects; name another")
    return results


def add_rows(path: str, command: str, rows: List[Dict]) -> None:
    """Adds `rows` to `path`; a row replaces an older one of the same system, setting, seed, split and metric.

    Other rows of the file keep their source.
    """
    results = read_results(path)
    columns = ("system", "setting", "seed", "split", "metric")
    if not all(set(columns) <= set(row) for row in results["rows"]):
        raise InputError(f"{path}: its rows are not of an experiment, which have {', '.join(columns)}; name another")

    def key(row):
        return tuple(row[name] for name in columns)

    content = {"command": command, "versions": versions(), "machine": machine()}
    merged = OrderedDict((key(row), row) for row in [*_kept(results["rows"], results, content), *rows])
    write_json(path, {**content, "rows": list(merged.values())})


def replace_rows(path: str, content: Dict, same: Sequence[str]) -> None:
    """Writes results; rows of an older file at `path` are replaced by new ones that agree in all columns `same`.

    Rows that are not replaced stay, and keep their source.
    """
    new = {tuple(row[column] for column in same) for row in content["rows"]}
    old = read_results(path)
    kept = [row for row in old["rows"] if tuple(row[column] for column in same) not in new]
    write_json(path, {**content, "rows": _kept(kept, old, content) + content["rows"]})


def source_of(row: Dict, results: Dict) -> Dict:
    """The command, the versions and the machine that made a row of `results`."""
    return row.get("made_with") or {part: results[part] for part in SOURCE}


def _kept(rows: List[Dict], old: Dict, new: Dict) -> List[Dict]:
    """Rows of the file `old` for the file `new`; a row has its source if it differs from the source of `new`."""
    made = []
    for row in rows:
        source = source_of(row, old)
        bare = {column: value for column, value in row.items() if column != "made_with"}
        same = all(source[part] == new[part] for part in SOURCE)
        made.append(bare if same else {**bare, "made_with": source})
    return made


def log_records(path: str) -> Iterable[Dict]:
    """The records of a log made with ``--log-format json --log-file``, without a last line that was cut off."""
    for number, line in numbered_lines(path):
        if line.startswith('{"') and line.endswith("\n"):
            try:
                yield json.loads(line)
            except ValueError as error:
                raise InputError(f"{path}, line {number}: not JSON ({error}); run the training again") from None


def epochs(path: str, marker: str = "train_wps") -> List[Dict]:
    """The last record with `marker` of each epoch, from a log made with ``--log-format json --log-file``."""
    records = {record["epoch"]: record for record in log_records(path) if marker in record}
    if not records:
        raise InputError(f"{path}: no epoch was finished; run the training again")
    return [records[epoch] for epoch in sorted(records)]


def validation(path: str) -> Dict[str, float]:
    """BLEU and mean loss per word in bits of the best epoch by BLEU, as logged with ``--eval-bleu``."""
    best = max(epochs(path, "valid_bleu"), key=lambda record: float(record["valid_bleu"]))
    return {"bleu": float(best["valid_bleu"]), "nll": float(best["valid_nll_loss"])}


def score(arguments) -> None:
    """Adds BLEU with its signature, and the training speed, of one system."""
    check_inputs({"--bleu": arguments.bleu, "--train-log": arguments.train_log})
    check_outputs({"--results": arguments.results})
    measured = read_json(arguments.bleu, "bleu", "signature")
    records = epochs(arguments.train_log)
    walls = [float(record["train_train_wall"]) for record in records]
    speed = {
        "seconds_per_epoch": round(statistics.median(walls), 1),
        "target_words_per_second": round(statistics.median(float(record["train_wps"]) for record in records)),
        "epochs": len(records),
    }
    scores = {"bleu": measured["bleu"], "bleu_signature": measured["signature"]}
    if "confidence95" in measured:
        scores["bleu_confidence95"] = measured["confidence95"]
    found = {"valid": validation(arguments.train_log), arguments.split: scores, "train": speed}
    own = {"system": arguments.system, "setting": arguments.setting, "seed": arguments.seed}
    rows = [
        {**own, "split": split, "metric": metric, "value": value}
        for split, metrics in found.items()
        for metric, value in metrics.items()
    ]
    add_rows(arguments.results, arguments.command, rows)
    print(f"{arguments.system}, {arguments.setting}, seed {arguments.seed}: BLEU {measured['bleu']}")


# Characters that Markdown would not show as they are. An underscore within a word is shown.
MARKUP = re.compile(r"[\\|`*\[\]~$]|<(?=[\w/!?])|&(?=[#\w])|(?<![^\W_])_|_(?![^\W_])")


def markdown_row(cells: Iterable[str]) -> str:
    """A row of a Markdown table; cells are text without line breaks, not markup."""
    return "| " + " | ".join(MARKUP.sub(r"\\\g<0>", cell) for cell in cells) + " |"


def table(results: Dict) -> str:
    """The rows as a Markdown table, followed by their sources; InputError if there are no rows."""
    if not results["rows"]:
        raise InputError("--results: no rows to make a table of; run the experiment first")
    measured = [row for row in results["rows"] if not row.get("metric", "").endswith("signature")]
    heads, lines = _experiment(measured, results) if "metric" in measured[0] else _plain(measured, results)
    written = [heads, ["---"] * len(heads), *lines]
    made = [markdown_row(line) for line in written]
    signatures = sorted({row["value"] for row in results["rows"] if row not in measured})
    return "\n".join([*made, "", sources(results), *(f"BLEU: `{signature}`  " for signature in signatures)])


def sources(results: Dict) -> str:
    """The command that made the results, the versions and the machine, as two lines of Markdown; numbered, where they
    are not the same for all rows."""
    found = _sources(results)
    numbers = [f"{number}: " for number in range(1, len(found) + 1)] if len(found) > 1 else [""]
    return "\n".join(number + _told(source) for number, source in zip(numbers, found))


def _told(source: Dict) -> str:
    used = ", ".join(f"{name} {version}" for name, version in source["versions"].items())
    return f"`{source['command']}`  \n{used}; {source['machine']}.  "


def _sources(results: Dict) -> List[Dict]:
    """All different sources, in the order of the rows."""
    found = []
    for row in results["rows"]:
        source = source_of(row, results)
        found += [] if source in found else [source]
    return found or [source_of({}, results)]


def _numbers(rows: List[Dict], results: Dict) -> List[str]:
    """The cell with the numbers of the sources of `rows`; nothing if all of `results` have the same source."""
    found = _sources(results)
    own = sorted({found.index(source_of(row, results)) + 1 for row in rows})
    return [", ".join(map(str, own))] if len(found) > 1 else []


def _plain(rows: List[Dict], results: Dict) -> Tuple[List[str], List[List[str]]]:
    """A table with a line per row and the columns of the first row."""
    columns = [name for name in rows[0] if name != "made_with"]
    lines = [
        ["–" if row.get(name) is None else str(row[name]) for name in columns] + _numbers([row], results)
        for row in rows
    ]
    return [name.replace("_", " ") for name in columns] + _head(results), lines


def _head(results: Dict) -> List[str]:
    return ["source"] if len(_sources(results)) > 1 else []


def _experiment(rows: List[Dict], results: Dict) -> Tuple[List[str], List[List[str]]]:
    """A table with a line per system and setting, and a column per metric: means over seeds."""
    columns = list(OrderedDict.fromkeys((row["split"], row["metric"]) for row in rows))
    systems: Dict[Tuple[str, str], List[Dict]] = OrderedDict()
    for row in rows:
        systems.setdefault((row["system"], row["setting"]), []).append(row)
    lines = []
    for (system, setting), own in systems.items():
        seeds = sorted({row["seed"] for row in own})
        cells = [_cell([row["value"] for row in own if (row["split"], row["metric"]) == column]) for column in columns]
        lines.append([system, setting, ", ".join(map(str, seeds)), *cells, *_numbers(own, results)])
    return [
        "system",
        "setting",
        "seeds",
        *(f"{metric.replace('_', ' ')} ({split})" for split, metric in columns),
        *_head(results),
    ], lines


def _cell(values: List[float]) -> str:
    if not values:
        return ""
    digits = 0 if all(isinstance(value, int) for value in values) else 2 if max(values) < 10 else 1
    text = f"{statistics.mean(values):.{digits}f}"
    return text if len(values) == 1 else f"{text} ± {statistics.stdev(values):.1f}"


def split_readme(readme: str) -> Tuple[str, str]:
    """The text before and after the table of a README; InputError if it has no markers of a table."""
    text = "".join(line for _, line in numbered_lines(readme))
    if BEGIN not in text or END not in text:
        raise InputError(f"{readme}: no lines {BEGIN} and {END} to put the table between")
    return text.split(BEGIN)[0], text.split(END)[1]


def put_table(readme: str, made: str) -> None:
    """Puts a table between the two markers of a README."""
    before, after = split_readme(readme)
    with replaced(readme) as file:
        file.write(f"{before}{BEGIN}\n{made}\n{END}{after}")


def write_table(arguments) -> None:
    """:func:`put_table` of a file of results."""
    check_inputs({"--results": arguments.results, "--readme": arguments.readme})
    put_table(arguments.readme, table(read_results(arguments.results)))


@command
def main(arguments=None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="task", required=True)
    scoring = commands.add_parser("score", help="add the scores of one system")
    for name in ("results", "system", "setting", "split", "bleu", "train-log", "command"):
        scoring.add_argument("--" + name, required=True)
    scoring.add_argument("--seed", type=int, required=True)
    scoring.set_defaults(run=score)
    tabling = commands.add_parser("table", help="write the table into a README")
    tabling.add_argument("--results", required=True)
    tabling.add_argument("--readme", required=True)
    tabling.set_defaults(run=write_table)
    options = parser.parse_args(arguments)
    options.run(options)


if __name__ == "__main__":
    main()
