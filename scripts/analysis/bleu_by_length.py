"""BLEU of any number of systems by the length of the source sentence, with confidence intervals and paired tests.

    python scripts/analysis/bleu_by_length.py --source test.en --reference test.de --buckets 10,20,30 \\
        --system softmax softmax.txt --system chain chain.txt --output by_length.json --plot by_length.png

A system is a name and a file: what fairseq-generate printed, or plain text, one sentence a line. The length of a source
sentence is its number of tokens between spaces, so SOURCE should be the text that the systems read. Buckets are
half-open: 10,20,30 makes 0 ≤ length < 10, 10 ≤ length < 20, 20 ≤ length < 30 and 30 ≤ length; one without sentences is
left out.

All numbers are sacrebleu's: BLEU of the sentences of a bucket as a corpus; ± is half of the 95 % interval of its
bootstrap (Koehn, EMNLP 2004), p of its paired bootstrap resampling or approximate randomisation (Riezler & Maxwell,
2005) against the baseline, of the same sentences. Each p is of one comparison: of twenty systems or buckets that do not
differ, one is expected to fall below 0.05 by chance. The JSON also has the ``length_ratio``, tokens of the translations
for each token of the references: a system that breaks off early has a low one.
"""

import argparse
import os
import shlex
import sys
from contextlib import contextmanager
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]
from results import machine, versions, write_json  # noqa: E402
from score_bleu import read_lines, read_translations  # noqa: E402

TESTS = {"bs": "paired bootstrap resampling", "ar": "approximate randomisation"}
INTERVAL_RESAMPLES = 1000


class Bucket(NamedTuple):
    """Sentences with ``low ≤ length < high``; no `high`: of any length from `low`."""

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
    edges = [0, *bounds, None]
    return [
        Bucket(low, high, [i for i, length in enumerate(lengths) if low <= length and (high is None or length < high)])
        for low, high in zip(edges, edges[1:])
    ]


