"""Every distribution as a case of one template, and what all of its quantities are by listing structures exactly.

A new distribution comes under the template by an entry in :data:`CASES`, which :mod:`test_contract` demands of every
registered one. Tests marked with :data:`on_every_backend` take a ``case`` and run under each ``backend`` of it.
"""

import itertools
import math
from fractions import Fraction
from typing import Callable, Dict, List, NamedTuple, Sequence, Tuple

import pytest
import torch
from enumeration_projective import is_projective_tree
from enumeration_spanning import all_trees

from fairseq_structattn.distributions import (
    Bernoulli,
    BinaryTree,
    Categorical,
    IndependentHeads,
    LinearChain,
    OneSpan,
    ProjectiveTree,
    SemiMarkov,
    SpanningTree,
    distribution_names,
    get_distribution,
)
from fairseq_structattn.distributions.kernels import numba_compile

INF = float("inf")
POSITIONS = 3
# Other tests register the distributions of examples.
OWN_NAMES = [
    name for name in distribution_names() if get_distribution(name).__module__.startswith("fairseq_structattn.")
]
Index = Tuple[int, ...]


def quantity_of(distribution, name: str) -> torch.Tensor:
    """A property by its name, or what the method ``entropy`` returns."""
    return getattr(distribution, name)() if name == "entropy" else getattr(distribution, name)


def outputs(distribution) -> List[torch.Tensor]:
    """What kernels give, and can be differentiated any number of times."""
    edges = [distribution.edge_marginals] if hasattr(distribution, "edge_marginals") else []
    return [distribution.log_partition, distribution.marginals] + edges


def close(actual, expected, tolerance=2e-6) -> None:
    # Of what the dtype cannot hold, infinity is right.
    expected = torch.as_tensor(expected, dtype=torch.double).to(actual.dtype)
    torch.testing.assert_close(actual.detach().double(), expected.double(), rtol=tolerance, atol=tolerance)


def tracked(potentials: Dict[str, torch.Tensor]) -> Dict[str, torch.Tensor]:
    """Copies that need a gradient."""
    return {name: tensor.detach().clone().requires_grad_() for name, tensor in potentials.items()}


def listed(case, potentials, lengths):
    """log Z ``[items]``, marginals and entropy ``[items]``, by listing; differentiable any number of times."""
    columns = []
    for item, length in enumerate(lengths):
        scores, parts = [], []
        shape = tuple(list(potentials.values())[0].shape[1:])
        own = {name: t if name in case.shared else t[item] for name, t in potentials.items()}
        for structure in case.structures(length):
            terms = [own[name][index] for name, index in structure.scores]
            if not any(term.item() == -INF for term in terms):
                scores.append(sum(terms, torch.zeros((), dtype=torch.double)))
                parts.append(torch.zeros(shape, dtype=torch.double))
                for index in structure.ones:
                    parts[-1][index] = 1
        scores = torch.stack(scores)
        total, p = scores.logsumexp(0), scores.softmax(0)
        columns.append((total, torch.tensordot(p, torch.stack(parts), 1), total - (p * scores).sum()))
    return tuple(map(torch.stack, zip(*columns)))


class Structure(NamedTuple):
    """One structure: where it has a 1 in the shape of ``marginals``, the scores it is made of, and the edges of a
    chain."""

    ones: Sequence[Index]
    scores: Sequence[Tuple[str, Index]]
    edges: Sequence[Index] = ()


