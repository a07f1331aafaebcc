"""Exports the attention of a translation model, one record per sentence and translation.

    structattn-export --path checkpoint_best.pt --data bin --output attention.jsonl

exports attention to the best translations, found by beam search as fairseq-generate finds them;

    … --nbest 3 --beam 10 --ids 0,5    to the three best translations of two sentences
    … --forced                         to the references, read by the model
    … --conllu trees.conllu            and the trees of --source-attention

attention_records.py documents the fields of a record. Records are sorted by sentence and rank. The attention of a
translation is computed when the model reads the finished translation; it equals the attention during the search, and
marginals, segments and trees are available, too. Numbers are rounded to 7 decimals. The batch of a sentence has no
influence, except that --max-len-a, as in fairseq, multiplies the length of the longest source sentence of the batch.

Several checkpoints, separated by colons, are an ensemble: weights are averaged as fairseq does, marginals if all models
return them; segments and trees belong to a single model, and are null for an ensemble. Any translation model of fairseq
that returns attention can be exported; only models of fairseq_structattn return more than weights. For a model that
selects the facts of a story (--task structattn_babi) a record has the fact of each step, see fact_records.py.
"""

import argparse
import ast
import glob
import os
import re
from contextlib import closing
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence

import torch

from fairseq_structattn.analysis import PLUGIN
from fairseq_structattn.analysis.attention_records import AttentionRecord, SourceTree, without_end, write_records
from fairseq_structattn.analysis.conllu import with_conllu
from fairseq_structattn.analysis.fact_records import fact_records, selects_facts
from fairseq_structattn.analysis.files import (
    InputError,
    check_folders,
    check_inputs,
    check_outputs,
    command,
    read_lines,
)
from fairseq_structattn.analysis.forced_attention import (
    Attention,
    NoAttention,
    forced_attention,
    rounded,
    segments,
    source_trees,
)

MAX_TOKENS = 12000  # per batch, as in fairseq-generate
# Batches are made of sentences of similar length within a window of so many; records of a window are held in memory.
WINDOW = 256
# Options of fairseq-generate that this tool has, too, with the same defaults.
SEARCH = (
    "beam",
    "nbest",
    "max_len_a",
    "max_len_b",
    "min_len",
    "lenpen",
    "unkpen",
    "unnormalized",
    "match_source_len",
    "no_repeat_ngram_size",
    "prefix_size",
    "temperature",
    "diverse_beam_groups",
    "diverse_beam_strength",
    "diversity_rate",
)


class ExportError(InputError):
    """Nothing can be exported: the reason, and what to do about it."""


class Target(NamedTuple):
    """A target sentence ``[tgt_len]``, ``</s>`` included, and its score where a search found it."""

    tokens: torch.Tensor
    score: Optional[float]


class Found(NamedTuple):
    """The attention of one target sentence, in tensors, since lists of numbers take ten times the memory."""

    target: Target
    attention: Attention


class Sentence(NamedTuple):
    """One source sentence, its reference or None, and its translations, the best first."""

    source: torch.Tensor
    reference: Optional[torch.Tensor]
    tree: Optional[SourceTree]
    found: List[Found]


def load_models(
    path: str,
    data: str,
    user_dir: Optional[str] = None,
    fp16: bool = False,
    cpu: bool = False,
    overrides: Optional[dict] = None,
    attention_head: Optional[str] = None,
):
    """The models of the checkpoints `path`, separated by colons, ready to translate, and their task.

    Args:
        path: of the checkpoints
        data: the folder that fairseq-preprocess wrote
        user_dir: the plugin that the models belong to
        fp16: use half precision
        cpu: do not use a GPU
        overrides: options of the models to change, such as paths that have moved
        attention_head: ``LAYER.HEAD`` of the decoder of a Transformer of this package (default: that of its training)

    Raises:
        ExportError: no such file or folder, a file that is no checkpoint, data of other dictionaries, or models that
            have no heads to choose from
    """
    from fairseq import checkpoint_utils, utils

    check_model(path, data, user_dir)
    utils.import_user_module(argparse.Namespace(user_dir=user_dir))
    overrides = {**(overrides or {}), "data": data}
    if attention_head is not None:
        overrides["attention_head"] = attention_head
    try:
        models, _, task = checkpoint_utils.load_model_ensemble_and_task(
            utils.split_paths(path), arg_overrides=overrides
        )
    except OSError:
        raise
    except Exception as error:  # torch and fairseq raise many types for a file that is no checkpoint
        raise ExportError(_why_not_loaded(path, data, error)) from error
    for model in models:
        if attention_head is not None and not hasattr(getattr(model, "decoder", None), "attending"):
            raise ExportError(
                f"--attention-head {attention_head}: a {type(model).__name__} has no heads to choose from, which a "
                "structattn_transformer has; leave it out"
            )
        model.eval()
        if fp16:
            model.half()
        if torch.cuda.is_available() and not cpu:
            model.cuda()
    return models, task


