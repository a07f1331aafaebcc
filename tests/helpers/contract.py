"""Every distribution as a case of one template, and what all of its quantities are by listing structures exactly.

A new distribution comes under the template by an entry in :data:`CASES`.
"""

import itertools
import math
from fractions import Fraction
from typing import Callable, Dict, List, NamedTuple, Sequence, Tuple

import torch
from enumeration_projective import is_projective_tree
from enumeration_spanning import all_trees

from fairseq_structattn.distributions import (
    Bernoulli,
    Categorical,
    IndependentHeads,
    LinearChain,
    ProjectiveTree,
    SpanningTree,
)

INF = float("inf")
POSITIONS = 3
Index = Tuple[int, ...]


class Structure(NamedTuple):
    """One structure: where it has a 1 in the shape of ``marginals``, and the scores it is made of."""

    ones: Sequence[Index]
    scores: Sequence[Tuple[str, Index]]


class Case(NamedTuple):
    """A distribution over three positions.

    Attributes:
        name: shown by pytest.
        build: from potentials by name and lengths to an instance.
        shapes: of the potentials behind the batch dimensions, by name.
        structures: all structures over so many positions.
        shared: potentials that all items of a batch share.
        on_gpu: whether kernels for GPUs serve it, which the interpreter runs too.
    """

    name: str
    build: Callable
    shapes: Dict[str, Tuple[int, ...]]
    structures: Callable[[int], List[Structure]]
    shared: Tuple[str, ...] = ()
    on_gpu: bool = False

    def draw(self, items: int, deviation: float = 1.0, offset: float = 0.0, dtype=torch.double):
        """Random potentials by name."""
        shapes = {name: (() if name in self.shared else (items,)) + shape for name, shape in self.shapes.items()}
        return {name: (deviation * torch.randn(shape) + offset).to(dtype) for name, shape in shapes.items()}


class Exact:
    """All quantities of one item. Scores are added up without any rounding, as fractions."""

    def __init__(self, case: Case, potentials, item: int, length: int = POSITIONS) -> None:
        self.case, self.item, self.structures = case, item, case.structures(length)
        values = {name: self._of_item(name, tensor).detach().double() for name, tensor in potentials.items()}
        totals = [self._total(structure, values) for structure in self.structures]
        possible = [total for total in totals if total is not None]
        self.best = max(possible) if possible else None
        self.shape = self.case.build(potentials, None).marginals.shape[1:]
        relative = [-INF if total is None else _float(total - self.best) for total in totals]
        mass = sum(math.exp(score) for score in relative)
        self.log_probs = [score - math.log(mass) if mass else -INF for score in relative]
        self.probs = [math.exp(score) for score in self.log_probs]
        self.log_partition = _float(self.best) + math.log(mass) if mass else -INF
        self.entropy = -sum(p * log_p for p, log_p in zip(self.probs, self.log_probs) if p > 0)
        weighted = (p * parts for p, parts in zip(self.probs, self.parts()))
        self.marginals = sum(weighted, torch.zeros(self.shape, dtype=torch.double))

    def parts(self) -> List[torch.Tensor]:
        """Structures in the shape of ``marginals``."""
        result = []
        for structure in self.structures:
            parts = torch.zeros(self.shape, dtype=torch.double)
            for index in structure.ones:
                parts[index] = 1
            result.append(parts)
        return result

    def gradients(self, on_log_partition: float, on_marginals: torch.Tensor):
        """Of ``on_log_partition · log Z + ⟨on_marginals, marginals⟩`` by name, by Cov(parts) · g."""
        values = [(on_marginals.double() * parts).sum().item() for parts in self.parts()]
        mean = sum(p * value for p, value in zip(self.probs, values))
        result = {name: torch.zeros(shape, dtype=torch.double) for name, shape in self.case.shapes.items()}
        for structure, p, value in zip(self.structures, self.probs, values):
            for name, index in structure.scores:
                result[name][index] += p * (on_log_partition + value - mean)
        return result

    def kl(self, other: "Exact") -> float:
        """KL to another distribution, whose structures may be others."""
        theirs = {tuple(sorted(s.ones)): log_p for s, log_p in zip(other.structures, other.log_probs)}
        terms = zip(self.structures, self.probs, self.log_probs)
        return sum(p * (log_p - theirs.get(tuple(sorted(s.ones)), -INF)) for s, p, log_p in terms if p > 0)

    def _of_item(self, name, tensor):
        return tensor if name in self.case.shared else tensor[self.item]

    def _total(self, structure, values):
        scores = [values[name][index].item() for name, index in structure.scores]
        return None if -INF in scores else sum(map(Fraction, scores), Fraction(0))


