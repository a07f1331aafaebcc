"""Pictures of attention records: one heatmap a sentence, target tokens down, source tokens across.

Tokens stand in the order in which the model reads them, from left to right in every language. The runs of the most
likely selection of a chain are outlined in the row of their target token. A tree over the source is drawn above its
tokens, one over the target beside its tokens; the trees of a decoder that attends over trees are drawn below the
heatmap, one for each target token. A legend beside the colour scale explains outlines and arcs.
"""

import math
from dataclasses import dataclass
from typing import List, Optional

import numpy as np

from fairseq_structattn.analysis.attention_records import AttentionRecord
from fairseq_structattn.analysis.figure_fonts import displayed, font_families, text_widths
from fairseq_structattn.analysis.files import InputError
from fairseq_structattn.analysis.picture_files import DOTS_PER_INCH, check_picture, save_picture
from fairseq_structattn.analysis.tree_figures import BEST_COLOUR, draw_tree, tree_height

# Sizes in inches. A token has the same size in every heatmap, so that sentences can be compared.
CELL = 0.26
MARGIN = 0.3
GAP = 0.08
TITLE = 0.3
SCALE_WIDTH = 2.0
SCALE_HEIGHT = 0.12
SCALE_SPACE = 0.55
LEGEND_GAP = 0.6  # between the scale and the text beside it
LARGEST_SIDE = 400.0

LABEL_FONT = 9  # points
TITLE_FONT = 11
OUTLINE = 1.4  # width of a line
MOST_DOTS = 12000  # of a side: a sentence of a thousand tokens is drawn more coarsely rather than not at all
LEAST_SCALE = 1e-6


class FigureError(InputError):
    """No picture can be drawn: the reason, and what to do about it."""


@dataclass
class Panel:
    """One record, and the sizes of the parts of its drawing, in inches."""

    record: AttentionRecord
    title: str
    upright: List[bool]  # whether a source token fits into the width of its column
    title_width: float
    target_labels: float
    source_labels: float
    tree: float  # height of the arcs above the source tokens
    trees: List[float]  # heights of the trees at each target token
    beside: float  # width of the arcs beside the target tokens

    @property
    def columns(self) -> float:
        return CELL * len(self.record.source)

    @property
    def wide(self) -> float:
        """Width of the heatmap and of the arcs beside it."""
        return self.columns + self.beside

    @property
    def rows(self) -> float:
        return CELL * len(self.record.target)

    @property
    def below(self) -> float:
        return sum(self.trees) + 2 * GAP * len(self.trees)

    @property
    def height(self) -> float:
        return TITLE + self.tree + self.source_labels + self.rows + self.below


def title(record: AttentionRecord) -> str:
    """Number of the sentence, rank of the translation, and score; for facts, the question and the answer."""
    kind = ", reference" if record.forced else f", hypothesis {record.rank + 1}" if record.rank else ""
    if record.label is not None:
        probability = math.exp(record.score)
        return f"pair {record.id}: {record.label}, taken for {record.predicted} (probability {probability:.2f})"
    asked = f": {record.question}" if record.question else ""
    score = round(record.score, 3) + 0.0  # a score of −0.0001 is 0.000, without a sign
    return f"{'question' if asked else 'sentence'} {record.id}{kind}{asked}, score {score:.3f}"


def largest_weight(records: List[AttentionRecord]) -> float:
    """The weight of the darkest colour; all sentences of a picture share one colour scale."""
    weights = (weight for record in records for row in record.weights for weight in row)
    return max((weight for weight in weights if math.isfinite(weight)), default=0.0) or LEAST_SCALE


def draw_figure(records: List[AttentionRecord]):
    """A matplotlib figure of all records below each other, every token of the same size.

    Raises:
        FigureError: there are no records, or more than fit into a picture
    """
    from matplotlib import rc_context

    if not records:
        raise FigureError("there is no sentence to draw")
    tokens = [token for record in records for token in record.source + record.target]
    with rc_context({"font.family": font_families(tokens)}):
        panels = [measure(record) for record in records]
        return _draw_panels(panels, colour_scale(largest_weight(records)), explanation(records))