def check_model(path: str, data: str, user_dir: Optional[str] = None) -> None:
    """Refuses files and folders of :func:`load_models` that do not exist."""
    from fairseq import utils

    for one in utils.split_paths(path):
        if not os.path.exists(one):
            raise ExportError(f"--path {one}: no such checkpoint")
        check_inputs({"--path": one})
    if not os.path.isdir(data):
        raise ExportError(f"--data {data}: no such folder; name the one that fairseq-preprocess wrote")
    if not glob.glob(os.path.join(glob.escape(data), "dict*.txt")):
        raise ExportError(f"--data {data}: no dictionaries in it; name the folder that fairseq-preprocess wrote")
    check_folders({"--user-dir": user_dir})


def _why_not_loaded(path: str, data: str, error: Exception) -> str:
    sizes = re.search(
        r"size mismatch for \S*embed_tokens\.weight: .*?torch\.Size\(\[(\d+),.*?torch\.Size\(\[(\d+),", str(error), re.S
    )
    if sizes:
        return (
            f"--data {data}: its dictionaries are not those of the training, which had {sizes.group(1)} types where "
            f"these have {sizes.group(2)}; name its folder, or binarise with its dictionaries (--srcdict, --tgtdict)"
        )
    reason = " ".join(str(error).split()).split(". ")[0]  # the advice that follows is for programmers
    reason = reason if len(reason) <= 200 else reason[:200] + " …"
    return (
        f"--path {path}: no checkpoint that can be loaded with --data {data} ({type(error).__name__}: {reason}); name "
        "a checkpoint of fairseq-train, the folder of its data and, if it has one, its --user-dir"
    )


def load_dataset(task, subset: str):
    """The data set of a binarised subset.

    Raises:
        ExportError: there is no such subset
    """
    try:
        task.load_dataset(subset)
    except Exception as error:  # each format raises its own type for a missing or broken file
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ExportError(f"--gen-subset {subset}: {reason}; name a subset that fairseq-preprocess wrote") from error
    return task.dataset(subset)


def export(
    models,
    task,
    dataset,
    ids: Optional[Iterable[int]] = None,
    forced: bool = False,
    search=None,
    batch_size: Optional[int] = None,
    max_tokens: Optional[int] = None,
    log_format: Optional[str] = None,
) -> Iterator[AttentionRecord]:
    """The records of a data set, one after the other, sorted by sentence and rank.

    Args:
        models, task: from :func:`load_models`
        dataset: from :func:`load_dataset`
        ids: numbers of the sentences (default: all)
        forced: export the attention of references rather than of translations
        search: fairseq's ``GenerationConfig`` (default: fairseq-generate's defaults)
        batch_size: sentences per batch
        max_tokens: tokens per batch, padding included (default, without `batch_size`: that of fairseq-generate)
        log_format: format of the progress bar: none, simple, tqdm, json (default: tqdm on a terminal, simple elsewhere)

    Raises:
        ExportError: sentences that do not exist, or that are too long for the models; models without attention
    """
    from fairseq.dataclass.configs import GenerationConfig

    search = search or GenerationConfig()
    ids = _checked_ids(range(len(dataset)) if ids is None else ids, len(dataset))
    if selects_facts(models):
        yield from fact_records(models, task, dataset, ids)
        return
    _check_lengths(models, task, dataset, ids, forced)
    generator = None if forced else _build_generator(models, task, search)
    order, waiting = iter(ids), {}
    expected = next(order, None)
    for batch in _progress(_batches(dataset, ids, batch_size, max_tokens), log_format):
        waiting.update(_sentences(models, task, dataset, batch, generator, search))
        while expected in waiting:
            yield from _records(expected, waiting.pop(expected), task, forced)
            expected = next(order, None)


