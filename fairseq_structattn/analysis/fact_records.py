"""Records of models that select facts of a story (``--task structattn_babi``), in the format of attention records.

The source tokens are the facts, the target has the most likely fact of each step, and the reference the supporting
facts. ``question`` has the question and the answer that the model gives.
"""

from typing import Iterable, Iterator, List, Sequence

import torch

from fairseq_structattn.analysis.attention_records import AttentionRecord
from fairseq_structattn.analysis.files import InputError
from fairseq_structattn.analysis.forced_attention import rounded
from fairseq_structattn.modules.fact_selection import NO_FACT

QUESTIONS_OF_A_BATCH = 100


def selects_facts(models: Sequence) -> bool:
    """Whether these models select facts."""
    return hasattr(models[0], "selection")


@torch.no_grad()
def fact_records(models: Sequence, task, dataset, ids: List[int]) -> Iterator[AttentionRecord]:
    """The records of the questions `ids`, one after the other.

    Args:
        models: a single one, in evaluation mode
        task, dataset: of the questions

    Raises:
        InputError: several models
    """
    if len(models) > 1:
        raise InputError(f"--path names {len(models)} models; facts are exported for one")
    for start in range(0, len(ids), QUESTIONS_OF_A_BATCH):
        yield from _records(models[0], task, dataset, ids[start : start + QUESTIONS_OF_A_BATCH])


def _records(model, task, dataset, ids: List[int]) -> Iterable[AttentionRecord]:
    device = next(model.parameters()).device
    batch = dataset.collater(ids)
    output = model(**{name: tensor.to(device) for name, tensor in batch["net_input"].items()})
    scores, answers = model.get_normalized_probs(output, log_probs=True).max(-1)
    selection = output[1]
    for place, number in enumerate(ids):
        known = dataset.texts[number]
        length = len(known.story)
        facts = [f"{fact}." for fact in known.story]
        selected = [fact for fact in selection.facts[place].tolist() if fact != NO_FACT]
        supporting = [fact for fact in batch["supporting"][place].tolist() if fact >= 0]
        yield AttentionRecord(
            id=number,
            rank=0,
            score=float(scores[place]),
            forced=False,
            source=facts,
            target=[facts[fact] for fact in selected],
            weights=rounded(selection.weights[place, : len(selected), :length]),
            reference=[facts[fact] for fact in supporting],
            marginals=rounded(selection.distribution.marginals[place, : len(selected), :length]),
            segments=[[(fact, fact + 1)] for fact in selected],
            question=_told(known, task.target_dictionary[answers[place]]),
        )


def _told(known, answer: str) -> str:
    right = "" if answer == known.answer else f" (right: {known.answer})"
    return f"{known.question}? {answer}{right}"
