"""BLEU of any number of systems by the length of the source sentence, with confidence intervals and paired tests.

    structattn-bleu-by-length --source test.en --reference test.de --buckets 10,20,30 \\
        --system softmax softmax.txt --system chain chain.txt --output by_length.json --plot by_length.png

A system is a name and a file: what fairseq-generate printed, or plain text, one sentence a line. The length of a source
sentence is its number of tokens between spaces, so SOURCE should be the text that the systems read. Buckets are
half-open: 10,20,30 makes 0 ≤ length < 10, 10 ≤ length < 20, 20 ≤ length < 30 and 30 ≤ length; empty buckets are left
out.

BLEU is sacrebleu's corpus BLEU of the sentences of a bucket; ± is half of the 95 % interval of sacrebleu's bootstrap
(Koehn, EMNLP 2004). p is the two-sided p-value of approximate randomisation (Riezler & Maxwell, 2005) or of paired
bootstrap resampling against the baseline, on the same sentences. Ties count as differences by chance, so identical
translations have p = 1 (paired_tests.py compares this with sacrebleu's tests). Each p belongs to one comparison: of
twenty systems or buckets that do not differ, one is expected to fall below 0.05 by chance. The JSON also has the
``length_ratio``, the number of tokens of the translations divided by that of the references: it is low for a system
that stops early.
"""

import argparse
import os
import shlex
import sys
import unicodedata
from contextlib import contextmanager
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence

import numpy as np

from fairseq_structattn.analysis.files import InputError, check_inputs, check_outputs, command, read_lines, write_json
from fairseq_structattn.analysis.generated import Translations, add_lines_option, read_translations
from fairseq_structattn.analysis.paired_tests import DEFAULT_TRIALS, LEAST_TRIALS, p_value, sentence_statistics
from fairseq_structattn.analysis.picture_files import check_picture, save_picture
from fairseq_structattn.analysis.results import machine, markdown_row, versions
from fairseq_structattn.analysis.score_bleu import bleu_metric, check_resamples, read_references

TESTS = {"ar": "approximate randomisation", "bs": "paired bootstrap resampling"}
INTERVAL_RESAMPLES = 1000


class Bucket(NamedTuple):
    """Sentences with ``low ≤ length < high``; without `high`, all with ``low ≤ length``."""

    low: int
    high: Optional[int]
    indices: List[int]

    @property
    def label(self) -> str:
        if self.high is None:
            return f"≥ {self.low}" if self.low else "all"
        if self.low == 0:
            return f"< {self.high}"
        return str(self.low) if self.high == self.low + 1 else f"{self.low}–{self.high - 1}"


def buckets(lengths: Sequence[int], bounds: Sequence[int]) -> List[Bucket]:
    """Buckets between the ascending `bounds`, below the first and from the last on; empty ones too."""
    lows: List[int] = [0, *bounds]
    highs: List[Optional[int]] = [*bounds, None]
    return [
        Bucket(low, high, [i for i, length in enumerate(lengths) if low <= length and (high is None or length < high)])
        for low, high in zip(lows, highs)
    ]


