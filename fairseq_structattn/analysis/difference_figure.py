"""The answer of an experiment at a glance: how far systems are from their baseline, with intervals."""

import os
from typing import Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from fairseq_structattn.analysis.attention_figures import save_figure
from fairseq_structattn.analysis.system_differences import Difference


def draw_differences(found: Mapping[str, Difference], colours: Sequence[str], bar: Optional[float] = None):
    """A figure of BLEU above or below softmax, with 95 % intervals; None without differences.

    Args:
        found: differences by the name that is shown
        colours: of each
        bar: the difference that was to be shown, if any
    """
    from matplotlib import pyplot

    if not found:
        return None
    figure, axes = pyplot.subplots(figsize=(8.5, 1.3 + 0.36 * len(found)))
    for place, (one, colour) in enumerate(zip(found.values(), colours)):
        axes.plot([one.low, one.high], [place, place], color=colour, linewidth=2.5, solid_capstyle="butt")
        axes.plot(one.each, [place] * len(one.each), "|", color=colour, markersize=9)
        axes.plot([one.mean], [place], "o", color=colour)
    axes.set_yticks(range(len(found)), [f"{name} ({_seeds(one.seeds)})" for name, one in found.items()])
    axes.axvline(0, color="black", linewidth=0.8)
    if bar is not None:
        axes.axvline(bar, color="0.5", linewidth=0.8, linestyle="dashed")
        places = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
        # To the left, where there is room: the axis ends behind the bar.
        axes.annotate("what was to be shown", (bar, 1), (2, 2), color="0.4", horizontalalignment="right", **places)
    axes.set_ylim(len(found) - 0.5, -0.5)
    axes.set_xlabel("BLEU more than softmax, both test sets:\nmean over seeds (strokes), 95 % interval over sentences")
    axes.grid(axis="x", alpha=0.3)
    figure.tight_layout()
    return figure


def _seeds(seeds: Sequence[int]) -> str:
    return f"{len(seeds)} seed" + ("s" if len(seeds) > 1 else "")


def save_all(jobs: Dict[str, Tuple[str, Callable]], results, dest: str) -> List[str]:
    """Draws the pictures for which there are runs into a folder, and returns a line of Markdown for each.

    Args:
        jobs: name of the file, and the function that draws `results` or returns None, by title
        results: of the experiment
        dest: the folder
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    drawn = []
    for title, (file, draw) in jobs.items():
        figure = draw(results)
        if figure is not None:
            save_figure(figure, os.path.join(dest, file))
            pyplot.close(figure)
            drawn.append(f"![{title}]({file})")
    return drawn
