"""BLEU of the output of fairseq-generate, with sacrebleu's signature.

    structattn-bleu --generated test.txt --reference test.en --tokenize none

The hypotheses are put back in the order of the corpus and compared with the reference file itself rather than with the
T- lines, in which unknown words are replaced. The text of --bpe and --tokenizer is in D- lines, which are scored where
there are any; the output says which lines were scored. A missing sentence is an error: the score of a part would look
like a score of the whole. With --bootstrap the half width of the 95 % confidence interval is printed, too (Koehn, EMNLP
2004, by sacrebleu).
"""

import argparse
from typing import Dict, List

from fairseq_structattn.analysis.files import InputError, check_inputs, check_outputs, command, read_lines, write_json
from fairseq_structattn.analysis.generated import add_lines_option, read_hypotheses

# The bounds of a 95 % interval cut off a 40th of the resamples at either end, so at least 40 are needed.
LEAST_RESAMPLES = 100


def bleu_metric(tokenize: str, **options):
    """sacrebleu's BLEU.

    Args:
        tokenize: sacrebleu's tokeniser, ``none`` where tokens are words already
        options: further options of sacrebleu

    Raises:
        InputError: sacrebleu has no such tokeniser, or the tokeniser needs a package that is not installed
    """
    from sacrebleu.metrics import BLEU

    if tokenize not in BLEU.TOKENIZERS:
        raise InputError(f"--tokenize {tokenize}: unknown, choose from {', '.join(sorted(BLEU.TOKENIZERS))}")
    try:
        # force: `--tokenize none` is for tokenised text, of which sacrebleu would warn
        return BLEU(tokenize=tokenize, force=True, **options)
    except Exception as error:  # each tokeniser raises its own type for a missing package
        reason = " ".join(str(error).split())
        raise InputError(f"--tokenize {tokenize}: not to be had here ({reason}); choose 13a, intl or none") from None


def check_resamples(option: str, count: int, least: int = LEAST_RESAMPLES) -> None:
    """Refuses too few resamples or trials for a meaningful result; 0 is for none, or the default."""
    if count < 0 or 0 < count < least:
        raise InputError(f"{option} {count}: too few to tell anything; give {least} or more, better 1000")


def parse_arguments(arguments=None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--generated", required=True, metavar="FILE", help="output of fairseq-generate")
    parser.add_argument("--reference", required=True, metavar="FILE", help="references, one a line")
    add_lines_option(parser)
    parser.add_argument(
        "--tokenize", default="13a", metavar="NAME", help="tokeniser of sacrebleu; none for words (default: 13a)"
    )
    parser.add_argument(
        "--bootstrap", type=int, default=0, metavar="N", help="bootstrap samples of the test set (default: 0)"
    )
    parser.add_argument("--output", metavar="FILE", help="also write score and signature as JSON")
    return parser.parse_args(arguments)


def score(hypotheses: List[str], references: List[str], tokenize: str, bootstrap: int = 0) -> Dict[str, object]:
    metric = bleu_metric(tokenize)
    result = metric.corpus_score(hypotheses, [references], n_bootstrap=max(1, bootstrap))
    scores = {
        "bleu": round(result.score, 2),
        "signature": str(metric.get_signature()),
        "details": str(result),
        "sentences": len(references),
    }
    if bootstrap and len(references) > 1:  # every resample of one sentence is the sentence itself
        scores["confidence95"] = round(result._ci, 2)
    return scores


def read_references(path: str) -> List[str]:
    """The lines of a reference; InputError if it is empty."""
    references = read_lines(path)
    if not references:
        raise InputError(f"--reference {path}: the file is empty")
    return references


@command
def main(arguments=None) -> None:
    options = parse_arguments(arguments)
    check_inputs({"--generated": options.generated, "--reference": options.reference})
    check_outputs({"--output": options.output})
    check_resamples("--bootstrap", options.bootstrap)
    bleu_metric(options.tokenize)
    references = read_references(options.reference)
    hypotheses = read_hypotheses(options.generated, len(references), options.lines)
    result = {**score(hypotheses.sentences, references, options.tokenize, options.bootstrap), "lines": hypotheses.lines}
    if options.output:
        write_json(options.output, result)
    margin = f" ± {result['confidence95']:.2f}" if "confidence95" in result else ""
    scored = f"{result['sentences']} sentences, {hypotheses.described}"
    print(f"BLEU {result['bleu']:.2f}{margin} on {scored} ({result['signature']})")


if __name__ == "__main__":
    main()