def _checked_ids(ids: Iterable[int], count: int) -> List[int]:
    ids = sorted(set(ids))
    for sentence_id in ids:
        if not 0 <= sentence_id < count:
            raise ExportError(f"--ids {sentence_id}: the subset has the sentences 0 to {count - 1}")
    return ids


def _check_lengths(models, task, dataset, ids: List[int], forced: bool) -> None:
    from fairseq import utils

    limits = utils.resolve_max_positions(task.max_positions(), *[model.max_positions() for model in models])
    for sentence_id in ids:
        sizes = dataset.size(sentence_id)
        sizes = sizes if isinstance(sizes, tuple) else (sizes, 0)
        for side, size, limit in list(zip(("source", "target"), sizes, limits))[: 2 if forced else 1]:
            if size > limit:
                raise ExportError(
                    f"sentence {sentence_id}: its {side} has {size} tokens, </s> included, and the models take "
                    f"{limit}; leave it out (--ids names those wanted) or raise the model's "
                    f"--max-{side}-positions with --model-overrides"
                )


def _build_generator(models, task, search):
    if not 1 <= search.nbest <= search.beam:
        raise ExportError(f"--nbest {search.nbest}: a beam of {search.beam} finds 1 to {search.beam} translations")
    return task.build_generator(models, search)


def _batches(dataset, ids: List[int], batch_size: Optional[int], max_tokens: Optional[int]) -> List[List[int]]:
    """Numbers of sentences, batch by batch; all sentences of a window come before those of the next window."""
    import numpy as np

    if not batch_size and not max_tokens:
        max_tokens = MAX_TOKENS
    longest = max(map(dataset.num_tokens, ids), default=0)
    if max_tokens and longest > max_tokens:
        raise ExportError(f"--max-tokens {max_tokens}: the longest sentence has {longest}; no batch can hold it")
    found = []
    for start in range(0, len(ids), max(WINDOW, batch_size or 0)):
        window = sorted(ids[start : start + max(WINDOW, batch_size or 0)], key=dataset.size)
        batches = dataset.batch_by_size(
            np.array(window, dtype=np.int64), max_tokens=max_tokens, max_sentences=batch_size
        )
        found += [[int(sentence_id) for sentence_id in batch] for batch in batches]
    return found


def _progress(batches: List[List[int]], log_format: Optional[str]) -> Iterator[List[int]]:
    from fairseq.logging import progress_bar

    progress = progress_bar.progress_bar(batches, log_format=log_format, default_log_format="tqdm")
    done = 0
    for batch in progress:
        yield batch
        done += len(batch)
        progress.log({"sentences": done})


def _sentences(models, task, dataset, batch: List[int], generator, search) -> Dict[int, Sentence]:
    sample = dataset.collater([dataset[sentence_id] for sentence_id in batch])
    ids = sample["id"].tolist()
    items = [dataset[sentence_id] for sentence_id in ids]
    sources = _without_padding(sample["net_input"]["src_tokens"], [item["source"] for item in items], task)
    references: Sequence[Any] = [None] * len(ids)
    if sample.get("target") is not None:
        references = _without_padding(sample["target"], [item["target"] for item in items], task)
    if generator is not None:
        targets = _translations(models, task, sample, generator, search)
    elif references[0] is None:
        raise ExportError("--forced: the data has no references; leave it out to export attention to translations")
    else:
        targets = [[Target(reference, None)] for reference in references]
    found = _attend(models, task, sources, targets)
    trees = source_trees(models, task, sources)
    sentences = map(Sentence, sources, references, trees, found)
    return dict(zip(ids, sentences))


def _without_padding(tokens: torch.Tensor, sentences: List[torch.Tensor], task) -> List[torch.Tensor]:
    """The rows of a batch, cut to their lengths; a word of the corpus may have the index of the padding symbol."""
    padding = task.target_dictionary.pad()
    return [
        row[: len(sentence)] if row[-1] == padding else row[len(row) - len(sentence) :]
        for row, sentence in zip(tokens, sentences)
    ]


def _translations(models, task, sample: dict, generator, search) -> List[List[Target]]:
    from fairseq import utils

    if next(models[0].parameters()).is_cuda:
        sample = utils.move_to_cuda(sample)
    prefix = None
    if search.prefix_size:
        if sample.get("target") is None:
            raise ExportError(f"--prefix-size {search.prefix_size}: the data has no references to begin with")
        prefix = sample["target"][:, : search.prefix_size]
    return [
        [Target(hypothesis["tokens"].cpu(), float(hypothesis["score"])) for hypothesis in hypotheses[: search.nbest]]
        for hypotheses in task.inference_step(generator, models, sample, prefix_tokens=prefix)
    ]