def explanation(records: List[AttentionRecord]) -> Optional[str]:
    """The legend of what is orange; None where nothing is."""
    if any(record.segments for record in records):
        return "outlined: the most likely selection of the chain"
    if any(record.tree or record.trees for record in records):
        return "orange: the most likely tree; an arc is as opaque as it is probable"
    return None


def measure(record: AttentionRecord) -> Panel:
    """The sizes of a record's drawing."""
    widths = text_widths(record.source, LABEL_FONT)
    upright = [width <= CELL - GAP / 2 for width in widths]
    trees = [tree_height(heads) for heads in record.trees or []]
    return Panel(
        record=record,
        title=title(record),
        upright=upright,
        title_width=text_widths([title(record)], TITLE_FONT)[0],
        target_labels=max(text_widths(record.target, LABEL_FONT), default=0.0) + GAP,
        source_labels=max([CELL] + [width for width, fits in zip(widths, upright) if not fits]) + GAP,
        tree=tree_height(record.tree.heads, record.tree.marginals) if record.tree else 0.0,
        trees=trees,
        beside=tree_height(record.target_tree.heads, record.target_tree.marginals) if record.target_tree else 0.0,
    )


def _draw_panels(panels: List[Panel], colours, explained: Optional[str]):
    from matplotlib.figure import Figure  # not pyplot: it would look for a display

    left = MARGIN + max(panel.target_labels for panel in panels)
    legend = 0.0 if explained is None else LEGEND_GAP + text_widths([explained], LABEL_FONT)[0]
    contents = [left + max(panel.wide for panel in panels), MARGIN + SCALE_WIDTH + legend]
    width = MARGIN + max(contents + [MARGIN + panel.title_width for panel in panels])
    height = sum(panel.height + MARGIN for panel in panels) + SCALE_SPACE + MARGIN
    if max(width, height) > LARGEST_SIDE:
        raise FigureError(
            f"{len(panels)} sentences would make a picture of {width:.0f} by {height:.0f} inches; choose fewer with "
            "--ids or --sentences, or write a page (--output NAME.html), which holds hundreds"
        )
    page = Page(Figure(figsize=(width, height)), left, colours)
    for panel in panels:
        page.add_panel(panel)
    page.add_scale()
    if explained is not None:
        page.add_legend(explained)
    return page.figure


class Page:
    """A figure that is filled from the top downwards; places are in inches."""

    def __init__(self, figure, left: float, colours):
        self.figure = figure
        self.left = left
        self.colours = colours
        self.width, self.height = figure.get_size_inches()
        self.top = self.height - MARGIN

    def add_axes(self, left: float, width: float, height: float):
        """Axes below those that were added before."""
        self.top -= height
        shares = [left / self.width, self.top / self.height, width / self.width, height / self.height]
        return self.figure.add_axes(shares)

    def add_axes_beside(self, left: float, width: float, height: float):
        """Axes to the right of those that were added last."""
        self.top += height
        return self.add_axes(left, width, height)

    def add_panel(self, panel: Panel) -> None:
        """A record: its title, its tree, its heatmap, the tree of its target, and the trees at its target tokens."""
        place = (MARGIN / self.width, self.top / self.height)
        self.figure.text(*place, panel.title, fontsize=TITLE_FONT, va="top")
        self.top -= TITLE
        record = panel.record
        if record.tree:
            axes = self.add_axes(self.left, panel.columns, panel.tree)
            draw_tree(axes, len(record.source), record.tree.heads, record.tree.marginals)
        self.top -= panel.source_labels
        axes = self.add_axes(self.left, panel.columns, panel.rows)
        draw_heatmap(axes, record, panel.upright, self.colours)
        if record.target_tree:
            axes = self.add_axes_beside(self.left + panel.columns, panel.beside, panel.rows)
            draw_tree(axes, len(record.target), record.target_tree.heads, record.target_tree.marginals, beside=True)
        for token, heads, height in zip(record.target, record.trees or [], panel.trees):
            self.top -= 2 * GAP
            axes = self.add_axes(self.left, panel.columns, height)
            draw_tree(axes, len(record.source), heads)
            axes.vlines(range(len(record.source)), 0, height, color="0.9", linewidth=0.5, zorder=0)
            axes.text(-0.5 - GAP / CELL, 0, displayed(token), fontsize=LABEL_FONT, ha="right", parse_math=False)
        self.top -= MARGIN

    def add_scale(self) -> None:
        """The colour scale of all sentences."""
        axes = self.add_axes(MARGIN, SCALE_WIDTH, SCALE_HEIGHT)
        bar = self.figure.colorbar(self.colours, cax=axes, orientation="horizontal")
        bar.set_label("weight", fontsize=LABEL_FONT)
        bar.ax.tick_params(labelsize=LABEL_FONT - 1)

    def add_legend(self, text: str) -> None:
        """The legend of what is orange, beside the colour scale."""
        from matplotlib.patches import Rectangle

        axes = self.add_axes_beside(MARGIN + SCALE_WIDTH + LEGEND_GAP / 3, LEGEND_GAP / 2, SCALE_HEIGHT)
        axes.axis("off")
        axes.add_patch(Rectangle((0, 0), 1, 1, fill=False, edgecolor=BEST_COLOUR, linewidth=OUTLINE, clip_on=False))
        axes.text(4 / 3, 0.5, text, fontsize=LABEL_FONT, va="center")


