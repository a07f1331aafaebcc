"""Collects the runs of ``run.sh`` in results.json, and writes the pictures and the tables of the README.

python scripts/experiments/long_sentences/report.py WORK_DIR
"""

import argparse
import os
import statistics
from typing import Callable, Dict, List, Tuple

from fairseq_structattn.analysis.bleu_by_length import Comparison, buckets, measure, plot
from fairseq_structattn.analysis.files import (
    InputError,
    check_folders,
    check_inputs,
    check_output_folders,
    command,
    read_lines,
)
from fairseq_structattn.analysis.generated import Translations, read_translations
from fairseq_structattn.analysis.picture_files import check_picture
from fairseq_structattn.analysis.results import (
    add_rows,
    log_records,
    markdown_row,
    put_table,
    read_results,
    sources,
    split_readme,
)

SYSTEMS = ("vanilla", "bahdanau", "luong_general", "crf")
BASELINE = "luong_general"
SETTING = "128 units"
TESTED = Comparison(tokenize="none")
# Test set as it is, and in groups of two to six sentences; bounds of the buckets.
BOUNDS = {"test": [10, 15, 20], "joined": [30, 45, 60, 75]}
TITLES = {"test": "sentences of the test set as they are", "joined": "sentences joined from two, three, four and six"}


def finished(work: str) -> Dict[int, List[str]]:
    """Systems with finished translations, by seed, the baseline first."""
    found: Dict[int, List[str]] = {}
    for system in sorted(SYSTEMS, key=lambda name: name != BASELINE):
        for folder in os.listdir(work):
            name, _, seed = folder.rpartition("-")
            done = all(os.path.exists(os.path.join(work, folder, f"{split}.txt")) for split in BOUNDS)
            if name == system and seed.isdigit() and done:
                found.setdefault(int(seed), []).append(system)
    return found


def training(log: str) -> Dict[str, float]:
    """Validation BLEU, loss in bits per word and updates of the chosen checkpoint."""
    validated = [record for record in log_records(log) if "valid_bleu" in record]
    if not validated:
        raise InputError(f"{log}: no validation was finished; run the training again")
    best = max(validated, key=lambda record: float(record["valid_bleu"]))
    return {
        "bleu": float(best["valid_bleu"]),
        "nll": float(best["valid_nll_loss"]),
        "updates": int(best["valid_num_updates"]),
    }


def lengths_and_references(work: str, split: str):
    prefix = os.path.join(work, "data", split)
    return [len(line.split()) for line in read_lines(prefix + ".en")], read_lines(prefix + ".de")


def translations_of(work: str, seed: int, system: str, split: str, count: int) -> Translations:
    return read_translations(os.path.join(work, f"{system}-{seed}", f"{split}.txt"), count)


def measured(work: str, seed: int, systems: List[str], split: str):
    """BLEU by length of the systems of one seed; see :func:`bleu_by_length.measure`."""
    lengths, references = lengths_and_references(work, split)
    translations = {system: translations_of(work, seed, system, split, len(references))[0] for system in systems}
    return measure(translations, references, lengths, BOUNDS[split], TESTED)


def repeated(translations: List[str]) -> float:
    """Percentage of sequences of four words that occur earlier in the same translation."""
    found = again = 0
    for words in (line.split() for line in translations):
        fours = [tuple(words[start : start + 4]) for start in range(len(words) - 3)]
        found, again = found + len(fours), again + len(fours) - len(set(fours))
    return round(100 * again / max(found, 1), 2)


def repetition(work: str, seed: int, system: str, split: str) -> Dict[str, float]:
    """:func:`repeated` by length of the source sentence, and of all."""
    lengths, references = lengths_and_references(work, split)
    lines = translations_of(work, seed, system, split, len(references)).sentences
    chosen = [bucket for bucket in buckets(lengths, BOUNDS[split]) if bucket.indices] + buckets(lengths, [])
    return {bucket.label: repeated([lines[i] for i in bucket.indices]) for bucket in chosen}


def rows_of(work: str, seed: int, systems: List[str]) -> List[Dict]:
    """All results of one seed."""
    rows = []

    def add(system, split, metric, value):
        own = {"system": system, "setting": SETTING, "seed": seed, "split": split, "metric": metric}
        rows.append({**own, "value": value})

    for system in sorted(systems, key=SYSTEMS.index):
        for metric, value in training(os.path.join(work, f"{system}-{seed}", "train.log")).items():
            add(system, "valid", metric, value)
    for split in BOUNDS:
        found = measured(work, seed, systems, split)
        for row in sorted(found.rows, key=lambda row: SYSTEMS.index(row["system"])):
            for metric in ("bleu", "confidence95", "p", "length_ratio", "sentences"):
                if row[metric] is not None:
                    add(row["system"], split, f"{metric}@{row['bucket']}", row[metric])
        for system in systems:
            for bucket, value in repetition(work, seed, system, split).items():
                add(system, split, f"repeated@{bucket}", value)
            add(system, split, "bleu_signature", found.signature)
            add(system, split, "p_test", TESTED.described)
            add(system, split, "lines", translations_of(work, seed, system, split, found.rows[-1]["sentences"]).lines)
    return rows


