"""Shows what a translation model attends to: a picture of a few sentences, or a page to browse hundreds of them.

    structattn-plot --records attention.jsonl --ids 0,5 --output attention.png
    structattn-plot --records attention.jsonl --output attention.html
    structattn-plot --path checkpoint_best.pt --data bin --output attention.png

The sentences come from a file that export_attention.py wrote, or are translated here, as by fairseq-generate. A
picture (.png, .svg, .pdf, …) has a heatmap for each sentence, target tokens down, source tokens across; the segments
that a chain most likely selects are outlined, trees are arcs above the tokens. A page (.html) shows one sentence at a
time in the same way, and has a list to search and sort; it is one file and needs neither server nor network.
"""

import argparse
import logging
from typing import Dict, Iterable, Iterator, List, Optional

from fairseq_structattn.analysis import PLUGIN
from fairseq_structattn.analysis.attention_records import AttentionRecord, check_records, read_records, words_of
from fairseq_structattn.analysis.files import InputError, check_outputs, command
from fairseq_structattn.analysis.picture_files import check_picture

SENTENCES_OF_A_PICTURE = 3


class PlotError(InputError):
    """Nothing can be drawn: the reason, and what to do about it."""


def chosen(
    records: Iterable[AttentionRecord], ids: Optional[List[int]], sentences: Optional[int]
) -> List[AttentionRecord]:
    """All translations of the sentences `ids`, in that order, or of the first `sentences`, or of all.

    Raises:
        PlotError: there is no such sentence
    """
    result = _first(records, sentences) if ids is None else _with_ids(records, ids)
    if not result:
        raise PlotError("there are no sentences in the file of records")
    return result


def _first(records: Iterable[AttentionRecord], sentences: Optional[int]) -> List[AttentionRecord]:
    result, seen = [], set()
    for record in records:
        seen.add(record.id)
        if sentences is not None and len(seen) > sentences:
            break
        result.append(record)
    return result


def _with_ids(records: Iterable[AttentionRecord], ids: List[int]) -> List[AttentionRecord]:
    found: Dict[int, List[AttentionRecord]] = {wanted: [] for wanted in ids}
    known = set()
    for record in records:
        known.add(record.id)
        if record.id in found:
            found[record.id].append(record)
    for wanted, translations in found.items():
        if known and not translations:
            raise PlotError(f"--ids {wanted}: no such sentence; there are {len(known)}, {min(known)} to {max(known)}")
    return [record for translations in found.values() for record in translations]


def parse_ids(text: str) -> List[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not a list of sentence numbers such as 0,5,7") from None


def parse_arguments(arguments=None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    origin = parser.add_mutually_exclusive_group(required=True)
    origin.add_argument("--records", metavar="FILE", help="records of structattn-export")
    origin.add_argument("--path", metavar="FILES", help="checkpoints to translate with, separated by colons")
    parser.add_argument(
        "--sentences", type=int, metavar="N", help="only the first N (default: 3 in a picture, all in a page)"
    )
    parser.add_argument("--ids", type=parse_ids, metavar="I,J,...", help="only these sentences, counted from 0")
    parser.add_argument("--output", required=True, metavar="FILE", help="picture (.png, .svg, .pdf, …) or page (.html)")
    model = parser.add_argument_group("with --path")
    model.add_argument("--data", metavar="DIR", help="data folder from fairseq-preprocess")
    model.add_argument(
        "--user-dir",
        default=PLUGIN,
        metavar="DIR",
        help="user directory of the model (default: fairseq_structattn)",
    )
    model.add_argument(
        "--attention-head",
        metavar="LAYER.HEAD",
        help="attention head of a structattn_transformer's decoder, counted from 0 (default: that of training)",
    )
    model.add_argument("--gen-subset", default="test", metavar="NAME", help="split of the data (default: test)")
    model.add_argument("--beam", type=int, default=5, metavar="N", help="beam size (default: 5)")
    bleu = parser.add_argument_group("sentence BLEU of a page")
    bleu.add_argument(
        "--post-process",
        metavar="NAME",
        help="how tokens become words: sentencepiece, subword_nmt, … (default: one token each)",
    )
    bleu.add_argument("--tokenize", default="none", metavar="NAME", help="tokeniser of sacrebleu (default: none)")
    options = parser.parse_args(arguments)
    if options.sentences is not None and options.sentences < 1:
        parser.error(f"--sentences {options.sentences}: at least one sentence is needed")
    if options.path and not options.data:
        parser.error("--path needs --data: the folder that fairseq-preprocess wrote")
    return options


def is_page(output: str) -> bool:
    return output.lower().endswith((".html", ".htm"))


def records_of(options: argparse.Namespace) -> List[AttentionRecord]:
    """The records to draw, from the file of records or by translating."""
    sentences = options.sentences or (None if is_page(options.output) else SENTENCES_OF_A_PICTURE)
    if options.records:
        return chosen(read_records(options.records), options.ids, sentences)
    return chosen(translated(options, sentences), options.ids, None)


def translated(options: argparse.Namespace, sentences: Optional[int]) -> Iterator[AttentionRecord]:
    """Records of the translations of the requested sentences, or of the first `sentences`."""
    from fairseq.dataclass.configs import GenerationConfig

    from fairseq_structattn.analysis.export_attention import export, load_dataset, load_models

    models, task = load_models(options.path, options.data, options.user_dir, attention_head=options.attention_head)
    dataset = load_dataset(task, options.gen_subset)
    ids = options.ids or range(min(len(dataset), sentences or len(dataset)))
    yield from export(models, task, dataset, ids, search=GenerationConfig(beam=options.beam))


def draw(records: List[AttentionRecord], output: str) -> None:
    """Writes the picture and prints which sentences it shows."""
    from fairseq_structattn.analysis.attention_figures import draw_figure, save_figure, title

    # importing fairseq can set the root logger to DEBUG, and matplotlib then reports on every font of the machine
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    for one in records:
        print(f"{title(one)}: {' -> '.join(' '.join(words) for words in words_of(one))}")
    save_figure(draw_figure(records), output)


def check_options(options: argparse.Namespace) -> None:
    """Refuses options that would only fail after the work."""
    if options.records:
        check_records("--records", options.records)
    check_outputs({"--output": options.output})
    if is_page(options.output):
        from fairseq_structattn.analysis.attention_page import check_words

        check_words(options.post_process, options.tokenize)
    else:
        check_picture("--output", options.output, others=("html",))
    if options.path:
        from fairseq_structattn.analysis.export_attention import check_model

        check_model(options.path, options.data, options.user_dir)


@command
def main(arguments=None) -> None:
    options = parse_arguments(arguments)
    check_options(options)
    records = records_of(options)
    if is_page(options.output):
        from fairseq_structattn.analysis.attention_page import write_page

        write_page(records, options.output, options.post_process, options.tokenize)
    else:
        draw(records, options.output)
    print(f"written: {options.output}")


if __name__ == "__main__":
    main()
