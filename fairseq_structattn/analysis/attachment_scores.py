"""Unlabelled attachment scores: the share of right heads in a model's trees, and in baselines.

    structattn-attachment --words ewt/test.words --heads ewt/test.heads.words \
        --path parser/checkpoint_best.pt --data ewt/bin

The two files are those of scripts/prepare/conllu.py. `directed` is the percentage of words with the right head;
`undirected` also counts reversed arcs. All words count, punctuation included. Trees are decoded by
`argmax`, the most likely tree, and by minimum `risk`, the tree with the most expected right heads.

The baselines need no model. The head of each word is the word before it in `right-branching` trees, and the word after
it in `left-branching` trees. `uniform` is the mean over all projective trees, or over all dependency trees. `random
scores` are those of the best tree under arc scores drawn from a normal distribution.
"""

import argparse
from typing import Callable, Dict, List, Sequence

import torch

from fairseq_structattn.analysis import PLUGIN
from fairseq_structattn.analysis.files import check_folders, check_inputs, check_outputs, command, write_json
from fairseq_structattn.analysis.parsers import DECODINGS, Parser, batches, load_parser, parse, read_gold
from fairseq_structattn.distributions import ProjectiveTree, SpanningTree

TREES = {"projective": ProjectiveTree, "spanning": SpanningTree}
Heads = List[List[int]]


def score(found: Heads, gold: Heads) -> Dict[str, float]:
    """Percentages of words; unknown gold heads, −1, are not counted."""
    directed = undirected = words = 0
    for mine, right in zip(found, gold):
        for word, (head, given) in enumerate(zip(mine, right), 1):
            if given < 0:
                continue
            words += 1
            directed += head == given
            undirected += head == given or head > 0 and right[head - 1] == word
    return {"directed": 100 * directed / max(words, 1), "undirected": 100 * undirected / max(words, 1)}


def right_branching(words: int) -> List[int]:
    return list(range(words))


def left_branching(words: int) -> List[int]:
    return [*range(2, words + 1), 0][:words]


def uniform(gold: Heads, tree: Callable, roots: str) -> Dict[str, float]:
    """Expected scores of a tree drawn uniformly."""
    marginals: Dict[int, torch.Tensor] = {}
    directed = undirected = words = 0.0
    for heads in gold:
        n = len(heads)
        if n and n not in marginals:
            marginals[n] = tree(torch.zeros(n + 1, n), None, roots).marginals
        for word, head in enumerate(heads, 1):
            if head >= 0:
                words += 1
                right = marginals[n][head, word - 1].item()
                directed += right
                # The arc that points the other way is right for its own dependent.
                undirected += right + (marginals[n][word, head - 1].item() if head else 0.0)
    return {"directed": 100 * directed / max(words, 1), "undirected": 100 * undirected / max(words, 1)}


def random_scores(gold: Heads, tree: Callable, roots: str, seed: int = 1) -> Heads:
    """The best trees under arc scores drawn from a normal distribution."""
    generator = torch.Generator().manual_seed(seed)
    found: Heads = [[] for _ in gold]
    for numbers in batches(gold):
        lengths = torch.tensor([len(gold[number]) for number in numbers])
        n = int(lengths.max())
        if n:
            best = tree(torch.randn(len(numbers), n + 1, n, generator=generator), lengths, roots).argmax.argmax(-2)
            for number, row, length in zip(numbers, best.tolist(), lengths.tolist()):
                found[number] = row[:length]
    return found


def chance(gold: Heads, roots: str) -> Dict[str, Dict[str, float]]:
    """Scores of the baselines that need no model, by name."""
    scores = {
        "right-branching": score([right_branching(len(heads)) for heads in gold], gold),
        "left-branching": score([left_branching(len(heads)) for heads in gold], gold),
    }
    for name, tree in TREES.items():
        scores[f"uniform, {name}"] = uniform(gold, tree, roots)
    for name, tree in TREES.items():
        scores[f"random scores, {name}"] = score(random_scores(gold, tree, roots), gold)
    return scores


def of_model(parser: Parser, sentences: Sequence[List[str]], gold: Heads) -> Dict[str, Dict[str, float]]:
    """Scores of a model, by the name of the decoding."""
    return {decoding: score(parse(parser, sentences, decoding), gold) for decoding in DECODINGS}


def parse_arguments(arguments=None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--words", required=True, metavar="FILE", help="sentences, one a line, words separated by spaces"
    )
    parser.add_argument("--heads", required=True, metavar="FILE", help="heads of the words, 0 for the root")
    parser.add_argument(
        "--path", metavar="CHECKPOINT", help="model with --source-attention (default: only the baselines)"
    )
    parser.add_argument("--data", metavar="DIR", help="binarised data of its training")
    parser.add_argument("--user-dir", default=PLUGIN, metavar="DIR", help="user directory of the model")
    parser.add_argument("--lowercase", action="store_true", help="convert words to lower case for the model")
    parser.add_argument(
        "--tree-roots", choices=("multi", "single"), default="single", help="roots of the baselines (default: single)"
    )
    parser.add_argument("--output", metavar="FILE", help="file for the scores, as JSON")
    options = parser.parse_args(arguments)
    if (options.path is None) != (options.data is None):
        parser.error("--path and --data belong together")
    return options


@command
def main(arguments=None) -> None:
    options = parse_arguments(arguments)
    check_inputs({"--words": options.words, "--heads": options.heads, "--path": options.path})
    check_folders({"--data": options.data})
    check_outputs({"--output": options.output})
    sentences, gold = read_gold(options.words, options.heads)
    scores = {}
    if options.path is not None:
        lowered = [[word.lower() for word in words] for words in sentences] if options.lowercase else sentences
        scores = of_model(load_parser(options.path, options.data, options.user_dir), lowered, gold)
    scores.update(chance(gold, options.tree_roots))
    print(f"{'':28} {'directed':>8} {'undirected':>10}")
    for name, found in scores.items():
        print(f"{name:28} {found['directed']:8.2f} {found['undirected']:10.2f}")
    if options.output:
        rounded = {name: {kind: round(value, 2) for kind, value in found.items()} for name, found in scores.items()}
        write_json(options.output, rounded)


if __name__ == "__main__":
    main()
