"""Derivatives of derivatives of every quantity, case and backend, beside those of lists of all structures."""

import pytest
import torch
from contract import CASES, INF, POSITIONS, listed, needs_numba, tracked

from fairseq_structattn.distributions import ProjectiveTree, SpanningTree, use_backend
from fairseq_structattn.distributions.kernels import triton_launch

LENGTHS = (POSITIONS, POSITIONS - 1)
# The interpreter is slow: a kernel of each kind is enough, since one class differentiates all of them.
INTERPRETED = ("binary-chain-with-ends", "projective-multi", "spanning-single")
interpreted = pytest.mark.skipif(
    not (triton_launch.available() and triton_launch.interpreted()), reason="needs Triton's interpreter"
)
MARKS = {"cpu": [needs_numba], "cuda": [interpreted]}
each = pytest.mark.parametrize(
    "case, backend",
    [
        pytest.param(case, backend, id=f"{case.name}-{backend}", marks=MARKS.get(backend, []))
        for case in CASES
        for backend in case.backends + (("cuda",) if case.name in INTERPRETED else ())
        if backend != "paper"
    ],
    indirect=["backend"],
)


def draw(case):
    torch.manual_seed(1)
    potentials = case.draw(2)
    if case.name.endswith("single"):
        potentials["arc_scores"][0, 1, 1] = -INF
    return tracked(potentials)


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


@each
@pytest.mark.parametrize("quantity", ("log_partition", "all"))
def test_derivatives_of_any_order_are_those_of_the_list(case, backend, quantity):
    if quantity != "all" and backend not in ("auto", "cpu"):
        pytest.skip("all together are enough")

    def functional(*results):
        torch.manual_seed(3)
        terms = [(torch.randn(result.shape).double() * result).sum() for result in results]
        return sum(terms) if quantity == "all" else terms[0]

    potentials = draw(case)
    distribution, tensors = case.build(potentials, torch.tensor(LENGTHS)), list(potentials.values())
    ours = functional(distribution.log_partition, distribution.marginals, distribution.entropy())
    theirs = functional(*listed(case, potentials, LENGTHS))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)
    times = 3 if backend in ("auto", "cpu") else 2
    for found, expected in zip(repeatedly(ours, tensors, times), repeatedly(theirs, tensors, times)):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)


@each
def test_gradient_penalties_of_log_probabilities(case, backend):
    potentials, penalties = draw(case), []
    tensors, lengths = list(potentials.values()), torch.tensor(LENGTHS)
    structure = case.build(potentials, lengths).argmax
    # The score of a structure is linear, whatever computes it.
    score = case.build(potentials, lengths).log_prob(structure) + case.build(potentials, lengths).log_partition
    for likelihood in (
        case.build(potentials, lengths).log_prob(structure),
        score - listed(case, potentials, LENGTHS)[0],
    ):
        first = torch.autograd.grad(likelihood.sum(), tensors, create_graph=True)
        penalty = sum(gradient.square().sum() for gradient in first)
        penalties.append([likelihood, *torch.autograd.grad(penalty, tensors)])
    for found, expected in zip(*penalties):
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
