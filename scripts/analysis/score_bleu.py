"""BLEU of what fairseq-generate printed, with sacrebleu's signature.

The hypotheses are put back in the order of the corpus and compared with the reference file itself rather than with the
T- lines, in which words the dictionary does not know are replaced. A missing sentence is an error: a score of what is
left would look like a score of the whole. With --bootstrap the half width of the 95 % confidence interval is given too
(Koehn, EMNLP 2004, by sacrebleu).
"""

import argparse
import json
import os
import re
import sys
from typing import Dict, List

HYPOTHESIS = re.compile(r"^H-(\d+)\t[^\t]*\t(.*)$")


def parse_arguments(arguments=None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--generated", required=True, metavar="FILE", help="the output of fairseq-generate")
    parser.add_argument("--reference", required=True, metavar="FILE", help="the reference, one sentence a line")
    parser.add_argument("--tokenize", default="13a", metavar="NAME", help="sacrebleu's; none for words (default: 13a)")
    parser.add_argument(
        "--bootstrap", type=int, default=0, metavar="N", help="resamplings of the test set (default: 0)"
    )
    parser.add_argument("--output", metavar="FILE", help="also write score and signature as JSON")
    return parser.parse_args(arguments)


def read_lines(path: str) -> List[str]:
    """The lines of a file, which must be UTF-8 (ValueError, naming the file)."""
    with open(path, encoding="utf-8", newline="\n") as file:
        try:
            return [line.rstrip("\r\n") for line in file]
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}: not UTF-8 ({error.reason}); convert it, for example with iconv") from None


def read_hypotheses(path: str, count: int) -> List[str]:
    """The best hypothesis of each of `count` sentences, in the order of the corpus."""
    found: Dict[int, str] = {}
    for line in read_lines(path):
        match = HYPOTHESIS.match(line)
        if match:
            found.setdefault(int(match.group(1)), match.group(2))  # with --nbest the best one stands first
    missing = sorted(set(range(count)) - set(found))
    if missing:
        raise ValueError(
            f"{path}: {len(missing)} of {count} sentences have no translation, the first is H-{missing[0]}; "
            "translate the whole subset again"
        )
    if len(found) > count:
        raise ValueError(f"{path}: sentence H-{max(found)} is beyond the {count} lines of the reference")
    return [found[index] for index in range(count)]


def read_translations(path: str, count: int) -> List[str]:
    """`count` translations from the output of fairseq-generate, or from plain text, one sentence a line.

    Raises:
        ValueError: the file is empty, or has fewer or more sentences than `count`
    """
    lines = read_lines(path)
    if any(HYPOTHESIS.match(line) for line in lines):
        return read_hypotheses(path, count)
    if not lines:
        raise ValueError(f"{path}: the file is empty; translate again")
    if len(lines) != count:
        raise ValueError(f"{path}: {len(lines)} lines, but the reference has {count}; line n must translate line n")
    return lines


def score(hypotheses: List[str], references: List[str], tokenize: str, bootstrap: int = 0) -> Dict[str, object]:
    from sacrebleu.metrics import BLEU

    # force: text in words is what `--tokenize none` is for, sacrebleu need not warn of it
    metric = BLEU(tokenize=tokenize, force=True)
    result = metric.corpus_score(hypotheses, [references], n_bootstrap=max(1, bootstrap))
    scores = {
        "bleu": round(result.score, 2),
        "signature": str(metric.get_signature()),
        "details": str(result),
        "sentences": len(references),
    }
    if bootstrap > 1:
        scores["confidence95"] = round(result._ci, 2)
    return scores


def write_json(path: str, result: Dict[str, object]) -> None:
    with open(path + ".tmp", "w", encoding="utf-8") as file:
        json.dump(result, file, indent=2)
        file.write("\n")
    os.replace(path + ".tmp", path)


def main(arguments=None) -> None:
    options = parse_arguments(arguments)
    try:
        references = read_lines(options.reference)
        hypotheses = read_hypotheses(options.generated, len(references))
    except (OSError, ValueError) as error:
        sys.exit(f"error: {error}")
    result = score(hypotheses, references, options.tokenize, options.bootstrap)
    if options.output:
        write_json(options.output, result)
    margin = f" ± {result['confidence95']:.2f}" if "confidence95" in result else ""
    print(f"BLEU {result['bleu']:.2f}{margin} on {result['sentences']} sentences ({result['signature']})")


if __name__ == "__main__":
    main()
