"""Measures how far the heads that a model finds follow the brackets of a formula, or the order of its words.

    python scripts/experiments/tree_transduction/induced_trees.py CHECKPOINT BIN_DIR --output induced_trees.json

``brackets``: the percentage of a formula's brackets that the best tree recovers. A bracket is recovered if the tokens
from ( to ) are a subtree: a word of the tree with all its descendants. The outermost bracket, which is the whole
sentence, is not counted. The best tree is the best projective tree under the model's arc scores. The baseline, also for
a model without parser, is a tree drawn uniformly from all projective trees (``uniform``).

``previous``: the mean probability over words, in percent, that the head of a word is the word before it, or the root
for the first word.
"""

import argparse
from typing import Dict, List, Set, Tuple

import torch
from torch import Tensor

from fairseq_structattn.analysis import PLUGIN
from fairseq_structattn.analysis.export_attention import check_model, load_dataset, load_models
from fairseq_structattn.analysis.files import InputError, check_outputs, command, write_json
from fairseq_structattn.distributions import ProjectiveTree

DEPTHS = {"test": 2, "test1": 3, "test2": 4, "test3": 5, "test4": 6}
Span = Tuple[int, int]


def brackets(tokens: List[str]) -> Set[Span]:
    """First and last token of each bracket but the outermost."""
    found, open_at = set(), []
    for place, token in enumerate(tokens):
        if token == "(":
            open_at.append(place)
        elif token == ")":
            if not open_at:
                raise InputError(f"{' '.join(tokens)}: not a formula, it closes a bracket that is not open")
            found.add((open_at.pop(), place))
    return found - {(0, len(tokens) - 1)}


def subtrees(heads: List[int]) -> Set[Span]:
    """First and last word of each word's subtree, for heads 1..n, and 0 for the root, of words 0..n-1."""
    first, last = list(range(len(heads))), list(range(len(heads)))
    for word in range(len(heads)):
        above = word
        while above >= 0:
            first[above], last[above] = min(first[above], word), max(last[above], word)
            above = heads[above] - 1
    return set(zip(first, last))


def recovered(heads: List[int], tokens: List[str]) -> Tuple[int, int]:
    """The number of brackets that are subtrees, and the number of brackets."""
    expected = brackets(tokens)
    return len(expected & subtrees(heads)), len(expected)


def heads_of(tree: Tensor) -> List[int]:
    """The heads of an indicator of arcs ``[n+1, n]``."""
    return tree.argmax(0).tolist()


class Counts:
    """Counts for one kind of tree, over the formulas of one depth."""

    def __init__(self) -> None:
        self.brackets, self.recovered, self.words, self.previous = 0, 0, 0, 0.0

    def add(self, tokens: List[str], tree: Tensor, marginals: Tensor) -> None:
        """One formula, with its tree and the marginals of all arcs, each ``[n+1, n]``."""
        right, total = recovered(heads_of(tree), tokens)
        self.recovered, self.brackets = self.recovered + right, self.brackets + total
        self.previous, self.words = self.previous + marginals.diagonal().sum().item(), self.words + len(tokens)

    def percentages(self) -> Dict[str, float]:
        return {
            "brackets": round(100 * self.recovered / self.brackets, 2),
            "previous": round(100 * self.previous / self.words, 2),
        }


def measure(checkpoint: str, data: str) -> Dict[str, float]:
    """Percentages, by kind of tree and depth."""
    (model,), task = load_models(checkpoint, data, PLUGIN, cpu=True)
    torch.manual_seed(1)
    scores = {}
    for subset, depth in DEPTHS.items():
        counts = {"uniform": Counts()}
        for item in load_dataset(task, subset):
            tokens = [task.source_dictionary[token] for token in item["source"][:-1].tolist()]
            uniform = ProjectiveTree(torch.zeros(len(tokens) + 1, len(tokens)))
            counts["uniform"].add(tokens, uniform.sample(), uniform.marginals)
            if model.encoder.source_attn is not None:
                heads = model.encoder.source_attention(item["source"].unsqueeze(0)).distribution
                best = ProjectiveTree(heads.arc_scores).argmax[0]
                counts.setdefault("model", Counts()).add(tokens, best, heads.marginals[0])
        for kind, count in counts.items():
            scores.update({f"{name}_{kind}@depth{depth}": value for name, value in count.percentages().items()})
    return scores


@command
def main(arguments=None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("data", metavar="BIN_DIR")
    parser.add_argument("--output", required=True, metavar="FILE")
    options = parser.parse_args(arguments)
    check_model(options.checkpoint, options.data)
    check_outputs({"--output": options.output})
    with torch.no_grad():
        scores = measure(options.checkpoint, options.data)
    write_json(options.output, scores)
    print(scores)


if __name__ == "__main__":
    main()