def _attend(models, task, sources: List[torch.Tensor], targets: List[List[Target]]) -> List[List[Found]]:
    """One forward pass per rank, so that no batch is larger than the batch of sources."""
    found: List[List[Found]] = [[] for _ in sources]
    for rank in range(max(map(len, targets))):
        rows = [row for row, ranked in enumerate(targets) if len(ranked) > rank]
        ranked = [targets[row][rank] for row in rows]
        score = ranked[0].score is None
        try:
            attention = forced_attention(
                models, task, [sources[row] for row in rows], [one.tokens for one in ranked], score
            )
        except NoAttention:
            raise ExportError(
                "--path: the model has no attention, so there is nothing to export (structattn_rnn_vanilla, and all "
                "with --attention-distribution none, have none)"
            ) from None
        for row, target, one in zip(rows, ranked, attention):
            found[row].append(Found(target, one))
    return found


def _records(sentence_id: int, sentence: Sentence, task, forced: bool) -> Iterator[AttentionRecord]:
    reference = sentence.reference
    for rank, (target, attention) in enumerate(sentence.found):
        weights, marginals, marks, heads, _ = attention
        yield AttentionRecord(
            id=sentence_id,
            rank=rank,
            score=attention.score if target.score is None else target.score,
            forced=forced,
            source=_words(sentence.source, task.source_dictionary),
            target=_words(target.tokens, task.target_dictionary),
            reference=None if reference is None else without_end(_words(reference, task.target_dictionary)),
            weights=rounded(weights),
            marginals=None if marginals is None else rounded(marginals),
            segments=None if marks is None else segments(marks),
            trees=None if heads is None else heads.tolist(),
            tree=sentence.tree,
        )


def _words(tokens: torch.Tensor, dictionary) -> List[str]:
    return [dictionary[token] for token in tokens.tolist()]


def read_tokens(field: str, path: str, dataset, ids: Iterable[int]) -> List[List[str]]:
    """The tokens of a text file, line n for sentence n.

    Args:
        field: ``"source"`` or ``"reference"``
        path: one sentence a line, tokens separated by spaces
        dataset: the data set that the file must fit, in the number of lines and in the tokens of each source
        ids: of the sentences whose source is compared

    Raises:
        InputError: another number of lines, or of source tokens
    """
    lines = [line.split() for line in read_lines(path)]
    if len(lines) != len(dataset):
        raise ExportError(f"--{field} {path}: {len(lines)} lines for the {len(dataset)} sentences of the subset")
    for sentence_id in ids if field == "source" else ():
        binarised = len(dataset[sentence_id]["source"]) - 1
        if len(lines[sentence_id]) != binarised:
            raise ExportError(
                f"--source {path}, line {sentence_id + 1}: {len(lines[sentence_id])} tokens, but the binarised "
                f"sentence has {binarised}; give the file that fairseq-preprocess read"
            )
    return lines


def with_text(records: Iterable[AttentionRecord], field: str, lines: List[List[str]]) -> Iterator[AttentionRecord]:
    """Records whose tokens are those of :func:`read_tokens`, in place of the symbols of the dictionary."""
    for record in records:
        tokens = lines[record.id]
        setattr(record, field, tokens + record.source[-1:] if field == "source" else tokens)
        yield record


