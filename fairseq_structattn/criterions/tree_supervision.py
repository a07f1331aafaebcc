"""Supervision of latent trees over the source by given heads."""

from typing import Optional, Tuple

import torch.nn.functional as F
from torch import Tensor

from fairseq_structattn.distributions.arcs import UNKNOWN_HEAD, ArcDistribution


def tree_supervision_loss(distribution: ArcDistribution, heads: Tensor) -> Tuple[Tensor, Tensor]:
    """−log p of the given heads, in nats, and how many there are.

    Where all heads of a sentence are given, that is log Z − score(tree) under a distribution over trees (Koo et al.,
    "Structured Prediction Models via the Matrix-Tree Theorem", EMNLP 2007, section 4), and the sum of the
    cross entropies of the arcs under a softmax for each word. Where some are, it is the probability of all trees that
    agree with them, together: for a single head h of a word m, −log μ(h → m).

    Args:
        distribution: over the heads of n words, of batch shape ``[batch]``
        heads: integers ``[batch, words]``, 0 for the root, −1 where a head is not known; wider or narrower than n by
            padding

    Returns:
        ``[batch]``, inf where no structure of the distribution has these heads, and ``[batch]``
    """
    heads = F.pad(heads, (0, distribution.max_length - heads.size(1)), value=UNKNOWN_HEAD)
    given = (heads != UNKNOWN_HEAD) & distribution.position_mask
    return -distribution.log_prob_of_heads(heads), given.sum(-1)


def tree_supervision_term(
    distribution: ArcDistribution, heads: Tensor, sentences: Tensor, path: Optional[str]
) -> Tuple[Tensor, Tensor]:
    """The loss of a batch, and over how many words, as :func:`tree_supervision_loss` has them for each sentence.

    Args:
        distribution: over the heads of the words
        heads: ``[batch, words]``
        sentences: numbers of the sentences in their data set ``[batch]``
        path: the file that the heads are from, of a line for each sentence

    Raises:
        ValueError: heads that no structure of the distribution has; the message names file and line
    """
    cost, given = tree_supervision_loss(distribution, heads)
    cost = cost.masked_fill(given == 0, 0)
    for index in cost.isinf().nonzero().flatten().tolist()[:1]:
        line, reason = sentences[index].item() + 1, why_impossible(distribution, heads[index])
        raise ValueError(f"--tree-supervision: {path}, line {line}: {reason}")
    return cost.sum(), given.sum()


def why_impossible(distribution: ArcDistribution, heads: Tensor) -> str:
    """What keeps the heads ``[words]`` of a sentence out of the distribution, in words for its user."""
    arcs = [(head, word) for word, head in enumerate(heads.tolist(), start=1) if head != UNKNOWN_HEAD]
    crossing = _first_crossing(arcs)
    if _in_a_circle(arcs):
        return "its arcs go round in a circle: correct a head, or write -1 for one that is not known"
    roots = [word for head, word in arcs if head == 0]
    if getattr(distribution, "roots", None) == "single" and len(roots) > 1:
        return f"words {' and '.join(map(str, roots))} hang on the root: choose --tree-roots multi, or correct a head"
    hanging = _under_own_descendants(arcs)
    if crossing is not None:
        (head, word), (other_head, other_word) = crossing
        return (
            f"its arcs {head} → {word} and {other_head} → {other_word} cross, which those of a projective tree do not: "
            "choose --source-attention spanning-tree, or write -1 for one of the heads"
        )
    if hanging is not None:
        word, (head, dependent) = hanging
        return (
            f"its arc {head} → {dependent} goes over word {word}, below which both hang, and leaves no head to it in a "
            "projective tree: choose --source-attention spanning-tree, or write -1 for one of the heads"
        )
    return "no tree of the model has these heads"


def _in_a_circle(arcs) -> bool:
    head_of = {word: head for head, word in arcs}
    for word in head_of:
        ancestor = word
        for _ in head_of:
            ancestor = head_of.get(ancestor, 0)
        if ancestor in head_of:
            return True
    return False


def _first_crossing(arcs):
    spans = [(min(arc), max(arc), arc) for arc in arcs]
    for first, last, arc in spans:
        for other_first, other_last, other in spans:
            if first < other_first < last < other_last:
                return arc, other
    return None


def _under_own_descendants(arcs):
    head_of = {word: head for head, word in arcs}
    for head, word in arcs:
        top = word
        while top in head_of:
            top = head_of[top]
        if min(head, word) < top < max(head, word):
            return top, (head, word)
    return None
