"""Explains to the user why given heads belong to no structure of a model."""

from torch import Tensor

from fairseq_structattn.distributions.arcs import NO_HEAD, ArcDistribution

_CROSSING = "--source-attention spanning-tree (in a Transformer, spanning-tree heads)"


def why_impossible(distribution: ArcDistribution, heads: Tensor) -> str:
    """The reason, for the user, why no structure of the distribution has the heads ``[words]`` of a sentence."""
    arcs = [(head, word) for word, head in enumerate(heads.tolist(), start=1) if head != NO_HEAD]
    crossing = _first_crossing(arcs)
    if _in_a_circle(arcs):
        return "its arcs go round in a circle: correct a head, or write -1 for one that is not known"
    roots = [word for head, word in arcs if head == 0]
    if getattr(distribution, "roots", None) == "single" and len(roots) > 1:
        words = " and ".join(map(str, roots))
        return f"words {words} are attached to the root: choose --tree-roots multi, or correct a head"
    hanging = _under_own_descendants(arcs)
    if crossing is not None:
        (head, word), (other_head, other_word) = crossing
        return (
            f"its arcs {head} → {word} and {other_head} → {other_word} cross, which those of a projective tree do not: "
            f"choose {_CROSSING}, or write -1 for one of the heads"
        )
    if hanging is not None:
        word, (head, dependent) = hanging
        return (
            f"its arc {head} → {dependent} goes over word {word}, below which both hang, and leaves no head to it in a "
            f"projective tree: choose {_CROSSING}, or write -1 for one of the heads"
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
