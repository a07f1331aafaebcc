"""``--decoder-graphs``: the loop over target steps of a training step is captured, and replayed, as CUDA graphs.

A loop of forty small kernels for each target word, and as many in the backward pass, is bound by the time that Python
takes to launch them. A graph has one shape, so batches are padded to a few: the numbers of sentences, source positions
and target steps to multiples of :data:`MULTIPLE`, with steps and sentences whose results are cut off again.
"""

from typing import Callable, List, NamedTuple, Optional, Sequence, Tuple

import torch.nn.functional as F
from torch import Tensor

from fairseq_structattn.modules.attention import AttentionSource
from fairseq_structattn.modules.captured import CapturedFunctions, CudaGraphs
from fairseq_structattn.modules.recurrent import State

MULTIPLE = 8


class Looped(NamedTuple):
    """The results of the loop: features ``[tgt_len, batch, output_dim]``; with attention, also weights and scores
    ``[batch, tgt_len, src_len]`` and queries ``[batch, tgt_len, hidden]``."""

    features: Tensor
    weights: Optional[Tensor] = None
    scores: Optional[Tensor] = None
    queries: Optional[Tensor] = None


# Embeddings of the previous words, initial state, features fed to the first step, and source → results.
Loop = Callable[[Tensor, State, Tensor, AttentionSource], Looped]


class DecoderGraphs:
    """Runs a loop over target steps, from graphs where its shape recurs.

    Args:
        capture: see :class:`~fairseq_structattn.modules.captured.CapturedFunctions`
    """

    def __init__(self, capture: Optional[CudaGraphs] = None):
        self._captured = CapturedFunctions(capture)

    def takes(self, embedded: Tensor) -> bool:
        """Whether a loop over these embeddings can be captured: on a GPU."""
        return self._captured.capture.takes(embedded)

    def __call__(
        self,
        loop: Loop,
        parameters: Sequence[Tensor],
        embedded: Tensor,
        state: State,
        feed: Tensor,
        source: AttentionSource,
    ) -> Looped:
        """The results of ``loop(embedded, state, feed, source)``. They have to be differentiated before the next call.

        Args:
            loop: it reads no value of a tensor
            parameters: those that it reads
            embedded: ``[tgt_len, batch, embed_dim]``
            state: tensors ``[layers, batch, hidden]``
            feed: ``[batch, feed_dim]``
            source: source side of attention
        """
        steps, batch, positions = embedded.size(0), embedded.size(1), source.values.size(1)
        padded = _padded_source(source, round_up(batch), round_up(positions))
        given = [part for part in padded if part is not None]
        there = tuple(part is not None for part in padded)

        def function(embedded: Tensor, feed: Tensor, *others: Tensor) -> Tuple[Tensor, ...]:
            parts = iter(others[len(state) :])
            source = AttentionSource._make(next(parts) if is_there else None for is_there in there)
            return tuple(part for part in loop(embedded, others[: len(state)], feed, source) if part is not None)

        tensors: List[Tensor] = [_pad(embedded, round_up(steps), round_up(batch)), _pad(feed, round_up(batch))]
        tensors += [_pad(part, part.size(0), round_up(batch)) for part in state]
        features, *attended = self._captured(function, tensors + given, parameters, there)
        if not attended:
            return Looped(features[:steps, :batch])
        weights, scores, queries = (part[:batch, :steps] for part in attended)
        return Looped(features[:steps, :batch], weights[..., :positions], scores[..., :positions], queries)


def round_up(size: int) -> int:
    """The next multiple of :data:`MULTIPLE`."""
    return -(-size // MULTIPLE) * MULTIPLE


def _padded_source(source: AttentionSource, batch: int, positions: int) -> AttentionSource:
    """Sentences and positions more, at the end. A sentence that is added has one position, whose vectors
    are 0."""
    coverage, couplings = source.coverage, source.couplings
    return AttentionSource(
        keys=_pad(source.keys, batch, positions),
        values=_pad(source.values, batch, positions),
        lengths=F.pad(source.lengths, (0, batch - source.lengths.size(0)), value=1),
        arcs=None if source.arcs is None else _pad(source.arcs, batch, positions, positions - 1),
        coverage=None if coverage is None else _pad(coverage, batch, positions),
        couplings=None if couplings is None else _pad(couplings, batch, couplings.size(1), positions - 1),
    )


def _pad(tensor: Tensor, *sizes: int) -> Tensor:
    """The first dimensions get `sizes`, by zeros at the end."""
    more: List[int] = []
    for dimension in reversed(range(tensor.dim())):
        more += [0, sizes[dimension] - tensor.size(dimension) if dimension < len(sizes) else 0]
    return F.pad(tensor, more) if any(more) else tensor
