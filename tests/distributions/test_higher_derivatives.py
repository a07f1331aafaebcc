"""Derivatives of derivatives of every quantity, class and backend, beside those of lists of all structures."""

import itertools

import pytest
import torch
from enumeration_projective import is_projective_tree, reaches

from fairseq_structattn.distributions import (
    Bernoulli,
    Categorical,
    IndependentHeads,
    LinearChain,
    ProjectiveTree,
    SpanningTree,
    use_backend,
)
from fairseq_structattn.distributions.kernels import numba_compile

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BACKENDS = ("auto", "reference", "plain", "cuda")
LENGTHS = (3, 2)
N = max(LENGTHS)
FORBIDDEN = -float("inf")


@pytest.fixture(params=BACKENDS)
def backend(request, monkeypatch, case):
    """The backend in force; ``plain`` is ``auto`` on a machine without numba."""
    if request.param not in case.backends:
        pytest.skip("the same code as auto")
    if request.param == "plain":
        monkeypatch.setattr(numba_compile, "available", lambda: False)
    with use_backend("auto" if request.param == "plain" else request.param):
        yield request.param


class Case:
    """A distribution over two items and its list: ``structures(length)`` yields the indices of the potentials that each
    structure of an item is made of, as (number of the tensor, index without the batch), and its position marks."""

    def __init__(self, make, shapes, structures, forbidden=(), backends=BACKENDS):
        self.make, self.shapes, self.structures, self.forbidden = make, shapes, structures, forbidden
        self.backends = backends

    def potentials(self):
        torch.manual_seed(1)
        tensors = [torch.randn(shape, dtype=torch.double) for shape in self.shapes]
        for number, index in self.forbidden:
            tensors[number][index] = FORBIDDEN
        return [tensor.to(DEVICE).requires_grad_() for tensor in tensors]

    def listed(self, *tensors):
        """log Z ``[2]``, marginals of the first tensor, and entropy ``[2]`` by enumeration."""
        results = []
        for item, length in enumerate(LENGTHS):
            scores, marks = [], []
            for indices in self.structures(length):
                batched = [(k, (item,) + i if tensors[k].dim() > SHARED[k] else i) for k, i in indices]
                terms = [tensors[k][i] for k, i in batched]
                if any(term.item() == FORBIDDEN for term in terms):
                    continue
                scores.append(sum(terms, tensors[0].new_zeros(())))
                mark = torch.zeros(self.shapes[0][1:], dtype=torch.double, device=DEVICE)
                for k, i in indices:
                    if k == 0:
                        mark[i] = 1
                marks.append(mark)
            scores = torch.stack(scores)
            p = scores.softmax(0)
            total = scores.logsumexp(0)
            results.append((total, torch.tensordot(p, torch.stack(marks), 1), total - (p * scores).sum()))
        return tuple(torch.stack(column) for column in zip(*results))


# Dimensions of a table that all items share; the first tensor always has a batch.
SHARED = {0: 0, 1: 2, 2: 1, 3: 1}


def chain(states, per_edge=False, ends=False):
    def structures(length):
        for sequence in itertools.product(range(states or 2), repeat=length):
            unary = [(0, (i,)) for i, s in enumerate(sequence) if s] if states is None else [
                (0, (i, s)) for i, s in enumerate(sequence)
            ]  # fmt: skip
            edges = [(1, (i, a, b) if per_edge else (a, b)) for i, (a, b) in enumerate(zip(sequence, sequence[1:]))]
            yield unary + edges + ([(2, (sequence[0],)), (3, (sequence[-1],))] if ends else [])

    count = states or 2
    shapes = [(2, N) + (() if states is None else (states,))]
    shapes.append((2, N - 1, count, count) if per_edge else (count, count))
    shapes += [(count,), (count,)] if ends else []

    def make(unary, pairwise, start=None, end=None):
        return LinearChain(unary, pairwise, lengths(), start, end, num_states=states)

    backends = [
        name for name in BACKENDS if states is None or name in ("auto", "reference") or (name, states) == ("cuda", 2)
    ]
    return Case(make, shapes, structures, backends=backends)


def lengths():
    return torch.tensor(LENGTHS, device=DEVICE)


def heads(make, allowed, forbidden=(), backends=("auto", "reference", "cuda")):
    def structures(length):
        for choice in itertools.product(range(length + 1), repeat=length):
            if allowed(choice):
                yield [(0, (head, word)) for word, head in enumerate(choice)]

    return Case(make, [(2, N + 1, N)], structures, forbidden, backends)