def quantile_bounds(lengths: Sequence[int], count: int) -> List[int]:
    """Bounds of `count` buckets of about equal size; fewer buckets if many sentences have the same length."""
    ordered = sorted(lengths)
    bounds = {ordered[len(ordered) * number // count] for number in range(1, count)}
    return sorted(bounds - {ordered[0]})


class Comparison(NamedTuple):
    """How systems are scored and compared.

    Attributes:
        tokenize: sacrebleu's tokeniser
        kind: ``"ar"``, approximate randomisation, or ``"bs"``, paired bootstrap resampling
        samples: trials or resamples of the test; 0: 10000 or 1000
        seed: of the random numbers, positive
    """

    tokenize: str = "13a"
    kind: str = "ar"
    samples: int = 0
    seed: int = 12345

    @property
    def trials(self) -> int:
        return self.samples or DEFAULT_TRIALS[self.kind]

    @property
    def described(self) -> str:
        return f"{TESTS[self.kind]}, {self.trials} trials, seed {self.seed}"


class Measured(NamedTuple):
    """Rows ``{bucket, low, high, sentences, mean_length, system, bleu, confidence95, p, length_ratio}``, and the
    signature of sacrebleu, which describes all columns but p.

    ``confidence95`` and ``p`` are None in a bucket of one sentence, ``p`` also for the baseline.
    """

    rows: List[Dict]
    signature: str


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """sacrebleu takes its seed from the environment."""
    before = os.environ.get("SACREBLEU_SEED")
    os.environ["SACREBLEU_SEED"] = str(seed)
    try:
        yield
    finally:
        os.environ.pop("SACREBLEU_SEED")
        if before is not None:
            os.environ["SACREBLEU_SEED"] = before


def measure(
    systems: Dict[str, List[str]], references: List[str], lengths: Sequence[int], bounds: Sequence[int], how: Comparison
) -> Measured:
    """Scores each bucket, and all sentences together.

    Args:
        systems: translations of all sentences by name; the first is the baseline
        references: one per sentence
        lengths: of the source sentences
        bounds: see :func:`buckets`
        how: how the systems are compared
    """
    chosen = [bucket for bucket in buckets(lengths, bounds) if bucket.indices] if bounds else []
    rows = []
    for bucket in [*chosen, *buckets(lengths, [])]:
        scores, signature = compare(
            {name: [lines[i] for i in bucket.indices] for name, lines in systems.items()},
            [references[i] for i in bucket.indices],
            how,
        )
        own = {
            "bucket": bucket.label,
            "low": bucket.low,
            "high": bucket.high,
            "sentences": len(bucket.indices),
            "mean_length": round(sum(lengths[i] for i in bucket.indices) / len(bucket.indices), 1),
        }
        rows += [{**own, "system": name, **score} for name, score in zip(systems, scores)]
    return Measured(rows, signature)


def compare(systems: Dict[str, List[str]], references: List[str], how: Comparison):
    """``{bleu, confidence95, p, length_ratio}`` of each system on one set of sentences, and the signature."""
    metric = bleu_metric(how.tokenize)
    alone = len(references) < 2  # every resample is the sentence itself
    tested = not alone and len(systems) > 1
    scores: List[Dict] = []
    baseline: Optional[np.ndarray] = None
    for lines in systems.values():
        with _seeded(how.seed):
            result = metric.corpus_score(lines, [references], n_bootstrap=INTERVAL_RESAMPLES)
            signature = str(metric.get_signature())
        p = None
        if tested:
            statistics = sentence_statistics(lines, references, how.tokenize)
            if baseline is None:
                baseline = statistics
            else:
                p = p_value(how.kind, baseline, statistics, how.trials, how.seed)
        scores.append(
            {
                "bleu": round(float(result.score), 2),
                "confidence95": None if alone else round(float(result._ci), 2),
                "p": None if p is None else round(p, 4),
                "length_ratio": round(result.ratio, 3),
            }
        )
    return scores, signature


def table(rows: List[Dict]) -> str:
    """A Markdown table: one row per bucket, one column per system."""
    names = list(dict.fromkeys(row["system"] for row in rows))
    cells: Dict[str, List[str]] = {}
    for row in rows:
        line = cells.setdefault(row["bucket"], [row["bucket"], str(row["sentences"])])
        line.append(_cell(row))
    lines = [["source length", "sentences", *names], ["---", *["---:"] * (len(names) + 1)], *cells.values()]
    return "\n".join(map(markdown_row, lines))


def _cell(row: Dict) -> str:
    margin = "" if row["confidence95"] is None else f" ± {row['confidence95']:.1f}"
    p = "" if row["p"] is None else f" (p = {row['p']:.3f})" if row["p"] >= 0.001 else " (p < 0.001)"
    return f"{row['bleu']:.1f}{margin}{p}"


def plot(rows: List[Dict], path: str) -> None:
    """Plots BLEU and its interval in each bucket, one colour per system; the suffix of `path` is the image format."""
    from matplotlib import rc_context

    from fairseq_structattn.analysis.figure_fonts import font_families

    names = list(dict.fromkeys(row["system"] for row in rows))
    with rc_context({"font.family": font_families(names)}):
        save_picture(draw(rows, names), path)


def draw(rows: List[Dict], names: List[str]):
    """The figure of :func:`plot`."""
    from matplotlib.figure import Figure  # not pyplot: it would look for a display

    several = len({row["bucket"] for row in rows}) > 1
    rows = [row for row in rows if not several or row["bucket"] != "all"]
    labels = list(dict.fromkeys(f"{row['bucket']}\n({row['sentences']})" for row in rows))
    figure = Figure(figsize=(1.5 + 1.1 * max(len(labels), 3), 3.8), layout="tight")
    axes = figure.add_subplot()
    drawn = []
    for number, name in enumerate(names):
        own = [row for row in rows if row["system"] == name]
        # side by side, so that the intervals do not hide each other
        places = [place + 0.5 * (number - (len(names) - 1) / 2) / len(names) for place in range(len(own))]
        margins = [row["confidence95"] or 0 for row in own]
        drawn.append(axes.errorbar(places, [row["bleu"] for row in own], margins, fmt="o-", markersize=4, capsize=3))
    axes.set_xticks(range(len(labels)), labels)
    axes.set_xlabel("source length in tokens (sentences)")
    axes.set_ylabel("BLEU, 95 % interval")
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", alpha=0.3)
    add_legend(axes, drawn, names)
    return figure


def add_legend(axes, drawn: Sequence, names: Sequence[str]) -> None:
    """A legend above the axes, where it hides nothing; names are drawn as they are.

    matplotlib leaves out labels that begin with _ and may read others as formulas, so the names are set after the
    legend is made.
    """
    from fairseq_structattn.analysis.figure_fonts import displayed

    places = [str(number) for number in range(len(names))]
    legend = axes.legend(
        drawn, places, frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncol=min(len(names), 4)
    )
    for text, name in zip(legend.get_texts(), names):
        text.set_parse_math(False)
        text.set_text(displayed(name))


def parse_arguments(arguments=None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", required=True, metavar="FILE", help="source sentences, tokenised, one a line")
    parser.add_argument("--reference", required=True, metavar="FILE", help="references, one a line")
    parser.add_argument(
        "--system",
        nargs=2,
        action="append",
        required=True,
        metavar=("NAME", "FILE"),
        help="output of fairseq-generate, or one translation a line; may be given several times",
    )
    parser.add_argument(
        "--baseline", metavar="NAME", help="system with which the others are compared (default: the first)"
    )
    sizes = parser.add_mutually_exclusive_group()
    sizes.add_argument("--buckets", default="10,20,30", metavar="N,N,…", help="ascending bounds (default: 10,20,30)")
    sizes.add_argument("--quantiles", type=int, metavar="N", help="N buckets of about equal numbers of sentences")
    add_lines_option(parser)
    parser.add_argument(
        "--tokenize", default="13a", metavar="NAME", help="tokeniser of sacrebleu; none for words (default: 13a)"
    )
    parser.add_argument(
        "--paired",
        choices=sorted(TESTS),
        default="ar",
        help="; ".join(f"{name}: {meaning}" for name, meaning in TESTS.items()) + ", for about 30 sentences or more"
        " (default: ar)",
    )
    parser.add_argument(
        "--samples", type=int, default=0, metavar="N", help="trials or resamples of the test (default: 10000, 1000)"
    )
    parser.add_argument("--seed", type=int, default=12345, metavar="N", help="seed of the resampling (default: 12345)")
    parser.add_argument("--output", metavar="FILE", help="also write the scores as JSON")
    parser.add_argument("--plot", metavar="FILE", help="also draw the scores: .png, .svg or .pdf (extra `plot`)")
    options = parser.parse_args(arguments)
    options.command = shlex.join(["structattn-bleu-by-length", *(arguments or sys.argv[1:])])
    return options


def parse_bounds(text: str) -> List[int]:
    """``"10,20"`` → [10, 20]; InputError unless these are positive, ascending integers."""
    parts = text.split(",")
    bounds = [int(part) for part in parts if part.strip().isdecimal()]
    if len(bounds) < len(parts) or bounds != sorted(set(bounds)) or bounds[0] < 1:
        raise InputError(f"--buckets {text}: give positive whole numbers in ascending order, for example 10,20,30")
    return bounds


def read_all(options: argparse.Namespace):
    """Lengths, references and systems, the baseline first; InputError where they do not fit together."""
    references, sources = read_references(options.reference), read_lines(options.source)
    if not sources:
        raise InputError(f"--source {options.source}: the file is empty")
    if len(sources) != len(references):
        raise InputError(
            f"--source {options.source} has {len(sources)} lines but --reference {options.reference} has "
            f"{len(references)}: line n of one must translate line n of the other"
        )
    baseline = options.baseline or options.system[0][0]
    found = {name: read_translations(path, len(references), options.lines) for name, path in options.system}
    systems: Dict[str, Translations] = {baseline: found[baseline], **found}
    return [len(line.split()) for line in sources], references, systems


def check_names(names: List[str], baseline: Optional[str]) -> None:
    """Refuses names of systems that cannot be shown in tables and pictures."""
    for name in names:
        if not name.strip() or any(unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") for character in name):
            raise InputError(f"--system {name!r}: give a name of one line in UTF-8, without control characters")
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise InputError(f"--system {repeated[0]}: the name is given twice; give each system its own")
    if baseline is not None and baseline not in names:
        raise InputError(f"--baseline {baseline}: no such system, choose from {', '.join(names)}")


def check_options(options: argparse.Namespace) -> None:
    """Refuses options that would only fail after the scoring: InputError."""
    check_names([name for name, _ in options.system], options.baseline)
    check_inputs({"--source": options.source, "--reference": options.reference})
    for name, path in options.system:
        check_inputs({f"--system {name}": path})
    check_outputs({"--output": options.output, "--plot": options.plot})
    check_picture("--plot", options.plot)
    if options.quantiles is not None and options.quantiles < 2:
        raise InputError(f"--quantiles {options.quantiles}: give 2 or more")
    check_resamples("--samples", options.samples, LEAST_TRIALS)
    if options.seed < 1:
        raise InputError(f"--seed {options.seed}: give a positive number")
    bleu_metric(options.tokenize)


@command
def main(arguments=None) -> None:
    options = parse_arguments(arguments)
    check_options(options)
    given = None if options.quantiles else parse_bounds(options.buckets)
    lengths, references, systems = read_all(options)
    bounds = given or quantile_bounds(lengths, options.quantiles)
    for bucket in buckets(lengths, bounds):
        if not bucket.indices:
            print(f"no source sentence of length {bucket.label}: that bucket is left out", file=sys.stderr)
    how = Comparison(options.tokenize, options.paired, options.samples, options.seed)
    measured = measure({name: read.sentences for name, read in systems.items()}, references, lengths, bounds, how)
    print(table(measured.rows))
    print(f"\nBLEU: `{measured.signature}`")
    if len(systems) > 1:
        print(f"p, of structattn-bleu-by-length: {how.described}, against {next(iter(systems))}")
    print("scored: " + ", ".join(f"{name}: {read.described}" for name, read in systems.items()))
    if options.output:
        write_json(options.output, content(options, systems, measured, how))
    if options.plot:
        plot(measured.rows, options.plot)


def content(options, systems: Dict[str, Translations], measured: Measured, how: Comparison) -> Dict:
    """The content of the JSON file."""
    return {
        "command": options.command,
        "versions": versions(),
        "machine": machine(),
        "signature": measured.signature,
        "p": how.described if len(systems) > 1 else None,
        "lines": {name: read.lines for name, read in systems.items()},
        "rows": measured.rows,
    }


if __name__ == "__main__":
    main()
