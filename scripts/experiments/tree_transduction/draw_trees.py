"""Draws what trained models see in one formula: above its tokens the arcs of its tree, as opaque as they are probable,
those of the best tree in orange.

    python scripts/experiments/tree_transduction/draw_trees.py BIN_DIR --model NAME CHECKPOINT --output FILE

An arc goes from a head to its word, a vertical one from the root. The formula is the first one of the test set whose
depth and length are as asked.
"""

import argparse
import logging
import os
import sys
from typing import List, Tuple

import torch
from fairseq import checkpoint_utils
from torch import Tensor

import fairseq_structattn  # noqa: F401  (registers the architectures)
from fairseq_structattn.distributions import ProjectiveTree

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "analysis"))
from tree_figures import draw_tree  # noqa: E402

SUBSETS = {2: "test", 3: "test1", 4: "test2", 5: "test3", 6: "test4"}


def parse(checkpoint: str, data: str, depth: int, longest: int) -> Tuple[List[str], Tensor, Tensor]:
    """The tokens of a formula, the marginals of its arcs and its best tree, each ``[n+1, n]``."""
    (model,), _, task = checkpoint_utils.load_model_ensemble_and_task([checkpoint], arg_overrides={"data": data})
    model.eval()
    if model.encoder.parser is None:
        sys.exit(f"error: {checkpoint} was trained with --source-attention none: it has no trees to draw")
    task.load_dataset(SUBSETS[depth])
    formulas = (item["source"] for item in task.dataset(SUBSETS[depth]))
    formula = next((found for found in formulas if len(found) <= longest + 1), None)
    if formula is None:
        sys.exit(f"error: no formula of depth {depth} has up to {longest} tokens; raise --longest")
    with torch.no_grad():
        heads = model.encoder.source_attention(formula.unsqueeze(0)).distribution
        best = ProjectiveTree(heads.arc_scores).argmax[0]
    return task.source_dictionary.string(formula).split(), heads.marginals[0], best


def draw(axes, name: str, tokens: List[str], marginals: Tensor, best: Tensor) -> None:
    """One model's view of one formula."""
    draw_tree(axes, len(tokens), best.argmax(0).tolist(), marginals.tolist())
    for place, token in enumerate(tokens):
        axes.annotate(token, (place, 0), (0, -3), textcoords="offset points", ha="center", va="top", family="monospace")
    axes.set_title(name, loc="left", fontsize=10)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", metavar="BIN_DIR")
    parser.add_argument("--model", nargs=2, action="append", required=True, metavar=("NAME", "CHECKPOINT"))
    parser.add_argument("--depth", type=int, choices=SUBSETS, default=3, help="of the formula (default: 3)")
    parser.add_argument("--longest", type=int, default=20, help="most tokens of the formula (default: 20)")
    parser.add_argument("--output", required=True, metavar="FILE", help="a picture, such as trees.png")
    options = parser.parse_args()
    # importing fairseq can set the root logger to DEBUG, and matplotlib then reports on every font of the machine
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, rows = pyplot.subplots(len(options.model), 1, figsize=(8, 3 * len(options.model)), squeeze=False)
    for (axes,), (name, checkpoint) in zip(rows, options.model):
        draw(axes, name, *parse(checkpoint, options.data, options.depth, options.longest))
    figure.tight_layout()
    figure.savefig(options.output, dpi=150)


if __name__ == "__main__":
    main()
