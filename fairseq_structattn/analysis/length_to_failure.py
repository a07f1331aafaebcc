"""Length to failure: the mean percentage of the target before the first error, for each subset.

    structattn-length-to-failure --subset depth2 generated.txt test.depth2.infix --output scores.json

The measure of tree transduction (Grefenstette et al. 2015; Kim et al. 2017, section 4.1): the number of tokens before
the first wrong or missing one, divided by the number of tokens of the reference. With greedy decoding (--beam 1) it
equals the value that ``--report-length-to-failure`` logs in training. The input is the output of fairseq-generate, of
which D- lines are read where there are any.
"""

import argparse
from typing import List

from fairseq_structattn.analysis.files import check_inputs, check_outputs, command, write_json
from fairseq_structattn.analysis.generated import add_lines_option, read_hypotheses
from fairseq_structattn.analysis.score_bleu import read_references


def share_before_failure(hypothesis: str, reference: str) -> float:
    """Fraction of the reference before the first error, 0 to 1; 1 for an empty reference."""
    expected, given = reference.split(), hypothesis.split()
    pairs = list(zip(given, expected))
    right = next((place for place, (one, other) in enumerate(pairs) if one != other), len(pairs))
    return right / len(expected) if expected else 1.0


def mean_share(hypotheses: List[str], references: List[str]) -> float:
    """Mean of :func:`share_before_failure`, in percent."""
    shares = [share_before_failure(*pair) for pair in zip(hypotheses, references)]
    return 100 * sum(shares) / len(shares)


@command
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
    add_lines_option(parser)
    parser.add_argument("--output", metavar="FILE", help="also write the scores as JSON")
    options = parser.parse_args(arguments)
    for name, generated, reference in options.subset:
        check_inputs({f"--subset {name}": generated, f"--subset {name}, reference": reference})
    check_outputs({"--output": options.output})
    scores, lines = {}, {}
    for name, generated, reference in options.subset:
        references = read_references(reference)
        hypotheses = read_hypotheses(generated, len(references), options.lines)
        share = scores[f"length_to_failure@{name}"] = round(mean_share(hypotheses.sentences, references), 2)
        lines[name] = hypotheses.lines
        print(f"{name}: {share:.2f} % of {len(references)} references before failure, {hypotheses.described}")
    if options.output:
        write_json(options.output, {**scores, "lines": lines})


if __name__ == "__main__":
    main()