class Case(NamedTuple):
    """A distribution over three positions.

    Attributes:
        name: shown by pytest.
        build: from potentials by name, lengths and options to an instance.
        shapes: of the potentials of so many positions, behind the batch dimensions, by name.
        structures: all structures over so many positions.
        shared: potentials that all items of a batch share.
        on_gpu: whether kernels for GPUs serve it, which the interpreter runs too.
    """

    name: str
    build: Callable
    shapes: Callable[[int], Dict[str, Tuple[int, ...]]]
    structures: Callable[[int], List[Structure]]
    shared: Tuple[str, ...] = ()
    on_gpu: bool = False

    @property
    def arcs(self) -> bool:
        return "arc_scores" in self.shapes(POSITIONS)

    @property
    def chain(self) -> bool:
        return "pairwise" in self.shapes(POSITIONS)

    @property
    def segments(self) -> bool:
        return "segment_scores" in self.shapes(POSITIONS)

    @property
    def span(self) -> bool:
        return "stay" in self.shapes(POSITIONS)

    @property
    def spans(self) -> bool:
        return "span_scores" in self.shapes(POSITIONS)

    @property
    def backends(self) -> Tuple[str, ...]:
        """Those that differ: in closed form, nothing does."""
        if not (self.chain or self.span or self.spans or self.name.startswith(("projective", "spanning"))):
            return ("auto",)
        paper = () if self.name.startswith("spanning") or self.segments or self.span or self.spans else ("paper",)
        # A binary chain has a recursion of its own where there is no compiler.
        return ("reference", "cpu") + (("without-numba",) if self.name.startswith("binary-chain") else ()) + paper

    def draw(self, *batch: int, deviation=1.0, offset=0.0, dtype=torch.double, n=POSITIONS):
        """Random potentials by name."""
        shapes = {name: (() if name in self.shared else batch) + shape for name, shape in self.shapes(n).items()}
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
        self.edge_marginals = self._edges(self.probs)

    def parts(self) -> List[torch.Tensor]:
        """Structures in the shape of ``marginals``."""
        result = []
        for structure in self.structures:
            parts = torch.zeros(self.shape, dtype=torch.double)
            for index in structure.ones:
                parts[index] = 1
            result.append(parts)
        return result

    def gradients(self, on_log_partition: float, on_marginals: torch.Tensor, on_edges=None):
        """Of ``on_log_partition · log Z + ⟨on_marginals, marginals⟩ + ⟨on_edges, edge marginals⟩`` by name, by
        Cov(parts) · g."""
        values = [on_marginals.double()[parts == 1].sum().item() for parts in self.parts()]
        if on_edges is not None:
            values = [v + sum(on_edges[e].item() for e in s.edges) for v, s in zip(values, self.structures)]
        mean = sum(p * value for p, value in zip(self.probs, values))
        shapes = self.case.shapes(POSITIONS)
        result = {name: torch.zeros(shape, dtype=torch.double) for name, shape in shapes.items()}
        for structure, p, value in zip(self.structures, self.probs, values):
            for name, index in structure.scores:
                result[name][index] += p * (on_log_partition + value - mean)
        return result

    def kl(self, other: "Exact") -> float:
        """KL to another distribution, whose structures may be others."""
        theirs = {tuple(sorted(s.ones)): log_p for s, log_p in zip(other.structures, other.log_probs)}
        terms = zip(self.structures, self.probs, self.log_probs)
        return sum(p * (log_p - theirs.get(tuple(sorted(s.ones)), -INF)) for s, p, log_p in terms if p > 0)

    def _edges(self, weights):
        states = next((shape[-1] for name, shape in self.case.shapes(POSITIONS).items() if name == "pairwise"), 0)
        result = torch.zeros(POSITIONS - 1, states, states, dtype=torch.double)
        for structure, weight in zip(self.structures, weights):
            for edge in structure.edges:
                result[edge] += weight
        return result

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
    return Structure(nodes, scores, [(i, a, b) for i, (a, b) in enumerate(zip(z, z[1:]))])


def spans(n):
    pairs = [(first, last) for first in range(n) for last in range(first, n)]
    return [
        Structure(
            [(i,) for i in range(first, last + 1)],
            [("unary", (i,)) for i in range(first, last + 1)] + [("stay", (0,))] * (last - first),
        )
        for first, last in pairs
    ]


def segmentations(longest, labels, per_edge=False):
    def structures(n):
        return [_segmentation(segments, per_edge) for segments in _cut(0, n, longest, labels)]

    return structures


def _cut(first, n, longest, labels):
    """All lists of segments (first position, length - 1, label) of the positions from the first."""
    if first == n:
        return [[]]
    kinds = itertools.product(range(min(longest, n - first)), range(labels))
    return [[(first, *kind)] + rest for kind in kinds for rest in _cut(first + kind[0] + 1, n, longest, labels)]


def _segmentation(segments, per_edge):
    edges = [(second[0] - 1, one[2], second[2]) for one, second in zip(segments, segments[1:])]
    scores = [("segment_scores", segment) for segment in segments]
    scores += [("pairwise", edge if per_edge else edge[1:]) for edge in edges]
    return Structure(segments, scores, edges)