def parse_ids(text: str) -> List[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not a list of sentence numbers such as 0,5,7") from None


def positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 1 on")
    return int(text)


def dictionary(text: str) -> dict:
    try:
        found = ast.literal_eval(text)
    except (SyntaxError, ValueError):
        found = None
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError(f"{text} is not a dictionary such as \"{{'encoder_embed_path': None}}\"")
    return found


def add_search_options(parser: argparse.ArgumentParser) -> None:
    """The options of beam search, with the meaning and defaults that they have in fairseq-generate."""
    from fairseq.dataclass.configs import GenerationConfig

    group = parser.add_argument_group("beam search, as in fairseq-generate")
    for name in SEARCH:
        field = GenerationConfig.__dataclass_fields__[name]
        flag = "--" + name.replace("_", "-")
        if field.type is bool:
            group.add_argument(flag, action="store_true", help=field.metadata["help"])
        else:
            description = f"{field.metadata['help']} (default: {field.default})"
            group.add_argument(flag, type=field.type, default=field.default, metavar="N", help=description)


def search_of(options: argparse.Namespace):
    """fairseq's configuration of the search, from the options of :func:`add_search_options`."""
    from fairseq.dataclass.configs import GenerationConfig

    return GenerationConfig(**{name: getattr(options, name) for name in SEARCH})


def parse_arguments(arguments=None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--path", required=True, metavar="FILES", help="checkpoints, separated by colons")
    parser.add_argument("--data", required=True, metavar="DIR", help="data folder from fairseq-preprocess")
    parser.add_argument("--gen-subset", default="test", metavar="NAME", help="split of the data (default: test)")
    parser.add_argument("--output", required=True, metavar="FILE", help="file for the records, one JSON object a line")
    parser.add_argument("--conllu", metavar="FILE", help="file for the trees over the source, in CoNLL-U")
    parser.add_argument(
        "--attention-head",
        metavar="LAYER.HEAD",
        help="attention head of a structattn_transformer's decoder, counted from 0 (default: that of training)",
    )
    parser.add_argument("--forced", action="store_true", help="attention of the references in place of translations")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--sentences", type=positive, metavar="N", help="only the first N sentences (default: all)")
    which.add_argument("--ids", type=parse_ids, metavar="I,J,...", help="only these sentences, counted from 0")
    parser.add_argument("--source", metavar="FILE", help="source tokens before preprocessing, without <unk>")
    parser.add_argument("--reference", metavar="FILE", help="references before preprocessing, one a line")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--batch-size", type=positive, metavar="N", help="sentences in a batch")
    size.add_argument("--max-tokens", type=positive, metavar="N", help=f"tokens in a batch (default: {MAX_TOKENS})")
    parser.add_argument("--fp16", action="store_true", help="run the models in half precision")
    parser.add_argument("--cpu", action="store_true", help="do not use a GPU")
    parser.add_argument(
        "--model-overrides", type=dictionary, metavar="DICT", help="options of the models to change, as in fairseq"
    )
    parser.add_argument(
        "--user-dir",
        default=PLUGIN,
        metavar="DIR",
        help="user directory of the model (default: fairseq_structattn)",
    )
    parser.add_argument(
        "--log-format",
        choices=("none", "simple", "tqdm", "json"),
        help="format of the progress (default: tqdm on a terminal)",
    )
    add_search_options(parser)
    return parser.parse_args(arguments)


def records_of(options: argparse.Namespace) -> Iterator[AttentionRecord]:
    """The records that the options of the command line ask for."""
    models, task = load_models(
        options.path,
        options.data,
        options.user_dir,
        options.fp16,
        options.cpu,
        options.model_overrides,
        options.attention_head,
    )
    source_attention = getattr(getattr(models[0], "encoder", None), "source_attn", None)
    if options.conllu and (len(models) > 1 or source_attention is None):
        raise ExportError(
            f"--conllu {options.conllu}: needs a single model that was trained with --source-attention projective-tree "
            "or spanning-tree, or has such heads in its encoder; leave the option out"
        )
    dataset = load_dataset(task, options.gen_subset)
    ids = options.ids
    if ids is None:
        ids = range(min(options.sentences or len(dataset), len(dataset)))
    ids = _checked_ids(ids, len(dataset))
    texts = {name: getattr(options, name) for name in ("source", "reference") if getattr(options, name)}
    for name, path in texts.items():
        if selects_facts(models):
            raise ExportError(f"--{name} {path}: of translations only; the facts of stories are told as they are")
    texts = {field: read_tokens(field, path, dataset, ids) for field, path in texts.items()}
    search, sizes = search_of(options), (options.batch_size, options.max_tokens)
    records = export(models, task, dataset, ids, options.forced, search, *sizes, options.log_format)
    for field, lines in texts.items():
        records = with_text(records, field, lines)
    return records


@command
def main(arguments=None) -> None:
    options = parse_arguments(arguments)
    check_model(options.path, options.data, options.user_dir)
    check_inputs({"--source": options.source, "--reference": options.reference})
    check_outputs({"--output": options.output, "--conllu": options.conllu})
    records = records_of(options)
    if options.conllu:
        records = with_conllu(records, options.conllu)
    with closing(records):  # type: ignore[type-var]  # an error in the records removes the unfinished file of trees
        count = write_records(options.output, records)
    print(f"exported: {options.output}, {count} records")


if __name__ == "__main__":
    main()