def table(rows: List[Dict], split: str, title: str, metrics: Tuple[str, str], cell: Callable) -> str:
    """A row for each system, a column for each bucket; `cell` formats the values of two metrics over seeds."""
    own = [row for row in rows if row["split"] == split]
    names = [system for system in SYSTEMS if any(row["system"] == system for row in own)]
    columns = list(dict.fromkeys(row["metric"][5:] for row in own if row["metric"].startswith("bleu@")))

    def values(system, metric):
        return [row["value"] for row in own if (row["system"], row["metric"]) == (system, metric)]

    counts = [values(names[0], f"sentences@{column}")[0] for column in columns]
    lines = [[title, *(f"{column} ({count})" for column, count in zip(columns, counts))]]
    lines.append(["---", *["---:"] * len(columns)])
    for system in names:
        cells = [cell(*(values(system, f"{metric}@{column}") for metric in metrics)) for column in columns]
        lines.append([system, *cells])
    return "\n".join(map(markdown_row, lines))


def score_table(rows: List[Dict], split: str) -> str:
    """BLEU: one seed with its bootstrap interval, several with their standard deviation."""

    def cell(scores, intervals):
        margin = statistics.stdev(scores) if len(scores) > 1 else intervals[0] if intervals else None
        return f"{statistics.mean(scores):.1f}" + ("" if margin is None else f" ± {margin:.1f}")

    return table(rows, split, TITLES[split], ("bleu", "confidence95"), cell)


def symptom_table(rows: List[Dict], split: str) -> str:
    """Length relative to the references, and repeated words; means over seeds."""

    def cell(ratios, shares):
        return f"{statistics.mean(ratios):.2f}, {statistics.mean(shares):.1f} %"

    return table(rows, split, "length, repeated", ("length_ratio", "repeated"), cell)


def training_table(rows: List[Dict]) -> str:
    """The validation results by which checkpoints were chosen, a row for each system."""
    lines = [["validation set", "seeds", "BLEU", "bits per word", "at update"], ["---", "---", *["---:"] * 3]]
    for system in SYSTEMS:
        own = [row for row in rows if (row["system"], row["split"]) == (system, "valid")]
        if own:
            found = [[row["value"] for row in own if row["metric"] == metric] for metric in ("bleu", "nll", "updates")]
            shown = [f"{statistics.mean(values):.{digits}f}" for values, digits in zip(found, (1, 2, 0))]
            lines.append([system, ", ".join(str(seed) for seed in sorted({row["seed"] for row in own})), *shown])
    return "\n".join(map(markdown_row, lines))


@command
def main(arguments=None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", metavar="WORK_DIR")
    parser.add_argument("--command", default="bash scripts/experiments/long_sentences/run.sh --corpus FOLDER")
    parser.add_argument("--dest", required=True, metavar="DIR", help="folder of results.json, README.md and pictures")
    options = parser.parse_args(arguments)
    check_folders({"WORK_DIR": options.work})
    check_output_folders({"--dest": options.dest})
    readme, results = (os.path.join(options.dest, name) for name in ("README.md", "results.json"))
    check_inputs({"--dest": readme})
    split_readme(readme)
    check_picture("--dest", os.path.join(options.dest, "test.png"))
    done = finished(options.work)
    if not done:
        raise InputError(f"{options.work}: no finished run; run run.sh first")
    add_rows(results, options.command, [row for seed in done for row in rows_of(options.work, seed, done[seed])])
    content = read_results(results)
    signatures = sorted({row["value"] for row in content["rows"] if row["metric"] == "bleu_signature"})
    tables = [score_table(content["rows"], split) for split in BOUNDS]
    tables += [symptom_table(content["rows"], "joined"), training_table(content["rows"])]
    tables.append("".join(f"![{TITLES[split]}]({split}.png) " for split in BOUNDS).rstrip())
    made = [*tables, sources(content) + "".join(f"\nBLEU: `{signature}`  " for signature in signatures)]
    put_table(readme, "\n\n".join(made))
    first = min(done)
    for split in BOUNDS:
        by_length = measured(options.work, first, sorted(done[first], key=SYSTEMS.index), split)
        plot(by_length.rows, os.path.join(options.dest, f"{split}.png"))


if __name__ == "__main__":
    main()
