"""Attention records of a subset that checkpoints translate, one sentence after the other.

It works with every fairseq model whose decoder returns its attention. The records have weights alone: no marginals,
segments or trees.
"""

import argparse
import os
import sys
from typing import Iterable, Iterator, List, Optional

import torch

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from attention_records import AttentionRecord  # noqa: E402

BEAM = 5


class TranslationError(Exception):
    """Why there is no attention, and what to do about it."""


def translated(
    paths: List[str], data: str, user_dir: str, subset: str, ids: Optional[Iterable[int]] = None, beam: int = BEAM
) -> Iterator[AttentionRecord]:
    """The best translation of each sentence, with its attention.

    Args:
        paths: checkpoints, an ensemble
        data: what fairseq-preprocess wrote
        user_dir: the plugin of the models
        subset: such as ``test``
        ids: numbers of sentences in the subset; all of them without it
        beam: size of the beam

    Raises:
        TranslationError: a file is missing, or the models have no attention
    """
    models, task = load_models(paths, data, user_dir)
    for batch in load_sentences(task, subset, ids):
        yield from translate(models, task, batch, beam)


def load_models(paths: List[str], data: str, user_dir: Optional[str] = None):
    """The models of the checkpoints, ready to translate, and their task."""
    from fairseq import checkpoint_utils, utils

    for path in paths:
        if not os.path.isfile(path):
            raise TranslationError(f"--path {path}: no such checkpoint")
    if not os.path.isdir(data):
        raise TranslationError(f"--data {data}: no such folder; name the one that fairseq-preprocess wrote")
    utils.import_user_module(argparse.Namespace(user_dir=user_dir))
    models, _, task = checkpoint_utils.load_model_ensemble_and_task(paths, arg_overrides={"data": data})
    for model in models:
        model.eval()
        if torch.cuda.is_available():
            model.cuda()
    return models, task


def load_sentences(task, subset: str, ids: Optional[Iterable[int]] = None) -> Iterator[dict]:
    """Sentences of a subset by their number in the corpus, each a batch of its own.

    Alone in its batch a sentence has no padding: some models, fairseq's `lstm` among them, return the attention of
    padded sentences in an order that differs from that of the source tokens.
    """
    try:
        task.load_dataset(subset)
    except FileNotFoundError as error:
        raise TranslationError(f"--gen-subset {subset}: {error}") from None
    dataset = task.dataset(subset)
    for sentence_id in range(len(dataset)) if ids is None else ids:
        if not 0 <= sentence_id < len(dataset):
            raise TranslationError(f"--ids {sentence_id}: {subset} has the sentences 0 to {len(dataset) - 1}")
        yield dataset.collater([dataset[sentence_id]])


def translate(models, task, batch: dict, beam: int = BEAM) -> List[AttentionRecord]:
    """The best hypothesis of every sentence of a batch, with its attention, in the order of the batch."""
    from fairseq import utils
    from fairseq.dataclass.configs import GenerationConfig

    generator = task.build_generator(models, GenerationConfig(beam=beam))
    if torch.cuda.is_available():
        batch = utils.move_to_cuda(batch)
    hypotheses = task.inference_step(generator, models, batch)
    references = batch["target"] if batch.get("target") is not None else [None] * len(hypotheses)
    return [
        as_record(int(sentence_id), source_tokens, reference, nbest[0], task)
        for sentence_id, source_tokens, reference, nbest in zip(
            batch["id"], batch["net_input"]["src_tokens"], references, hypotheses
        )
    ]


def as_record(sentence_id: int, source_tokens, reference, hypothesis: dict, task) -> AttentionRecord:
    attention = hypothesis["attention"]
    if attention is None or attention.numel() == 0:
        raise TranslationError(
            "the model returns no attention, so there is nothing to draw; models without attention (such as "
            "structattn_rnn_vanilla, or --attention-distribution none) have none"
        )
    real = source_tokens.ne(task.source_dictionary.pad())
    target = task.target_dictionary
    if reference is not None:
        ends = (target.pad(), target.eos())
        reference = [target[token] for token in reference.tolist() if token not in ends]
    return AttentionRecord(
        id=sentence_id,
        rank=0,
        score=float(hypothesis["score"]),
        forced=False,
        source=[task.source_dictionary[token] for token in source_tokens[real].tolist()],
        target=[target[token] for token in hypothesis["tokens"].tolist()],
        weights=attention[real].t().float().cpu().tolist(),
        reference=reference,
    )
