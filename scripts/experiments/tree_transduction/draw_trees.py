"""Draws the trees that trained models find over one formula: arcs above its tokens, more opaque if more probable; the
best tree is orange.

    python scripts/experiments/tree_transduction/draw_trees.py BIN_DIR --model NAME CHECKPOINT --output FILE

An arc goes from a head to its word, a vertical one from the root. The formula is the first one of the test set that has
the given depth and is not too long.
"""

import argparse
import logging
from typing import List, Tuple

import torch
from torch import Tensor

from fairseq_structattn.analysis import PLUGIN
from fairseq_structattn.analysis.export_attention import check_model, load_dataset, load_models
from fairseq_structattn.analysis.figure_fonts import displayed
from fairseq_structattn.analysis.files import InputError, check_outputs, command
from fairseq_structattn.analysis.picture_files import check_picture, save_picture
from fairseq_structattn.analysis.tree_figures import draw_tree
from fairseq_structattn.distributions import ProjectiveTree

SUBSETS = {2: "test", 3: "test1", 4: "test2", 5: "test3", 6: "test4"}


def parse(checkpoint: str, data: str, depth: int, longest: int) -> Tuple[List[str], Tensor, Tensor]:
    """The tokens of a formula, the marginals of its arcs and its best tree, each ``[n+1, n]``."""
    (model,), task = load_models(checkpoint, data, PLUGIN, cpu=True)
    if model.encoder.source_attn is None:
        raise InputError(f"--model {checkpoint}: trained with --source-attention none, so it has no trees to draw")
    formulas = (item["source"] for item in load_dataset(task, SUBSETS[depth]))
    formula = next((found for found in formulas if len(found) <= longest + 1), None)
    if formula is None:
        raise InputError(f"--longest {longest}: no formula of depth {depth} is as short; raise it")
    with torch.no_grad():
        heads = model.encoder.source_attention(formula.unsqueeze(0)).distribution
        best = ProjectiveTree(heads.arc_scores).argmax[0]
    return [task.source_dictionary[token] for token in formula[:-1].tolist()], heads.marginals[0], best


def draw(axes, name: str, tokens: List[str], marginals: Tensor, best: Tensor) -> None:
    """One model's view of one formula."""
    draw_tree(axes, len(tokens), best.argmax(0).tolist(), marginals.tolist())
    for place, token in enumerate(tokens):
        axes.annotate(
            displayed(token),
            (place, 0),
            (0, -3),
            textcoords="offset points",
            ha="center",
            va="top",
            family="monospace",
            parse_math=False,
        )
    axes.set_title(displayed(name), loc="left", fontsize=10, parse_math=False)


@command
def main(arguments=None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", metavar="BIN_DIR")
    parser.add_argument("--model", nargs=2, action="append", required=True, metavar=("NAME", "CHECKPOINT"))
    parser.add_argument("--depth", type=int, choices=SUBSETS, default=3, help="depth of the formula (default: 3)")
    parser.add_argument("--longest", type=int, default=20, help="maximum number of tokens of the formula (default: 20)")
    parser.add_argument("--output", required=True, metavar="FILE", help="file of the picture, such as trees.png")
    options = parser.parse_args(arguments)
    for _, checkpoint in options.model:
        check_model(checkpoint, options.data)
    check_outputs({"--output": options.output})
    check_picture("--output", options.output)
    # importing fairseq can set the root logger to DEBUG, and matplotlib then reports on every font of the machine
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    from matplotlib.figure import Figure  # not pyplot: it would look for a display

    figure = Figure(figsize=(8, 3 * len(options.model)), layout="tight")
    rows = figure.subplots(len(options.model), 1, squeeze=False)
    for (axes,), (name, checkpoint) in zip(rows, options.model):
        draw(axes, name, *parse(checkpoint, options.data, options.depth, options.longest))
    save_picture(figure, options.output)


if __name__ == "__main__":
    main()
