"""Draws what a translation model attends to: one heatmap a sentence, target tokens down, source tokens across.

The sentences of a binarised subset are translated with beam search, as fairseq-generate would, and the attention that
comes with the best hypothesis is drawn. It works with every fairseq model whose decoder returns its attention.
"""

import argparse
import logging
import os
import sys
import warnings
from dataclasses import dataclass
from typing import Iterable, List, Optional

import torch

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

# Sizes in inches. A token has the same size in every heatmap, so that sentences can be compared.
CELL = 0.26
LABEL_FONT = 9  # points
CHARACTER = 0.085  # about the width of one letter of that size
MARGIN = 0.3
TITLE = 0.35
COLOUR_BAR = 0.15


class PlotError(Exception):
    """Why there is nothing to draw, and what to do about it."""


@dataclass
class Translation:
    """A translated sentence; `weights` is [tgt_len, src_len], in reading order and without padding."""

    sentence_id: int
    source: List[str]
    target: List[str]
    weights: torch.Tensor
    score: float


def load_models(paths: List[str], data: str, user_dir: Optional[str] = None):
    """The models of the checkpoints, ready to translate, and their task."""
    from fairseq import checkpoint_utils, utils

    for path in paths:
        if not os.path.isfile(path):
            raise PlotError(f"--path {path}: no such checkpoint")
    if not os.path.isdir(data):
        raise PlotError(f"--data {data}: no such folder; name the one that fairseq-preprocess wrote")
    utils.import_user_module(argparse.Namespace(user_dir=user_dir))
    models, _, task = checkpoint_utils.load_model_ensemble_and_task(paths, arg_overrides={"data": data})
    for model in models:
        model.eval()
        if torch.cuda.is_available():
            model.cuda()
    return models, task


def load_sentences(task, subset: str, ids: Iterable[int]) -> List[dict]:
    """Sentences of a subset by their number in the corpus, each a batch of its own.

    Alone in its batch a sentence has no padding: some models, fairseq's `lstm` among them, return the attention of
    padded sentences in an order that differs from that of the source tokens.
    """
    try:
        task.load_dataset(subset)
    except FileNotFoundError as error:
        raise PlotError(f"--gen-subset {subset}: {error}") from None
    dataset = task.dataset(subset)
    for sentence_id in ids:
        if not 0 <= sentence_id < len(dataset):
            raise PlotError(f"--ids {sentence_id}: {subset} has the sentences 0 to {len(dataset) - 1}")
    return [dataset.collater([dataset[sentence_id]]) for sentence_id in ids]


def translate(models, task, batch: dict, beam: int = 5) -> List[Translation]:
    """The best hypothesis of every sentence of a batch, with its attention, in the order of the batch."""
    from fairseq import utils
    from fairseq.dataclass.configs import GenerationConfig

    generator = task.build_generator(models, GenerationConfig(beam=beam))
    if torch.cuda.is_available():
        batch = utils.move_to_cuda(batch)
    hypotheses = task.inference_step(generator, models, batch)
    return [
        as_translation(int(sentence_id), source_tokens, nbest[0], task)
        for sentence_id, source_tokens, nbest in zip(batch["id"], batch["net_input"]["src_tokens"], hypotheses)
    ]


def as_translation(sentence_id: int, source_tokens, hypothesis: dict, task) -> Translation:
    attention = hypothesis["attention"]
    if attention is None or attention.numel() == 0:
        raise PlotError(
            "the model returns no attention, so there is nothing to draw; models without attention (such as "
            "structattn_rnn_vanilla, or --attention-distribution none) have none"
        )
    real = source_tokens.ne(task.source_dictionary.pad())
    return Translation(
        sentence_id=sentence_id,
        source=[task.source_dictionary[token] for token in source_tokens[real].tolist()],
        target=[task.target_dictionary[token] for token in hypothesis["tokens"].tolist()],
        weights=attention[real].t().float().cpu(),
        score=float(hypothesis["score"]),
    )


def draw_heatmap(axes, translation: Translation, largest: float):
    """One sentence on the given axes; `largest` is the weight that gets the darkest colour."""
    image = axes.imshow(translation.weights.numpy(), aspect="auto", cmap="Blues", vmin=0.0, vmax=largest)
    axes.xaxis.tick_top()
    axes.set_xticks(range(len(translation.source)))
    axes.set_xticklabels(translation.source, fontsize=LABEL_FONT)
    for label in axes.get_xticklabels():
        label.set_rotation(0 if len(label.get_text()) <= 2 else 90)  # characters read best upright, words do not fit so
    axes.set_yticks(range(len(translation.target)))
    axes.set_yticklabels(translation.target, fontsize=LABEL_FONT)
    axes.tick_params(length=0)
    separate_cells(axes, translation)
    return image


def separate_cells(axes, translation: Translation) -> None:
    """Thin lines between the tokens: with dozens of them the eye loses the row."""
    axes.set_xticks([index - 0.5 for index in range(1, len(translation.source))], minor=True)
    axes.set_yticks([index - 0.5 for index in range(1, len(translation.target))], minor=True)
    axes.grid(which="minor", color="0.9", linewidth=0.5)
    axes.tick_params(which="minor", length=0)


