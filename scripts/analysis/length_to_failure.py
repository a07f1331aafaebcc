"""Mean share of the target before the first error, in percent, of what fairseq-generate printed, for each subset.

    python scripts/analysis/length_to_failure.py --subset depth2 generated.txt test.depth2.infix --output scores.json

The measure of tree transduction (Grefenstette et al. 2015; Kim et al. 2017, section 4.1): tokens that are right before
the first wrong or missing one, divided by the tokens of the reference. With greedy decoding (--beam 1) it equals what
``--report-length-to-failure`` logs in training.
"""

import argparse
import os
import sys
from typing import List

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from score_bleu import read_hypotheses, read_lines, write_json  # noqa: E402


def share_before_failure(hypothesis: str, reference: str) -> float:
    """From 0 to 1; an empty reference is wholly right."""
    expected, given = reference.split(), hypothesis.split()
    pairs = list(zip(given, expected))
    right = next((place for place, (one, other) in enumerate(pairs) if one != other), len(pairs))
    return right / len(expected) if expected else 1.0


def mean_share(hypotheses: List[str], references: List[str]) -> float:
    """In percent."""
    shares = [share_before_failure(*pair) for pair in zip(hypotheses, references)]
    return 100 * sum(shares) / len(shares)


def main(arguments=None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--subset",
        nargs=3,
        action="append",
        required=True,
        metavar=("NAME", "GENERATED", "REFERENCE"),
        help="output of fairseq-generate and the reference, one sentence a line; may be given several times",
    )
    parser.add_argument("--output", metavar="FILE", help="also write the scores as JSON")
    options = parser.parse_args(arguments)
    scores = {}
    try:
        for name, generated, reference in options.subset:
            references = read_lines(reference)
            hypotheses = read_hypotheses(generated, len(references))
            scores[f"length_to_failure@{name}"] = round(mean_share(hypotheses, references), 2)
            print(f"{name}: {scores[f'length_to_failure@{name}']:.2f} % of {len(references)} references before failure")
    except (OSError, ValueError) as error:
        sys.exit(f"error: {error}")
    if options.output:
        write_json(options.output, scores)


if __name__ == "__main__":
    main()
