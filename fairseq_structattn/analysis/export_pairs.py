"""Exports the trees and alignments that a model of --task structattn_sentence_pair computes for pairs of sentences.

    structattn-export-pairs --path snli/tree/checkpoint_best.pt --data snli/bin --sentences 40 \
        --output pairs.jsonl
    structattn-plot --records pairs.jsonl --ids 0,3 --output pairs.png

Writes the records of attention_records.py, which plot_attention.py draws. The premise is the source and the hypothesis
the target. A row of `weights` is the alignment of a word of the hypothesis and sums to 1. The model has the root symbol
before the first word of either sentence; in records it is the last token, <s>. `score` is the log-probability of the
predicted label. `tree` and `target_tree` are the trees of --source-attention, null without a parser.
"""

import argparse
from typing import Iterable, Iterator, List, Optional

import torch
from torch import Tensor

from fairseq_structattn.analysis import PLUGIN
from fairseq_structattn.analysis.attention_records import ROOT, AttentionRecord, SourceTree, write_records
from fairseq_structattn.analysis.export_attention import (
    ExportError,
    check_model,
    load_dataset,
    load_models,
    parse_ids,
    positive,
)
from fairseq_structattn.analysis.files import check_outputs, command
from fairseq_structattn.analysis.forced_attention import rounded


def export(model, task, dataset, ids: Iterable[int]) -> Iterator[AttentionRecord]:
    """The records of pairs, one after the other."""
    labels = task.label_dictionary.symbols[task.label_dictionary.nspecial :]
    for number in ids:
        batch = dataset.collater([dataset[number]])
        with torch.no_grad():
            scores, extra = model(**batch["net_input"])
        log_probs = torch.log_softmax(scores[0].float(), -1)
        sides = [batch["net_input"][side][0] for side in ("premise", "hypothesis")]
        both = extra["source_attention"]
        trees = [None, None] if both is None else [_tree(heads) for heads in both]
        yield AttentionRecord(
            id=number,
            rank=0,
            score=round(float(log_probs.max()), 6),
            forced=False,
            source=_words(sides[0], task.source_dictionary),
            target=_words(sides[1], task.source_dictionary),
            weights=rounded(root_last(extra["attn"][1][0])),
            tree=trees[0],
            target_tree=trees[1],
            label=labels[int(batch["target"][0])],
            predicted=labels[int(log_probs.argmax())],
        )


def root_last(weights: Tensor) -> Tensor:
    """Moves the root from the first to the last position, in both dimensions."""
    return weights.roll((-1, -1), (0, 1))


def _words(tokens: Tensor, dictionary) -> List[str]:
    return [dictionary[token] for token in tokens.tolist()] + [ROOT]


def _tree(distribution) -> SourceTree:
    best, marginals = distribution.argmax[0], distribution.marginals[0]
    return SourceTree(best.argmax(-2).tolist(), rounded(marginals))


def parse_arguments(arguments: Optional[List[str]] = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--path", required=True, metavar="CHECKPOINT")
    parser.add_argument("--data", required=True, metavar="DIR", help="folder bin from scripts/prepare/snli.py")
    parser.add_argument("--gen-subset", default="test", metavar="NAME", help="split of the data (default: test)")
    parser.add_argument("--output", required=True, metavar="FILE", help="file for the records, one JSON object a line")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--sentences", type=positive, metavar="N", help="only the first N pairs (default: all)")
    which.add_argument("--ids", type=parse_ids, metavar="I,J,...", help="only these pairs, counted from 0")
    parser.add_argument(
        "--user-dir",
        default=PLUGIN,
        metavar="DIR",
        help="user directory of the model (default: fairseq_structattn)",
    )
    return parser.parse_args(arguments)


@command
def main(arguments=None) -> None:
    options = parse_arguments(arguments)
    check_model(options.path, options.data, options.user_dir)
    check_outputs({"--output": options.output})
    (model, *_), task = load_models(options.path, options.data, options.user_dir, cpu=True)
    if not hasattr(task, "label_dictionary"):
        raise ExportError(f"--path {options.path}: no model of pairs of sentences; export_attention.py is for others")
    dataset = load_dataset(task, options.gen_subset)
    ids = options.ids if options.ids is not None else range(min(options.sentences or len(dataset), len(dataset)))
    for number in ids:
        if not 0 <= number < len(dataset):
            raise ExportError(f"--ids {number}: the subset has the pairs 0 to {len(dataset) - 1}")
    print(f"exported: {options.output}, {write_records(options.output, export(model, task, dataset, ids))} records")


if __name__ == "__main__":
    main()