def trees(kind, roots, forbidden=()):
    def allowed(choice):
        tree = all(reaches(choice, word, 0) for word in range(1, len(choice) + 1))
        projective = kind is SpanningTree or (tree and is_projective_tree(choice))
        return tree and projective and (roots == "multi" or choice.count(0) == 1)

    return heads(lambda scores: kind(scores, lengths(), roots=roots), allowed, forbidden)


ARC = [(0, (0, 1, 1))]
CASES = {
    "categorical": Case(
        lambda logits: Categorical(logits, lengths()),
        [(2, N)],
        lambda n: ([(0, (i,))] for i in range(n)),
        backends=("auto",),
    ),
    "bernoulli": Case(
        lambda logits: Bernoulli(logits, lengths()),
        [(2, N)],
        lambda n: ([(0, (i,)) for i in range(n) if marks[i]] for marks in itertools.product((0, 1), repeat=n)),
        backends=("auto",),
    ),
    "independent heads": heads(
        lambda scores: IndependentHeads(scores, lengths()), lambda choice: True, backends=("auto",)
    ),
    "binary chain": chain(None),
    "binary chain, tables and ends": chain(None, per_edge=True, ends=True),
    "two states": chain(2),
    "three states, tables and ends": chain(3, per_edge=True, ends=True),
    "projective trees": trees(ProjectiveTree, "multi"),
    "projective trees, single root, forbidden arc": trees(ProjectiveTree, "single", ARC),
    "spanning trees": trees(SpanningTree, "multi"),
    "spanning trees, single root, forbidden arc": trees(SpanningTree, "single", ARC),
}


@pytest.fixture(params=CASES, ids=str)
def case(request):
    return CASES[request.param]


def repeatedly(value, tensors, times):
    """A random linear function's gradients, and those of a random linear function of them, and so on."""
    torch.manual_seed(2)
    every = []
    for _ in range(times):
        gradients = torch.autograd.grad(value, tensors, create_graph=True, allow_unused=True)
        gradients = [torch.zeros_like(t) if g is None else g for g, t in zip(gradients, tensors)]
        every += gradients
        # Not randn_like, which draws in the order of memory.
        value = sum((gradient * torch.randn(gradient.shape).to(gradient)).sum() for gradient in gradients)
    return [gradient.detach() for gradient in every]


@pytest.mark.parametrize("quantity", ("log_partition", "all"))
def test_derivatives_of_any_order_are_those_of_the_list(case, backend, quantity):
    if quantity != "all" and backend != "auto":
        pytest.skip("all together are enough")

    def functional(log_partition, marginals, entropy):
        torch.manual_seed(3)
        results = {"log_partition": log_partition, "marginals": marginals, "entropy": entropy}
        weights = {name: torch.randn(result.shape).to(result) for name, result in results.items()}
        chosen = results if quantity == "all" else (quantity,)
        return sum((weights[name] * results[name]).sum() for name in chosen)

    tensors = case.potentials()
    distribution = case.make(*tensors)
    ours = functional(distribution.log_partition, distribution.marginals, distribution.entropy)
    theirs = functional(*case.listed(*tensors))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)
    times = 3 if backend == "auto" else 2
    for found, expected in zip(repeatedly(ours, tensors, times), repeatedly(theirs, tensors, times)):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)


def test_gradient_penalties_of_log_probabilities(case, backend):
    tensors, likelihoods = case.potentials(), []
    structure = case.make(*tensors).argmax
    total, _, _ = case.listed(*tensors)
    score = (torch.where(structure != 0, tensors[0], torch.zeros_like(tensors[0]))).flatten(1).sum(1)
    if len(tensors) > 1:
        # Tables enter the score of a structure linearly: their part in the penalty is the same on both sides.
        score = case.make(*tensors).log_prob(structure) + case.make(*tensors).log_partition
    for likelihood in (case.make(*tensors).log_prob(structure), score - total):
        first = torch.autograd.grad(likelihood.sum(), tensors, create_graph=True)
        penalty = sum(gradient.square().sum() for gradient in first)
        likelihoods.append([likelihood, *torch.autograd.grad(penalty, tensors)])
    for found, expected in zip(*likelihoods):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("kind", (ProjectiveTree, SpanningTree))
def test_hessians_in_float32_are_computed_in_float64(kind):
    def hessian(scores):
        return torch.autograd.functional.hessian(lambda scores: kind(scores).log_partition.sum(), scores)

    scores = 3 * torch.randn(1, 6, 5, generator=torch.Generator().manual_seed(4))
    with use_backend("reference"):
        right = hessian(scores.double())
    assert right.abs().max() > 1e-2
    torch.testing.assert_close(hessian(scores).double(), right, rtol=0, atol=1e-7)