def quantile_bounds(lengths: Sequence[int], count: int) -> List[int]:
    """Bounds of `count` buckets of about as many sentences each; fewer where many sentences have the same length."""
    ordered = sorted(lengths)
    bounds = {ordered[len(ordered) * number // count] for number in range(1, count)}
    return sorted(bounds - {ordered[0]})


class Comparison(NamedTuple):
    """How systems are scored and compared.

    Attributes:
        tokenize: sacrebleu's tokeniser
        kind: ``"bs"``, paired bootstrap resampling, or ``"ar"``, approximate randomisation
        samples: resamples or trials; 0: sacrebleu's 1000 or 10000
        seed: of the random choices, positive
    """

    tokenize: str = "13a"
    kind: str = "bs"
    samples: int = 0
    seed: int = 12345


class Measured(NamedTuple):
    """Rows ``{bucket, low, high, sentences, mean_length, system, bleu, confidence95, p, length_ratio}`` and sacrebleu's
    signature.

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
        how: they are compared
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
    from sacrebleu.metrics import BLEU
    from sacrebleu.significance import PairedTest

    # force: text in words is what `--tokenize none` is for, sacrebleu need not warn of it
    bleu = BLEU(tokenize=how.tokenize, force=True)
    ratios = [bleu.corpus_score(lines, [references]).ratio for lines in systems.values()]
    with _seeded(how.seed):
        paired = PairedTest(
            list(systems.items()),
            {"BLEU": bleu},
            [references],
            test_type=how.kind,
            n_samples=how.samples,
            n_ar_confidence=INTERVAL_RESAMPLES if how.kind == "ar" else -1,
        )
        signatures, scores = paired()
    alone = len(references) < 2  # every resample is the sentence itself
    return [
        {
            "bleu": round(float(result.score), 2),
            "confidence95": None if alone else round(float(result.ci), 2),
            "p": None if alone or result.p_value is None else round(float(result.p_value), 4),
            "length_ratio": round(ratio, 3),
        }
        for result, ratio in zip(scores["BLEU"], ratios)
    ], str(signatures["BLEU"])


def table(rows: List[Dict]) -> str:
    """A Markdown table: a line per bucket, a column per system."""
    names = list(dict.fromkeys(row["system"] for row in rows))
    cells: Dict[str, List[str]] = {}
    for row in rows:
        line = cells.setdefault(row["bucket"], [row["bucket"], str(row["sentences"])])
        line.append(_cell(row))
    lines = [["source length", "sentences", *names], ["---", *["---:"] * (len(names) + 1)], *cells.values()]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cell(row: Dict) -> str:
    margin = "" if row["confidence95"] is None else f" ± {row['confidence95']:.1f}"
    p = "" if row["p"] is None else f" (p = {row['p']:.3f})" if row["p"] >= 0.001 else " (p < 0.001)"
    return f"{row['bleu']:.1f}{margin}{p}"


def plot(rows: List[Dict], path: str) -> None:
    """BLEU with its interval in each bucket, a colour per system; PNG, SVG or PDF by the ending of `path`."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    several = len({row["bucket"] for row in rows}) > 1
    rows = [row for row in rows if not several or row["bucket"] != "all"]
    names = list(dict.fromkeys(row["system"] for row in rows))
    labels = list(dict.fromkeys(f"{row['bucket']}\n({row['sentences']})" for row in rows))
    figure, axes = pyplot.subplots(figsize=(1.5 + 1.1 * max(len(labels), 3), 3.8))
    for number, name in enumerate(names):
        own = [row for row in rows if row["system"] == name]
        # side by side, or the intervals would hide each other
        places = [place + 0.5 * (number - (len(names) - 1) / 2) / len(names) for place in range(len(own))]
        margins = [row["confidence95"] or 0 for row in own]
        axes.errorbar(places, [row["bleu"] for row in own], margins, fmt="o-", markersize=4, capsize=3, label=name)
    axes.set_xticks(range(len(labels)), labels)
    axes.set_xlabel("source length in tokens (sentences)")
    axes.set_ylabel("BLEU, 95 % interval")
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", alpha=0.3)
    # above, where it hides no interval
    axes.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncol=min(len(names), 4))
    figure.tight_layout()
    beside = f"{path}.tmp"
    figure.savefig(beside, dpi=150, format=os.path.splitext(path)[1][1:])
    pyplot.close(figure)
    os.replace(beside, path)


def parse_arguments(arguments=None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", required=True, metavar="FILE", help="source sentences, tokenised, one a line")
    parser.add_argument("--reference", required=True, metavar="FILE", help="their references, one a line")
    parser.add_argument(
        "--system",
        nargs=2,
        action="append",
        required=True,
        metavar=("NAME", "FILE"),
        help="output of fairseq-generate, or one translation a line; may be given several times",
    )
    parser.add_argument("--baseline", metavar="NAME", help="whom the others are tested against (default: the first)")
    sizes = parser.add_mutually_exclusive_group()
    sizes.add_argument("--buckets", default="10,20,30", metavar="N,N,…", help="ascending bounds (default: 10,20,30)")
    sizes.add_argument("--quantiles", type=int, metavar="N", help="N buckets of about as many sentences each")
    parser.add_argument("--tokenize", default="13a", metavar="NAME", help="sacrebleu's; none for words (default: 13a)")
    parser.add_argument(
        "--paired",
        choices=sorted(TESTS),
        default="bs",
        help="; ".join(f"{name}: {meaning}" for name, meaning in TESTS.items()) + " (default: bs)",
    )
    parser.add_argument("--samples", type=int, default=0, metavar="N", help="resamples or trials (sacrebleu's number)")
    parser.add_argument("--seed", type=int, default=12345, metavar="N", help="of the resampling (default: 12345)")
    parser.add_argument("--output", metavar="FILE", help="also write the scores as JSON")
    parser.add_argument("--plot", metavar="FILE", help="also draw them: .png, .svg or .pdf (extra `plot`)")
    options = parser.parse_args(arguments)
    options.command = shlex.join(["python", "scripts/analysis/bleu_by_length.py", *(arguments or sys.argv[1:])])
    return options


def parse_bounds(text: str) -> List[int]:
    """``"10,20"`` → [10, 20]; ValueError where these are no positive ascending whole numbers."""
    parts = text.split(",")
    bounds = [int(part) for part in parts if part.strip().isdigit()]
    if len(bounds) < len(parts) or bounds != sorted(set(bounds)) or bounds[0] < 1:
        raise ValueError(f"--buckets {text}: give positive whole numbers in ascending order, for example 10,20,30")
    return bounds


def read_all(options: argparse.Namespace):
    """Lengths, references and systems, the baseline first; ValueError where they do not fit together."""
    references, sources = read_lines(options.reference), read_lines(options.source)
    for option, path, lines in (
        ("--reference", options.reference, references),
        ("--source", options.source, sources),
    ):
        if not lines:
            raise ValueError(f"{option} {path}: the file is empty")
    if len(sources) != len(references):
        raise ValueError(
            f"--source {options.source} has {len(sources)} lines but --reference {options.reference} has "
            f"{len(references)}: line n of one must translate line n of the other"
        )
    names = [name for name, _ in options.system]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ValueError(f"--system {repeated[0]}: the name is given twice; give each system its own")
    baseline = options.baseline or names[0]
    if baseline not in names:
        raise ValueError(f"--baseline {baseline}: no such system, choose from {', '.join(names)}")
    systems = {name: read_translations(path, len(references)) for name, path in options.system}
    systems = {baseline: systems[baseline], **systems}
    return [len(line.split()) for line in sources], references, systems


def check_options(options: argparse.Namespace) -> None:
    """Refuses what would only fail after the scoring: ValueError."""
    from sacrebleu.metrics.bleu import BLEU

    if options.quantiles is not None and options.quantiles < 2:
        raise ValueError(f"--quantiles {options.quantiles}: give 2 or more")
    if options.samples < 0:
        raise ValueError(f"--samples {options.samples}: give a positive number, or 0 for sacrebleu's own")
    if options.seed < 1:
        raise ValueError(f"--seed {options.seed}: give a positive number; sacrebleu takes 0 for no seed")
    if options.tokenize not in BLEU.TOKENIZERS:
        raise ValueError(f"--tokenize {options.tokenize}: unknown, choose from {', '.join(sorted(BLEU.TOKENIZERS))}")
    if options.plot:
        if os.path.splitext(options.plot)[1] not in (".png", ".svg", ".pdf"):
            raise ValueError(f"--plot {options.plot}: the name must end in .png, .svg or .pdf")
        try:
            import matplotlib  # noqa: F401
        except ImportError:
            raise ValueError("--plot needs matplotlib; install the extra `plot`: pip install -e '.[plot]'") from None


def main(arguments=None) -> None:
    options = parse_arguments(arguments)
    try:
        check_options(options)
        lengths, references, systems = read_all(options)
        bounds = quantile_bounds(lengths, options.quantiles) if options.quantiles else parse_bounds(options.buckets)
    except (OSError, ValueError) as error:
        sys.exit(f"error: {error}")
    for bucket in buckets(lengths, bounds):
        if not bucket.indices:
            print(f"no source sentence of length {bucket.label}: that bucket is left out", file=sys.stderr)
    how = Comparison(options.tokenize, options.paired, options.samples, options.seed)
    measured = measure(systems, references, lengths, bounds, how)
    print(table(measured.rows))
    compared = f"; p: {TESTS[how.kind]} against {next(iter(systems))}" if len(systems) > 1 else ""
    print(f"\nBLEU: `{measured.signature}`{compared}")
    if options.output:
        content = {"command": options.command, "versions": versions(), "machine": machine()}
        write_json(options.output, {**content, "signature": measured.signature, "rows": measured.rows})
    if options.plot:
        plot(measured.rows, options.plot)


if __name__ == "__main__":
    main()
