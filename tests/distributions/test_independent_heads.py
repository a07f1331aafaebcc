"""A head for each word: against all choices listed, and what a softmax per word gives."""

import itertools

import pytest
import torch

from fairseq_structattn.distributions import IndependentHeads

INF = float("inf")


def all_heads(n):
    """Every choice of heads as arcs ``[(n+1)ⁿ, n+1, n]``."""
    choices = torch.tensor(list(itertools.product(range(n + 1), repeat=n))).reshape(-1, n)
    return torch.nn.functional.one_hot(choices, n + 1).transpose(1, 2).double()


@pytest.fixture
def scores():
    torch.manual_seed(0)
    return torch.randn(2, 4, 3, dtype=torch.double, requires_grad=True)


def test_all_quantities_equal_enumeration(scores):
    heads, structures = IndependentHeads(scores), all_heads(3)
    energies = torch.einsum("shm,bhm->bs", structures, scores.detach())
    probabilities = energies.softmax(1)
    torch.testing.assert_close(heads.log_partition, energies.logsumexp(1))
    torch.testing.assert_close(heads.marginals, torch.einsum("bs,shm->bhm", probabilities, structures))
    torch.testing.assert_close(heads.argmax, structures[energies.argmax(1)])
    torch.testing.assert_close(heads.entropy, -(probabilities * probabilities.log()).sum(1))
    torch.testing.assert_close(heads.log_prob(structures.unsqueeze(1).expand(-1, 2, -1, -1)).t(), probabilities.log())
    assert heads.support_size.tolist() == [64, 64]


def test_lengths_hide_what_is_beyond(scores):
    padded = torch.nn.functional.pad(scores.detach(), (0, 2, 0, 2), value=float("nan")).requires_grad_()
    short = IndependentHeads(padded, torch.tensor([3, 3]))
    short.marginals[:, :4, :3].pow(2).sum().backward()
    IndependentHeads(scores).marginals.pow(2).sum().backward()
    torch.testing.assert_close(short.marginals[:, :4, :3], IndependentHeads(scores).marginals)
    torch.testing.assert_close(padded.grad[:, :4, :3], scores.grad)
    assert not padded.grad[:, 4:].any() and not padded.grad[:, :, 3:].any()


def test_a_word_without_a_head_makes_the_sentence_impossible(scores):
    forbidden = scores.detach().clone()
    forbidden[0, :, 1] = -INF
    heads = IndependentHeads(forbidden)
    assert heads.log_partition[0] == -INF
    assert not heads.marginals[0].any() and not heads.argmax[0].any() and not heads.sample()[0].any()
    torch.testing.assert_close(heads.marginals[1], IndependentHeads(scores).marginals[1])


def test_samples_follow_the_marginals(scores):
    heads = IndependentHeads(scores)
    samples = heads.sample((4000,))
    assert (samples.sum(-2) == 1).all()
    error = (samples.mean(0) - heads.marginals).abs()
    assert (error < 5 * (heads.marginals * (1 - heads.marginals) / 4000).sqrt() + 1e-9).all()


def test_two_heads_or_none_are_outside_the_support(scores):
    structure = all_heads(3)[5].expand(2, 4, 3).clone()
    structure[0, :, 0] = 1
    structure[1, :, 0] = 0
    assert (IndependentHeads(scores).log_prob(structure) == -INF).all()


def test_a_sentence_of_no_words():
    heads = IndependentHeads(torch.zeros(2, 1, 0))
    assert heads.log_partition.tolist() == [0, 0] and heads.marginals.shape == (2, 1, 0)