def binary_trees(n):
    def divided(i, j):
        if i == j:
            return [[(i, j)]]
        return [[(i, j)] + a + b for k in range(i, j) for a in divided(i, k) for b in divided(k + 1, j)]

    trees = divided(0, n - 1) if n > 0 else [[]]
    return [Structure(spans, [("span_scores", span) for span in spans]) for spans in trees]


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
    return lambda potentials, lengths, **options: cls(*potentials.values(), lengths=lengths, **options)


def _chain(num_states=None):
    return lambda potentials, lengths, **options: LinearChain(
        **potentials, lengths=lengths, num_states=num_states, **options
    )


def _tree(cls, roots):
    return lambda potentials, lengths, **options: cls(potentials["arc_scores"], lengths, roots, **options)


def _logits(n):
    return {"logits": (n,)}


def _arc_scores(n):
    return {"arc_scores": (n + 1, n)}


def _states(count, per_edge, ends, binary=False):
    def shapes(n):
        unary = {"unary": (n,) if binary else (n, count)}
        pairwise = {"pairwise": (max(n - 1, 0), count, count) if per_edge else (count, count)}
        return {**unary, **pairwise, **({"start": (count,), "end": (count,)} if ends else {})}

    structures = sequences(count, per_edge, ends, binary)
    shared = () if per_edge else ("pairwise",)
    return _chain(None if binary else count), shapes, structures, shared, count == 2 or per_edge


def _segments(longest, labels, per_edge):
    def shapes(n):
        table = (max(n - 1, 0), labels, labels) if per_edge else (labels, labels)
        return {"segment_scores": (n, longest, labels), "pairwise": table}

    shared = () if per_edge else ("pairwise",)
    return _simple(SemiMarkov), shapes, segmentations(longest, labels, per_edge), shared


CASES = [
    Case("categorical", _simple(Categorical), _logits, one_position),
    Case("bernoulli", _simple(Bernoulli), _logits, any_positions),
    Case("binary-chain", *_states(2, False, False, binary=True)),
    Case("binary-chain-per-edge", *_states(2, True, False, binary=True)),
    Case("binary-chain-with-ends", *_states(2, True, True, binary=True)),
    Case("chain-of-two-states", *_states(2, False, True)),
    Case("chain-of-three-states", *_states(3, False, False)),
    Case("chain-of-three-states-with-ends", *_states(3, True, True)),
    Case("one-span", _simple(OneSpan), lambda n: {"unary": (n,), "stay": (1,)}, spans, ("stay",)),
    Case("segments", *_segments(2, 2, False)),
    Case("segments-per-edge", *_segments(3, 1, True)),
    Case("binary-trees", _simple(BinaryTree), lambda n: {"span_scores": (n, n)}, binary_trees),
    Case("independent-heads", _simple(IndependentHeads), _arc_scores, any_heads),
]
for _kind, _cls in (("projective", ProjectiveTree), ("spanning", SpanningTree)):
    for _roots in ("multi", "single"):
        CASES.append(Case(f"{_kind}-{_roots}", _tree(_cls, _roots), _arc_scores, trees(_kind, _roots), (), True))


# Which cases, and under which backends

needs_numba = pytest.mark.skipif(not numba_compile.available(), reason="needs numba")


def on_backends_of(concerns: Callable[[Case], bool], names=("auto", "reference", "cpu", "without-numba")):
    """Mark of a test of the cases that ``concerns`` is true of, under those of the named backends that they have."""
    chosen = [
        pytest.param(case, backend, id=f"{case.name}-{backend}", marks=[needs_numba] if backend == "cpu" else [])
        for case in CASES
        if concerns(case)
        for backend in case.backends
        if backend in names
    ]
    return pytest.mark.parametrize("case, backend", chosen, indirect=["backend"])


on_every_backend = on_backends_of(lambda case: True)
# What computes in the same way as the reference but for its gradients is asked for less.
with_the_paper = on_backends_of(lambda case: True, ("auto", "reference", "cpu", "without-numba", "paper"))
on_kernels = on_backends_of(lambda case: True, ("cpu", "without-numba"))
each_case = pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
