"""Draws which facts of a story several models select at each step, side by side.

    python scripts/experiments/babi/draw_facts.py --data babi/data/qa2 --question 3 --output facts.png \
        --model "memn2n" babi/runs/qa2.memn2n.published-1/checkpoint_best.pt --model "chain" …

Facts run from top to bottom; a darker cell is a more probable fact at that step. The most likely sequence is framed,
and the facts that lead to the answer are bold. Without --question, the script chooses the first question for which the
last model has the right answer and the right facts, and every other model misses some of the facts.
"""

import argparse
import logging
from typing import List, NamedTuple, Optional

from fairseq_structattn.analysis import PLUGIN
from fairseq_structattn.analysis.attention_records import AttentionRecord
from fairseq_structattn.analysis.files import InputError, check_folders, check_inputs, check_outputs, command
from fairseq_structattn.analysis.picture_files import check_picture, save_picture

CELL = 0.26  # inches
LABEL_FONT = 9
FRAME = "C1"


class Selected(NamedTuple):
    """What a model selects, and its name."""

    name: str
    record: AttentionRecord


def is_right(record: AttentionRecord) -> bool:
    return "(right:" not in record.question


def telling(models: List[List[AttentionRecord]]) -> int:
    """The number of the first question that shows a difference, see above; 0 if there is none."""
    for number, records in enumerate(zip(*models)):
        *others, last = records
        if is_right(last) and last.target == last.reference and all(one.target != one.reference for one in others):
            return number
    return 0


def draw(selected: List[Selected]):
    """A figure of matplotlib."""
    from matplotlib.figure import Figure

    facts, supporting = selected[0].record.source, set(selected[0].record.reference)
    steps = [len(one.record.target) for one in selected]
    width = 0.085 * max(map(len, facts)) + CELL * 2 * sum(steps) + 1.2 * len(selected) + 0.5
    figure = Figure(figsize=(width, CELL * len(facts) + 1.1), layout="constrained")
    axes = figure.subplots(1, len(selected), sharey=True, squeeze=False, gridspec_kw={"width_ratios": steps})[0]
    for axis, one in zip(axes, selected):
        _draw_model(axis, one)
    axes[0].set_yticks(range(len(facts)), facts, fontsize=LABEL_FONT)
    for label, fact in zip(axes[0].get_yticklabels(), facts):
        label.set_fontweight("bold" if fact in supporting else "normal")
    figure.suptitle(selected[0].record.question.split("?")[0] + "?", fontsize=LABEL_FONT + 2)
    return figure


def _draw_model(axis, selected: Selected) -> None:
    from matplotlib.patches import Rectangle

    record = selected.record
    axis.imshow(list(zip(*record.marginals)), cmap="Blues", vmin=0, vmax=1, aspect="auto")
    for step, ((fact, _),) in enumerate(record.segments):
        axis.add_patch(Rectangle((step - 0.5, fact - 0.5), 1, 1, fill=False, edgecolor=FRAME, linewidth=2))
    axis.set_xticks(range(len(record.target)), [str(step + 1) for step in range(len(record.target))])
    axis.tick_params(length=0, labelsize=LABEL_FONT)
    axis.set_title(f"{selected.name}:\n{record.question.split('?', 1)[1].strip()}", fontsize=LABEL_FONT)


def records_of(path: str, data: str, subset: str) -> List[AttentionRecord]:
    from fairseq_structattn.analysis.export_attention import load_dataset, load_models
    from fairseq_structattn.analysis.fact_records import fact_records, selects_facts

    models, task = load_models(path, data, PLUGIN, cpu=True)
    if not selects_facts(models):
        raise InputError(f"--model {path}: a model of another kind; name a checkpoint of structattn_memn2n")
    dataset = load_dataset(task, subset)
    return list(fact_records(models, task, dataset, list(range(len(dataset)))))


def parse_arguments(arguments=None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, metavar="DIR", help="data folder made by scripts/prepare/babi.py")
    parser.add_argument(
        "--model", nargs=2, action="append", required=True, metavar=("NAME", "CHECKPOINT"), help="one or several models"
    )
    parser.add_argument("--subset", default="test", metavar="NAME", help="split of the data (default: test)")
    parser.add_argument("--question", type=int, metavar="N", help="number of the question, counted from 0")
    parser.add_argument("--output", required=True, metavar="FILE", help="file of the picture")
    return parser.parse_args(arguments)


@command
def main(arguments=None) -> None:
    options = parse_arguments(arguments)
    check_folders({"--data": options.data})
    check_inputs({f"--model {name}": path for name, path in options.model})
    check_outputs({"--output": options.output})
    check_picture("--output", options.output)
    found = [records_of(path, options.data, options.subset) for _, path in options.model]
    # Importing fairseq sets the root logger to DEBUG, and matplotlib then reports on every font of the machine.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    number: Optional[int] = telling(found) if options.question is None else options.question
    if not 0 <= number < len(found[0]):
        raise InputError(f"--question {number}: no such question; there are {len(found[0])}, counted from 0")
    save_picture(draw([Selected(name, one[number]) for (name, _), one in zip(options.model, found)]), options.output)
    print(f"{options.output}: question {number}, {found[0][number].question}")


if __name__ == "__main__":
    main()
