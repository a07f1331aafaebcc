"""Attention of models that read given target sentences: teacher forcing, one pass, all target steps.

A model whose decoder takes ``return_posterior=True``, like those of fairseq_structattn, also returns the distribution
behind its weights. Other models of fairseq return weights only. They read each sentence in a batch of its own, because
some, such as fairseq's ``lstm``, return the attention of padded sentences in another order than that of the source
tokens.
"""

import functools
import inspect
import math
from typing import List, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from fairseq_structattn.analysis.attention_records import SourceTree
from fairseq_structattn.distributions.arcs import ArcDistribution
from fairseq_structattn.modules import StructuredAttention

DECIMALS = 7  # the precision of a probability in float32


# Sentences are sequences of tokens without padding. A token may still have the index of the padding symbol, if the
# corpus has the word <pad>. Models take this token for padding: they do not attend to it, and at the beginning of a
# sentence it shifts the positions of their distributions. Records keep the place of every token.


class NoAttention(Exception):
    """None of the models has attention."""


class Attention(NamedTuple):
    """The attention of one target sentence.

    Attributes:
        weights: ``[tgt_len, src_len]``
        marginals: ``[tgt_len, src_len]``, None if the model does not return its distribution
        marks: indicator of the most likely selection ``[tgt_len, src_len]``; None if the distribution has no segments
        heads: of the source words in the most likely tree of each target step ``[tgt_len, words]``; None without trees
        log_probs: of the target tokens ``[tgt_len]``; None unless requested
    """

    weights: Tensor
    marginals: Optional[Tensor] = None
    marks: Optional[Tensor] = None
    heads: Optional[Tensor] = None
    log_probs: Optional[Tensor] = None

    @property
    def score(self) -> float:
        """The mean log-probability of the target tokens.

        Raises:
            ValueError: log-probabilities were not requested
        """
        if self.log_probs is None:
            raise ValueError("forced_attention returns log-probabilities only with score=True")
        return float(self.log_probs.mean())


# What a model returns for a target sentence: log-probabilities, if requested, and its attention, if it has any.
Reading = Tuple[Optional[Tensor], Optional[Attention]]


@torch.no_grad()
def forced_attention(
    models: Sequence, task, sources: List[Tensor], targets: List[Tensor], score: bool = False
) -> List[Attention]:
    """Attention of an ensemble over `sources` when it reads `targets`.

    The weights of several models are averaged as in fairseq's generator: over all models, with zeros for a model
    without attention. Marginals are averaged if all models return them. The most likely structures of several models
    have no average: segments and trees are None for an ensemble.

    Args:
        models: in evaluation mode
        task: with their dictionaries
        sources, targets: sequences of tokens, without padding, ``</s>`` last
        score: whether to return log-probabilities

    Raises:
        NoAttention: none of the models returns attention
    """
    by_model = [_of_model(model, task, sources, targets, score) for model in models]
    return [_average(found) for found in zip(*by_model)]


@torch.no_grad()
def source_trees(models: Sequence, task, sources: List[Tensor]) -> List[Optional[SourceTree]]:
    """The dependency trees that ``--source-attention`` finds over each source sentence; None without it, for binary
    trees, or for several models."""
    encoder = getattr(models[0], "encoder", None)
    if len(models) > 1 or encoder is None or getattr(encoder, "source_attn", None) is None:
        return [None] * len(sources)
    heads = encoder.source_attention(_collate(sources, task.source_dictionary, models[0])).distribution
    if not isinstance(heads, ArcDistribution):
        return [None] * len(sources)
    found: List[Optional[SourceTree]] = []
    for best, marginals, source in zip(heads.argmax, heads.marginals, sources):
        best, marginals = (_arcs_at_words(arcs, source, task.source_dictionary) for arcs in (best, marginals))
        found.append(SourceTree(best.argmax(-2).tolist(), rounded(marginals)))
    return found


def segments(marks: Tensor) -> List[List[Tuple[int, int]]]:
    """The runs ``[start, end)`` of ones in each row of ``[tgt_len, src_len]``."""
    edges = torch.diff(pad(marks.int(), (1, 1)))
    return [list(zip(row.eq(1).nonzero().flatten().tolist(), row.eq(-1).nonzero().flatten().tolist())) for row in edges]


def rounded(values: Tensor) -> List:
    """Nested lists of rounded numbers, which are short in JSON."""
    return values.double().round(decimals=DECIMALS).tolist()


def gives_posterior(model) -> bool:
    """Whether the decoder of a model can return the distribution behind its weights."""
    forward = getattr(getattr(model, "decoder", None), "forward", None)
    return forward is not None and "return_posterior" in inspect.signature(forward).parameters


def _of_model(model, task, sources: List[Tensor], targets: List[Tensor], score: bool) -> List[Reading]:
    if gives_posterior(model):
        return _with_posterior(model, task, sources, targets, score)
    return [_weights_only(model, task, *pair, score) for pair in zip(sources, targets)]


