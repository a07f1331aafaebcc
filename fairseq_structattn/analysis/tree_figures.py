"""Dependency trees in matplotlib: arcs above tokens, from head to dependent; probable arcs are more opaque."""

from typing import Iterator, List, NamedTuple, Optional

NEIGHBOUR_HEIGHT = 0.17  # inches, of an arc between neighbours
GROWTH = 0.62  # height as a power of distance: below 1, so that long sentences stay flat
ROOM = 0.14  # inches, above the highest arc
SIDESTEP = 0.14  # of a token's width: arcs leave a head beside the end of the arc from its own head
LEAST_PROBABILITY = 0.02
FAINTEST_BEST = 0.3  # least opacity of the arcs of the best tree, so that improbable ones are visible
COLOUR = "tab:blue"
BEST_COLOUR = "tab:orange"


class Arc(NamedTuple):
    """An arc from a head to a word, counted from 0; the head of a root word is None."""

    head: Optional[int]
    word: int
    probability: float
    best: bool


def arcs_of(heads: List[int], marginals: Optional[List[List[float]]] = None) -> Iterator[Arc]:
    """The arcs to draw, those of the best tree last, so that they lie on top.

    Args:
        heads: of each word, 0 for the root and i for word i, counted from 1
        marginals: ``[head][word]``, the root first; without marginals only the arcs of the best tree are drawn, each
            with probability 1
    """
    if marginals is not None:
        for head, row in enumerate(marginals):
            for word, probability in enumerate(row):
                if probability >= LEAST_PROBABILITY and heads[word] != head:
                    yield Arc(head - 1 if head else None, word, probability, best=False)
    for word, head in enumerate(heads):
        probability = 1.0 if marginals is None else marginals[head][word]
        yield Arc(head - 1 if head else None, word, probability, best=True)


def arc_height(arc: Arc) -> float:
    """Height in inches; 0 for an arc from the root, which is vertical and comes from above the others."""
    return 0.0 if arc.head is None else NEIGHBOUR_HEIGHT * abs(arc.head - arc.word) ** GROWTH


def tree_height(heads: List[int], marginals: Optional[List[List[float]]] = None) -> float:
    """Height of all arcs, in inches."""
    return max([NEIGHBOUR_HEIGHT] + [arc_height(arc) for arc in arcs_of(heads, marginals)]) + ROOM


def draw_tree(
    axes, columns: int, heads: List[int], marginals: Optional[List[List[float]]] = None, beside: bool = False
) -> None:
    """Draws arcs over tokens at 0, 1, … `columns` − 1, in axes for this tree alone.

    Arcs of the best tree have another colour; a vertical arrow is an arc from the root. See `arcs_of` for `heads` and
    `marginals`; there may be fewer words than columns. With `beside`, the tokens form a column, and the arcs are to its
    right.
    """
    top = tree_height(heads, marginals)
    if beside:
        axes.set_xlim(0, top)
        axes.set_ylim(columns - 0.5, -0.5)
    else:
        axes.set_xlim(-0.5, columns - 0.5)
        axes.set_ylim(0, top)
    axes.axis("off")
    for arc in arcs_of(heads, marginals):
        axes.add_patch(_arrow(arc, top, beside))


def arc_path(arc: Arc, top: float):
    """The line of an arc, from its head to its word; arcs from the root begin at height `top`."""
    from matplotlib.path import Path

    if arc.head is None:
        return Path([(arc.word, top), (arc.word, 0)])
    start = arc.head + (SIDESTEP if arc.word > arc.head else -SIDESTEP)
    control = arc_height(arc) * 4 / 3  # of a cubic curve whose maximum is arc_height
    points = [(start, 0), (start, control), (arc.word, control), (arc.word, 0)]
    return Path(points, [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4])


def _arrow(arc: Arc, top: float, beside: bool):
    from matplotlib.patches import FancyArrowPatch
    from matplotlib.path import Path

    path = arc_path(arc, top)
    return FancyArrowPatch(
        path=Path(path.vertices[:, ::-1], path.codes) if beside else path,
        arrowstyle="-|>",
        mutation_scale=6,
        linewidth=1.3 if arc.best else 1.0,
        color=BEST_COLOUR if arc.best else COLOUR,
        alpha=min(1.0, max(arc.probability, FAINTEST_BEST if arc.best else 0.0)),
    )
