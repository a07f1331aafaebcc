"""Given trees of a whole data set: checking and counting them."""

import logging
from typing import Optional

import numpy as np

from fairseq_structattn.criterions.impossible_heads import why_impossible
from fairseq_structattn.distributions import ProjectiveTree
from fairseq_structattn.distributions.arcs import NO_HEAD, ArcDistribution
from fairseq_structattn.distributions.trees import DependencyTree
from fairseq_structattn.tasks.source_heads import SourceHeads, WithSourceHeads

logger = logging.getLogger(__name__)

# Words that are checked together.
CHUNK = 1 << 20


def check_trees(data, distribution: ArcDistribution) -> None:
    """Checks the heads of a data set, and logs how many there are.

    Args:
        data: a data set, or a wrapper of it; nothing is logged for one without heads
        distribution: the model's kind of distribution, over the heads of any sentences

    Raises:
        ValueError: heads that the model cannot have; the message names the line
    """
    while not isinstance(data, WithSourceHeads):
        if not hasattr(data, "dataset"):
            return
        data = data.dataset
    check_heads(data.heads, distribution)


def check_heads(heads: SourceHeads, distribution: ArcDistribution) -> None:
    """Checks given heads, and logs how many there are; for arguments and errors see :func:`check_trees`."""
    if isinstance(distribution, DependencyTree):
        projective = isinstance(distribution, ProjectiveTree)
        wrong = first_impossible(heads.flat, heads.starts, projective, distribution.roots == "single")
        if wrong is not None:
            reason = why_impossible(distribution, heads[wrong])
            raise ValueError(f"--tree-supervision: {heads.path}, line {wrong + 1}: {reason}")
    known = np.diff(np.append(0, np.cumsum(heads.flat != NO_HEAD))[heads.starts])
    log = logger.info if known.any() else logger.warning
    log(
        f"--tree-supervision: {heads.path}: heads of {known.sum()} of {len(heads.flat)} words, "
        f"in {np.count_nonzero(known)} of {len(heads)} sentences"
    )


def first_impossible(heads: np.ndarray, starts: np.ndarray, projective: bool, single_root: bool) -> Optional[int]:
    """The first sentence whose given heads belong to no dependency tree, whatever the unknown ones are; None where
    there is no such sentence. Takes O(N log n) for N words in sentences of at most n.

    Args:
        heads: of the words of all sentences, concatenated; 0 for the root, −1 for an unknown head, ``[words]``
        starts: index of the first word of each sentence, and the number of all words, ``[sentences + 1]``
        projective: arcs must not cross
        single_root: at most one word has the root as head
    """
    begin = 0
    while begin < len(starts) - 1:
        end = max(begin + 1, int(np.searchsorted(starts, starts[begin] + CHUNK, side="right")) - 1)
        found = _first_of_chunk(
            heads[starts[begin] : starts[end]], starts[begin : end + 1] - starts[begin], projective, single_root
        )
        if found is not None:
            return begin + found
        begin = end
    return None


def _first_of_chunk(heads: np.ndarray, starts: np.ndarray, projective: bool, single_root: bool) -> Optional[int]:
    words = np.diff(starts)
    sentences = np.repeat(np.arange(len(words)), words)
    # Nodes of all sentences in one row: root, words, root, words …
    roots = starts[:-1] + np.arange(len(words))
    nodes = np.arange(len(heads)) + sentences + 1
    parents = np.arange(len(heads) + len(words))
    known = heads != NO_HEAD
    parents[nodes[known]] = roots[sentences[known]] + heads[known]
    tops = _tops(parents, int(words.max(initial=0)))
    impossible = parents[tops[nodes]] != tops[nodes]
    if projective:
        left, right = np.minimum(nodes, parents[nodes]), np.maximum(nodes, parents[nodes])
        # A top word under an arc between its own descendants can have no head: the arc from any head would cross it.
        impossible |= (left < tops[nodes]) & (tops[nodes] < right)
        impossible |= _crossed(left, right, len(parents))
    wrong = np.bincount(sentences[impossible], minlength=len(words)) > 0
    if single_root:
        wrong |= np.bincount(sentences[heads == 0], minlength=len(words)) > 1
    return int(wrong.argmax()) if wrong.any() else None


def _tops(parents: np.ndarray, depth: int) -> np.ndarray:
    """The last node of the chain of parents of each node, at most `depth` steps away: a node that is its own parent,
    unless the chain is a cycle."""
    for _ in range(depth.bit_length()):
        parents = parents[parents]
    return parents


def _crossed(left: np.ndarray, right: np.ndarray, nodes: int) -> np.ndarray:
    """Whether the arc from left to right is crossed by an arc that starts inside and ends to its right.

    The largest end of the arcs that start between left and right must not exceed right. The maximum over this range is
    the maximum over two overlapping ranges, whose size is a power of two.
    """
    farthest = np.arange(nodes)
    np.maximum.at(farthest, left, right)
    crossed = np.zeros(len(left), dtype=bool)
    # 2^(levels - 1) <= nodes between < 2^levels
    levels = np.frexp(np.maximum(right - left - 1, 0))[1]
    for level in range(1, int(levels.max(initial=0)) + 1):
        arcs = np.flatnonzero(levels == level)
        width = 1 << (level - 1)
        ends = right[arcs]
        crossed[arcs] = np.maximum(farthest[left[arcs] + 1], farthest[ends - width]) > ends
        farthest = np.maximum(farthest[:-width], farthest[width:])
    return crossed