def draw_figure(translations: List[Translation]):
    """All sentences below each other, every token of the same size and every colour of the same meaning."""
    from matplotlib.figure import Figure  # not pyplot: it would look for a display

    choose_fonts(token for one in translations for token in one.source + one.target)
    largest = max(1e-6, max(float(one.weights.max()) for one in translations))
    left = MARGIN + CHARACTER * max(len(token) for one in translations for token in one.target)
    labels = [TITLE + CHARACTER * max(map(len, one.source)) for one in translations]
    heights = [CELL * len(one.target) for one in translations]
    width = left + CELL * max(len(one.source) for one in translations) + 3 * MARGIN
    height = sum(labels) + sum(heights) + MARGIN * (len(translations) + 1)
    figure = Figure(figsize=(width, height))

    top = height - MARGIN
    for one, label, axes_height in zip(translations, labels, heights):
        figure.text(MARGIN / 2 / width, top / height, title(one), fontsize=LABEL_FONT + 1, va="top", weight="bold")
        bottom = top - label - axes_height
        axes_width = CELL * len(one.source)
        axes = figure.add_axes([left / width, bottom / height, axes_width / width, axes_height / height])
        image = draw_heatmap(axes, one, largest)
        bar = [(left + axes_width + MARGIN / 2) / width, bottom / height, COLOUR_BAR / width, axes_height / height]
        figure.colorbar(image, cax=figure.add_axes(bar)).ax.tick_params(labelsize=LABEL_FONT - 1)
        top = bottom - MARGIN
    return figure


def title(translation: Translation) -> str:
    return f"sentence {translation.sentence_id}, score {translation.score:.3f}"


def choose_fonts(tokens: Iterable[str]) -> None:
    """Adds an installed font for the glyphs that matplotlib's own lacks, which would become empty boxes."""
    from matplotlib import font_manager, rcParams

    default = font_manager.findfont(font_manager.FontProperties(family=rcParams["font.family"]))
    missing = {ord(character) for token in tokens for character in token} - glyphs(default)
    if not missing:
        return
    best = max(font_manager.findSystemFonts(), key=lambda path: len(missing & glyphs(path)), default=None)
    covered = missing & glyphs(best) if best else set()
    if covered:
        font_manager.fontManager.addfont(best)
        name = font_manager.FontProperties(fname=best).get_name()
        rcParams["font.family"] = list(rcParams["font.family"]) + [name]
    if missing - covered:
        example = "".join(sorted(map(chr, missing - covered))[:10])
        advice = "install a font that has them (for Chinese and Japanese: fonts-noto-cjk)"
        warnings.warn(f"no installed font can show {example}, empty boxes stand for them; {advice}", stacklevel=2)


def glyphs(font_path: str) -> set:
    """The code points that a font can show; none for a file that is no font matplotlib reads."""
    from matplotlib.ft2font import FT2Font

    try:
        return set(FT2Font(font_path).get_charmap())
    except (OSError, RuntimeError):
        return set()


def save_figure(figure, path: str) -> None:
    kind = os.path.splitext(path)[1].lstrip(".").lower()
    known = sorted(figure.canvas.get_supported_filetypes())
    if kind not in known:
        raise PlotError(f"--output {path}: the name must end in one of {', '.join(known)}")
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # choose_fonts has said so, once for all of them
        figure.savefig(path + ".tmp", format=kind, dpi=150)
    os.replace(path + ".tmp", path)


def parse_ids(text: str) -> List[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not a list of sentence numbers such as 0,5,7") from None


def parse_arguments(arguments=None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--path", required=True, metavar="FILES", help="checkpoints, separated by colons")
    parser.add_argument("--data", required=True, metavar="DIR", help="what fairseq-preprocess wrote")
    parser.add_argument(
        "--user-dir",
        default=os.path.join(REPOSITORY, "fairseq_structattn"),
        metavar="DIR",
        help="the plugin that the model belongs to (default: fairseq_structattn)",
    )
    parser.add_argument("--gen-subset", default="test", metavar="NAME", help="(default: test)")
    parser.add_argument("--sentences", type=int, default=3, metavar="N", help="draw the first N sentences (default: 3)")
    parser.add_argument("--ids", type=parse_ids, metavar="I,J,...", help="draw these sentences instead, counted from 0")
    parser.add_argument("--beam", type=int, default=5, metavar="N", help="(default: 5)")
    parser.add_argument("--output", required=True, metavar="FILE", help="the picture: .png, .pdf, .svg, ...")
    options = parser.parse_args(arguments)
    if options.sentences < 1:
        parser.error(f"--sentences {options.sentences}: at least one sentence is needed")
    return options


def check_matplotlib() -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise PlotError("matplotlib is not installed; install the extra `plot`: pip install -e '.[plot]'") from None


def main(arguments=None) -> None:
    options = parse_arguments(arguments)
    ids = options.ids if options.ids is not None else range(options.sentences)
    try:
        check_matplotlib()
        # importing fairseq can set the root logger to DEBUG, and matplotlib then reports on every font of the machine
        logging.getLogger("matplotlib").setLevel(logging.ERROR)
        models, task = load_models(options.path.split(os.pathsep), options.data, options.user_dir)
        batches = load_sentences(task, options.gen_subset, ids)
        translations = [one for batch in batches for one in translate(models, task, batch, options.beam)]
        for one in translations:
            print(f"{title(one)}: {' '.join(one.source[:-1])} -> {' '.join(one.target[:-1])}")
        save_figure(draw_figure(translations), options.output)
    except PlotError as error:
        sys.exit(f"error: {error}")
    print(f"drawn: {options.output}")


if __name__ == "__main__":
    main()
