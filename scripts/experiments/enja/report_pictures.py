"""Pictures of the report: differences to softmax, learning curves, BLEU by length, attention to five sentences."""

import statistics
from typing import Dict, List

from comparison import BOUND_LABELS, by_length, coupling
from settings import SYSTEMS, TITLES

from fairseq_structattn.analysis.attention_figures import (
    LABEL_FONT,
    colour_scale,
    draw_heatmap,
    largest_weight,
    measure,
)
from fairseq_structattn.analysis.attention_records import AttentionRecord
from fairseq_structattn.analysis.difference_figure import draw_differences, save_all
from fairseq_structattn.analysis.experiment_report import TESTS
from fairseq_structattn.analysis.figure_fonts import font_families
from fairseq_structattn.analysis.system_differences import differences

BAR = 2.0  # BLEU, the gain of the chain over softmax in the paper, on characters
COLOURS = {system: f"C{number}" for number, system in enumerate(SYSTEMS)}
FIRST = ("char", "paper")


def draw_all(results, dest: str) -> List[str]:
    """Draws the pictures for which there are runs, and returns a line of Markdown for each."""
    jobs = {
        "differences to softmax": ("answer.png", draw_answer),
        "learning": ("learning.png", draw_learning),
        "by length": ("by_length.png", draw_lengths),
        "attention": ("attention.png", draw_attention),
    }
    return save_all(jobs, results, dest)


def draw_answer(results):
    """All systems against softmax, both test sets together."""
    found = differences(results.runs, results.baseline, TESTS)
    names = {f"{name.side.upper()}, {name.model}: {TITLES[name.system]}": one for name, one in found.items()}
    return draw_differences(names, [COLOURS[name.system] for name in found], BAR)


def draw_learning(results):
    """Validation BLEU and loss of characters in the paper's model, and the chain's J, after each epoch."""
    from matplotlib import pyplot

    runs = _first(results)
    if not runs:
        return None
    figure, panels = pyplot.subplots(1, 3, figsize=(12, 3.6))
    titles = {"valid_bleu": "validation BLEU", "valid_nll": "validation loss, bits a word"}
    for axes, (key, title) in zip(panels, titles.items()):
        for system, by_seed in runs.items():
            _draw_epochs(axes, system, [[epoch[key] for epoch in run["epochs"]] for run in by_seed.values()])
        axes.set_title(title, fontsize=10)
    if "chain" in runs:
        tables = [[coupling(epoch["pairwise"]) for epoch in run["epochs"]] for run in runs["chain"].values()]
        _draw_epochs(panels[2], "chain", tables)
    panels[2].set_title("J of the chain", fontsize=10)
    panels[0].legend(fontsize=8, frameon=False)
    for axes in panels:
        axes.set_xlabel("epoch")
        axes.grid(alpha=0.3)
    figure.tight_layout()
    return figure


def _first(results) -> Dict[str, Dict]:
    """Systems with runs on characters in the paper's model."""
    return {name.system: runs for name, runs in results.runs.items() if (name.side, name.model) == FIRST and runs}


def _draw_epochs(axes, system: str, values: List[List[float]]) -> None:
    """Mean over seeds, and their range."""
    by_epoch = list(zip(*values))
    epochs = range(1, len(by_epoch) + 1)
    axes.plot(epochs, [statistics.mean(one) for one in by_epoch], color=COLOURS[system], label=TITLES[system])
    lowest, highest = [min(one) for one in by_epoch], [max(one) for one in by_epoch]
    axes.fill_between(epochs, lowest, highest, color=COLOURS[system], alpha=0.15, linewidth=0)


def draw_lengths(results):
    """BLEU by the number of characters, in the paper's model."""
    from matplotlib import pyplot

    runs = _first(results)
    if not runs:
        return None
    figure, axes = pyplot.subplots(figsize=(6, 3.6))
    for number, (system, by_seed) in enumerate(runs.items()):
        found = by_length(by_seed)
        places = [place + 0.08 * (number - (len(runs) - 1) / 2) for place in range(len(found))]
        means = [statistics.mean(scores) for _, scores in found]
        margins = [statistics.stdev(scores) if len(scores) > 1 else 0 for _, scores in found]
        axes.errorbar(places, means, margins, fmt="o-", markersize=4, color=COLOURS[system], label=TITLES[system])
    axes.set_xticks(range(len(found)), [f"{text}\n({size})" for text, (size, _) in zip(BOUND_LABELS, found)])
    axes.set_xlabel("characters of the source (sentences of both test sets)")
    axes.set_ylabel("BLEU")
    axes.grid(axis="y", alpha=0.3)
    axes.legend(fontsize=8, frameon=False)
    figure.tight_layout()
    return figure


def draw_attention(results):
    """The same sentences under each system, a column for a system: characters, the paper's model, the first seed."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    runs = _first(results)
    columns = {system: [record(one) for one in by_seed[min(by_seed)]["attention"]] for system, by_seed in runs.items()}
    if not columns:
        return None
    tokens = [token for records in columns.values() for one in records for token in one.source + one.target]
    with rc_context({"font.family": font_families(tokens)}):
        panels = {system: [measure(one) for one in records] for system, records in columns.items()}
        rows = list(zip(*panels.values()))
        widths = [max(one.columns + one.target_labels for one in column) + 0.35 for column in panels.values()]
        heights = [max(one.rows + one.source_labels for one in row) + 0.25 for row in rows]
        width, height = sum(widths) + 0.2, sum(heights) + 0.5
        figure = Figure(figsize=(width, height))
        left = 0.1
        for (system, column), room in zip(panels.items(), widths):
            colours, top = colour_scale(largest_weight(columns[system])), height - 0.4
            figure.text((left + 0.1) / width, 1 - 0.25 / height, TITLES[system], fontsize=LABEL_FONT + 3)
            labels = max(one.target_labels for one in column)
            for one, tall in zip(column, heights):
                bottom = top - one.source_labels - one.rows
                place = [(left + labels) / width, bottom / height, one.columns / width, one.rows / height]
                draw_heatmap(figure.add_axes(place), one.record, one.upright, colours)
                top -= tall
            left += room
        return figure


def record(kept: Dict) -> AttentionRecord:
    """The record of which a run keeps these fields."""
    return AttentionRecord(rank=0, forced=False, **kept)
