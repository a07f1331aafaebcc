"""Do the trees mean anything? The share of a formula's brackets that the best trees of a model recover.

    python scripts/experiments/tree_transduction/brackets.py CHECKPOINT BIN_DIR --output brackets.json

A bracket is recovered if the tokens from ( to ) are a word of the tree with all that hangs on it, near or far. The
outermost bracket, which is the whole sentence, is not counted. The best tree is that of the projective trees with the
model's arc scores; for a model without parser, and beside every model, a tree drawn uniformly from all projective trees
tells what chance does (``uniform``).
"""

import argparse
import os
import sys
from typing import Dict, List, Optional, Set, Tuple

import torch
from fairseq import checkpoint_utils
from torch import Tensor

import fairseq_structattn  # noqa: F401  (registers the architectures)
from fairseq_structattn.distributions import ProjectiveTree

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
from results import write_json  # noqa: E402

DEPTHS = {"test": 2, "test1": 3, "test2": 4, "test3": 5, "test4": 6}
Span = Tuple[int, int]


def brackets(tokens: List[str]) -> Set[Span]:
    """First and last token of each bracket but the outermost."""
    found, open_at = set(), []
    for place, token in enumerate(tokens):
        if token == "(":
            open_at.append(place)
        elif token == ")":
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
    """How many brackets are subtrees, and how many there are."""
    expected = brackets(tokens)
    return len(expected & subtrees(heads)), len(expected)


def heads_of(tree: Tensor) -> List[int]:
    """From arcs ``[n+1, n]``, 0 or 1."""
    return tree.argmax(0).tolist()


def trees(model, tokens: Tensor) -> Dict[str, Optional[ProjectiveTree]]:
    """The model's projective trees, if it has a parser, and uniform ones, for one sentence."""
    words = tokens.numel() - 1
    found = {"uniform": ProjectiveTree(torch.zeros(1, words + 1, words))}
    if model.encoder.parser is not None:
        heads = model.encoder.source_attention(tokens.unsqueeze(0)).distribution
        found["model"] = ProjectiveTree(heads.arc_scores)
    return found


def measure(checkpoint: str, data: str) -> Dict[str, float]:
    """Percent of brackets, by kind of tree and depth."""
    (model,), _, task = checkpoint_utils.load_model_ensemble_and_task([checkpoint], arg_overrides={"data": data})
    model.eval()
    torch.manual_seed(1)
    scores = {}
    for subset, depth in DEPTHS.items():
        task.load_dataset(subset)
        counts: Dict[str, List[int]] = {}
        for item in task.dataset(subset):
            tokens = task.source_dictionary.string(item["source"]).split()
            for kind, distribution in trees(model, item["source"]).items():
                tree = distribution.argmax if kind == "model" else distribution.sample()
                right, total = recovered(heads_of(tree[0]), tokens)
                count = counts.setdefault(kind, [0, 0])
                count[0], count[1] = count[0] + right, count[1] + total
        for kind, (right, total) in counts.items():
            scores[f"brackets_{kind}@depth{depth}"] = round(100 * right / total, 2)
    return scores


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("data", metavar="BIN_DIR")
    parser.add_argument("--output", required=True, metavar="FILE")
    options = parser.parse_args()
    with torch.no_grad():
        scores = measure(options.checkpoint, options.data)
    write_json(options.output, scores)
    print(scores)


if __name__ == "__main__":
    main()