def colour_scale(largest: float):
    """Maps weights to colours: 0 is white, `largest` is dark blue, NaN is red."""
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    return ScalarMappable(Normalize(0.0, largest), colormaps["Blues"].with_extremes(bad="tab:red"))


def draw_heatmap(axes, record: AttentionRecord, upright: List[bool], colours) -> None:
    """One sentence on the given axes; `upright` tells which source tokens are not turned by 90 degrees."""
    # given colours rather than weights, matplotlib draws heatmaps of a hundred tokens in a third of the time
    pixels = colours.to_rgba(np.asarray(record.weights, dtype=float), bytes=True)
    axes.imshow(pixels, aspect="auto", interpolation="nearest")
    _label_tokens(axes, record, upright)
    _separate_cells(axes, len(record.target), len(record.source))
    for row, segments in enumerate(record.segments or []):
        _outline_segments(axes, row, segments)


def _label_tokens(axes, record: AttentionRecord, upright: List[bool]) -> None:
    # parse_math=False: a token such as $x$ is no formula
    axes.xaxis.tick_top()
    axes.set_xticks(range(len(record.source)))
    axes.set_xticklabels([displayed(token) for token in record.source], fontsize=LABEL_FONT, parse_math=False)
    for label, fits in zip(axes.get_xticklabels(), upright):
        label.set_rotation(0 if fits else 90)
    axes.set_yticks(range(len(record.target)))
    axes.set_yticklabels([displayed(token) for token in record.target], fontsize=LABEL_FONT, parse_math=False)
    axes.tick_params(length=0)


def _separate_cells(axes, rows: int, columns: int) -> None:
    """Thin lines between the tokens, which guide the eye along the rows of a long sentence."""
    axes.set_xticks([index - 0.5 for index in range(1, columns)], minor=True)
    axes.set_yticks([index - 0.5 for index in range(1, rows)], minor=True)
    axes.grid(which="minor", color="0.9", linewidth=0.5)
    axes.tick_params(which="minor", length=0)


def _outline_segments(axes, row: int, segments) -> None:
    """A frame round each run of selected positions, just within its cells."""
    from matplotlib.patches import Rectangle

    inset = 0.06
    for start, end in segments:
        corner = (start - 0.5 + inset, row - 0.5 + inset)
        size = (end - start - 2 * inset, 1 - 2 * inset)
        # above the lines between the cells
        axes.add_patch(Rectangle(corner, *size, fill=False, edgecolor=BEST_COLOUR, linewidth=OUTLINE, zorder=3))


def save_figure(figure, path: str) -> None:
    """Writes the picture beside `path` and moves it into place; the kind is that of the name.

    Raises:
        InputError: there is no such kind of picture
    """
    check_picture("--output", path, others=("html",))
    save_picture(figure, path, min(DOTS_PER_INCH, MOST_DOTS / max(figure.get_size_inches())))