def _with_posterior(model, task, sources: List[Tensor], targets: List[Tensor], score: bool) -> List[Reading]:
    sample = _sample(model, task, sources, targets)
    output = model(**sample["net_input"], features_only=not score, return_posterior=True)
    log_probs = _log_probs(model, output, sample, targets, score)
    weights, posterior = output[1]["attn"][0], output[1]["posterior"]
    if posterior is None:
        return [(one, None) for one in log_probs]
    marginals = StructuredAttention.position_marginals(posterior)
    selected = posterior.selected_positions(posterior.argmax) if posterior.selects_segments else None
    parsed = posterior.argmax if posterior.needs_arcs else None
    found = []
    for row, (source, target) in enumerate(zip(sources, targets)):
        steps, dictionary = len(target), task.source_dictionary
        marks = None if selected is None else _at_tokens(selected[row, :steps], source, dictionary)
        heads = None if parsed is None else _arcs_at_words(parsed[row, :steps], source, dictionary).argmax(-2)
        own_weights = weights[row, :steps, -len(source) :].float()  # sentences are padded on the left
        own_marginals = _at_tokens(marginals[row, :steps], source, dictionary)
        found.append(_on_cpu(Attention(own_weights, own_marginals, marks, heads)))
    return list(zip(log_probs, found))


def _weights_only(model, task, source: Tensor, target: Tensor, score: bool) -> Reading:
    sample = _sample(model, task, [source], [target])
    output = model(**sample["net_input"])
    weights = output[1].get("attn") if isinstance(output[1], dict) else output[1]
    weights = weights[0] if isinstance(weights, (list, tuple)) and weights else weights
    (log_probs,) = _log_probs(model, output, sample, [target], score)
    return log_probs, _on_cpu(Attention(weights[0].float())) if torch.is_tensor(weights) else None


def _sample(model, task, sources: List[Tensor], targets: List[Tensor]) -> dict:
    """A batch as the translation task makes it."""
    dictionary = task.target_dictionary
    net_input = {
        "src_tokens": _collate(sources, task.source_dictionary, model),
        "src_lengths": torch.tensor([len(source) for source in sources], device=_device(model)),
        "prev_output_tokens": _collate([target.roll(1) for target in targets], dictionary, model, left_pad=False),
    }
    return {"net_input": net_input, "target": _collate(targets, dictionary, model, left_pad=False)}


def _collate(sentences: List[Tensor], dictionary, model, left_pad: bool = True) -> Tensor:
    from fairseq.data.data_utils import collate_tokens

    return collate_tokens(sentences, dictionary.pad(), left_pad=left_pad).long().to(_device(model))


def _device(model) -> torch.device:
    return next(model.parameters()).device


def _log_probs(model, output, sample: dict, targets: List[Tensor], score: bool) -> List[Optional[Tensor]]:
    if not score:
        return [None] * len(targets)
    scores = model.get_normalized_probs(output, log_probs=True, sample=sample)
    of_target = scores.gather(-1, sample["target"].unsqueeze(-1)).squeeze(-1)
    return [row[: len(target)] for row, target in zip(of_target.float().cpu(), targets)]


def _padding_symbols_first(source: Tensor, dictionary) -> int:
    """Number of tokens at the beginning of a sentence that a model takes for padding."""
    return int(source.ne(dictionary.pad()).cumsum(0).eq(0).sum())


def _at_tokens(values: Tensor, source: Tensor, dictionary) -> Tensor:
    """``[..., len(source)]`` of ``[..., n]`` at the positions of a model."""
    first = _padding_symbols_first(source, dictionary)
    return pad(values[..., : len(source) - first], (first, 0))


def _arcs_at_words(arcs: Tensor, source: Tensor, dictionary) -> Tensor:
    """``[..., words+1, words]`` of arcs ``[..., n+1, n]`` at the positions of a model, ``</s>`` left out."""
    first = _padding_symbols_first(source, dictionary)
    words = len(source) - 1 - first
    root, others = pad(arcs[..., :1, :words], (first, 0)), arcs[..., 1 : words + 1, :words]
    return torch.cat((root, pad(others, (first, 0, first, 0))), dim=-2)


def _on_cpu(attention: Attention) -> Attention:
    return Attention._make(None if part is None else part.cpu() for part in attention)


def _average(readings: Tuple[Reading, ...]) -> Attention:
    models = len(readings)
    log_probs = [one for one, _ in readings if one is not None]
    found = [attention for _, attention in readings if attention is not None]
    if not found:
        raise NoAttention
    mean_log_probs = torch.logsumexp(torch.stack(log_probs), 0) - math.log(models) if log_probs else None
    if models == 1:
        return found[0]._replace(log_probs=mean_log_probs)
    marginals = [attention.marginals for attention in found if attention.marginals is not None]
    return Attention(
        _sum([attention.weights for attention in found]) / models,
        _sum(marginals) / models if len(marginals) == models else None,
        log_probs=mean_log_probs,
    )


def _sum(tensors: List[Tensor]) -> Tensor:
    return functools.reduce(torch.add, tensors)
