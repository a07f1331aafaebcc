"""Writes the heads that a model finds, in the format that --load-heads reads.

    structattn-parse --path parser/checkpoint_best.pt --data ewt/bin \
        --words snli/train.premise --output snli/bin/train.heads.premise

The output has a line for each sentence, with the number of the head of each word, 0 for the root. Sentences should be
tokenised like the training data of the parser: in English Universal Dependencies, do n't and dog 's.
"""

import argparse

from fairseq_structattn.analysis import PLUGIN
from fairseq_structattn.analysis.files import (
    check_folders,
    check_inputs,
    check_outputs,
    command,
    read_lines,
    write_lines,
)
from fairseq_structattn.analysis.parsers import DECODINGS, load_parser, parse


@command
def main(arguments=None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--path", required=True, metavar="CHECKPOINT", help="model with --source-attention")
    parser.add_argument("--data", required=True, metavar="DIR", help="binarised data of its training")
    parser.add_argument("--user-dir", default=PLUGIN, metavar="DIR", help="user directory of the model")
    parser.add_argument(
        "--words", required=True, metavar="FILE", help="sentences, one a line, words separated by spaces"
    )
    parser.add_argument(
        "--decoding", choices=DECODINGS, default="risk", help="(default: risk, see attachment_scores.py)"
    )
    parser.add_argument("--output", required=True, metavar="FILE")
    options = parser.parse_args(arguments)
    check_inputs({"--path": options.path, "--words": options.words})
    check_folders({"--data": options.data})
    check_outputs({"--output": options.output})
    sentences = [line.split() for line in read_lines(options.words)]
    found = parse(load_parser(options.path, options.data, options.user_dir), sentences, options.decoding)
    write_lines(options.output, [" ".join(map(str, heads)) for heads in found])
    print(f"{options.output}: {len(found):,} sentences")


if __name__ == "__main__":
    main()