def _float(number: Fraction) -> float:
    try:
        return float(number)
    except OverflowError:
        return INF if number > 0 else -INF


# Structures


def one_position(n):
    return [Structure([(i,)], [("logits", (i,))]) for i in range(n)]


def any_positions(n):
    chosen = ([i for i in range(n) if z[i]] for z in itertools.product((0, 1), repeat=n))
    return [Structure([(i,) for i in z], [("logits", (i,)) for i in z]) for z in chosen]


def sequences(states, per_edge=False, ends=False, binary=False):
    def structures(n):
        return [_sequence(z, per_edge, ends, binary) for z in itertools.product(range(states), repeat=n)]

    return structures


def _sequence(z, per_edge, ends, binary):
    nodes = [(i,) for i, state in enumerate(z) if state == 1] if binary else [(i, state) for i, state in enumerate(z)]
    edges = [((i, a, b) if per_edge else (a, b)) for i, (a, b) in enumerate(zip(z, z[1:]))]
    scores = [("unary", index) for index in nodes] + [("pairwise", index) for index in edges]
    if ends and z:
        scores += [("start", (z[0],)), ("end", (z[-1],))]
    return Structure(nodes, scores)


def trees(kind, roots):
    def structures(n):
        heads = [tree for tree in all_trees(n, roots == "single") if kind == "spanning" or is_projective_tree(tree)]
        if n == 0:
            heads = [()] if roots == "multi" else []
        return [_arcs(tree) for tree in heads]

    return structures


def any_heads(n):
    return [_arcs(heads) for heads in itertools.product(range(n + 1), repeat=n)]


def _arcs(heads):
    arcs = [(head, word) for word, head in enumerate(heads)]
    return Structure(arcs, [("arc_scores", arc) for arc in arcs])


# Cases


def _simple(cls):
    return lambda potentials, lengths: cls(*potentials.values(), lengths=lengths)


def _chain(num_states=None):
    return lambda potentials, lengths: LinearChain(**potentials, lengths=lengths, num_states=num_states)


def _tree(cls, roots):
    return lambda potentials, lengths: cls(potentials["arc_scores"], lengths, roots)


def _states(count, per_edge, ends, binary=False):
    shapes = {"unary": (POSITIONS,) if binary else (POSITIONS, count)}
    shapes["pairwise"] = (POSITIONS - 1, count, count) if per_edge else (count, count)
    if ends:
        shapes.update(start=(count,), end=(count,))
    structures = sequences(count, per_edge, ends, binary)
    shared = () if per_edge else ("pairwise",)
    return _chain(None if binary else count), shapes, structures, shared, count == 2


_ARCS = {"arc_scores": (POSITIONS + 1, POSITIONS)}

CASES = [
    Case("categorical", _simple(Categorical), {"logits": (POSITIONS,)}, one_position),
    Case("bernoulli", _simple(Bernoulli), {"logits": (POSITIONS,)}, any_positions),
    Case("binary-chain", *_states(2, False, False, binary=True)),
    Case("binary-chain-with-ends", *_states(2, True, True, binary=True)),
    Case("chain-of-two-states", *_states(2, False, True)),
    Case("chain-of-three-states", *_states(3, False, False)),
    Case("chain-of-three-states-with-ends", *_states(3, True, True)),
    Case("independent-heads", _simple(IndependentHeads), _ARCS, any_heads),
]
for _kind, _cls in (("projective", ProjectiveTree), ("spanning", SpanningTree)):
    for _roots in ("multi", "single"):
        CASES.append(Case(f"{_kind}-{_roots}", _tree(_cls, _roots), _ARCS, trees(_kind, _roots), (), True))
