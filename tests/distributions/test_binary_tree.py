"""What binary trees have beyond the contract: their number, integers, and what they mean for words."""

import itertools

import pytest
import torch
from contract import binary_trees, close

from fairseq_structattn.distributions import BinaryTree, use_backend

CATALAN = (1, 1, 2, 5, 14, 42)


def draw(*shape):
    return torch.randn(shape, dtype=torch.double)


def spans_of(structure, n):
    spans = torch.zeros(n, n, dtype=torch.double)
    for index in structure.ones:
        spans[index] = 1
    return spans


def test_numbers_of_trees_are_those_of_catalan():
    trees = BinaryTree(torch.zeros(6, 6, 6), torch.arange(1, 7))
    assert trees.support_size.tolist() == list(CATALAN)
    close(trees.log_partition, trees.support_size.log(), 1e-6)
    close(trees.entropy(), trees.support_size.log(), 1e-6)
    # C(2n − 2, n − 1) / n for n = 80 words.
    close(BinaryTree(draw(80, 80) * 0).log_partition, BinaryTree(torch.zeros(80, 80)).support_size.log(), 1e-12)


@pytest.mark.parametrize("n", (1, 2, 3))
def test_of_all_sets_of_spans_those_of_trees_are_structures(n):
    places = [(i, j) for i in range(n) for j in range(i, n)]
    trees = {tuple(spans_of(structure, n).flatten().tolist()) for structure in binary_trees(n)}
    distribution = BinaryTree(torch.zeros(n, n))
    for marks in itertools.product((0.0, 1.0), repeat=len(places)):
        spans = torch.zeros(n, n)
        for place, mark in zip(places, marks):
            spans[place] = mark
        assert distribution.support.check(spans) == (tuple(spans.flatten().tolist()) in trees)


def test_trees_are_written_as_integers():
    every = torch.stack([spans_of(structure, 5) for structure in binary_trees(5)])
    distribution = BinaryTree(torch.zeros(5, 5, dtype=torch.double))
    integers = distribution.as_integers(every)
    assert len({tuple(row) for row in integers.tolist()}) == len(every) == 14
    assert torch.equal(distribution.as_indicators(integers), every) and distribution.support.check(every).all()
    # ((0 1) (2 (3 4)))
    tree = torch.eye(5)
    tree[0, 1] = tree[3, 4] = tree[2, 4] = tree[0, 4] = 1
    assert distribution.as_integers(tree).tolist() == [0, 0, 2, 3, 0]
    for wrong in ([0, 0, 1, 3, 0], [0, 1, 2, 3, 4], [1, 0, 0, 0, 0]):
        assert not distribution.support.check(distribution.as_indicators(torch.tensor(wrong)))
    # Neither two spans that cross nor one too many make a tree.
    crossing, many = tree.clone(), tree.clone()
    crossing[2, 4], crossing[1, 2], many[1, 4] = 0, 1, 1
    assert not distribution.support.check(torch.stack((crossing, many))).any()


@pytest.mark.parametrize("backend", ("reference", "auto"))
def test_what_trees_mean_for_words(backend):
    scores, lengths = draw(3, 4, 4), torch.tensor([4, 1, 3])
    with use_backend(backend):
        trees = BinaryTree(scores, lengths)
        shares, depths = trees.word_shares(trees.marginals), trees.position_marginals
    for item, n in enumerate(lengths.tolist()):
        weights, expected, depth = [], torch.zeros(4, 4).double(), torch.zeros(4).double()
        for structure in binary_trees(n):
            weights.append(sum(scores[item][span].item() for span in structure.ones))
        probs = torch.tensor(weights, dtype=torch.double).softmax(0)
        for structure, p in zip(binary_trees(n), probs):
            for i, j in structure.ones:
                if j > i:
                    depth[i : j + 1] += p
                    expected[i : j + 1, i : j + 1] += p / (j - i + 1)
        close(depths[item], depth, 1e-9)
        close(shares[item], expected / depth.clamp(min=1e-9).unsqueeze(-1), 1e-9)
    close(trees.selected_positions(trees.argmax), trees.argmax.triu(1).new_tensor([
        [sum(i <= word <= j for i, j in tree.triu(1).nonzero().tolist()) for word in range(4)] for tree in trees.argmax
    ]), 0)  # fmt: skip
    close(shares.sum(-1), (torch.arange(4) < lengths.unsqueeze(-1)) & (lengths > 1).unsqueeze(-1), 1e-9)


def test_attention_weighs_a_word_by_the_spans_around_it():
    scores, lengths = draw(3, 5).requires_grad_(), torch.tensor([5, 2, 0])
    trees = BinaryTree.from_scores(scores, lengths)
    close(trees.span_scores[0, 1, 3], scores[0, 1:4].sum(), 1e-12)
    assert trees.span_scores[0].diagonal().eq(0).all()
    (gradient,) = torch.autograd.grad(trees.log_partition.sum(), scores, retain_graph=True)
    close(gradient, trees.position_marginals, 1e-12)
    close(trees.position_marginals[1], torch.tensor([1.0, 1, 0, 0, 0]), 1e-12)
    assert trees.position_marginals[2].eq(0).all()
    # Masked words reach neither sums of others nor gradients; padding may hold anything.
    garbage = scores.detach().clone()
    garbage[1, 2:], garbage[2] = float("nan"), float("inf")
    garbage.requires_grad_()
    dirty = BinaryTree.from_scores(garbage, lengths)
    assert torch.equal(dirty.position_marginals, trees.position_marginals)
    (gradient,) = torch.autograd.grad(dirty.position_marginals.square().sum(), garbage)
    (expected,) = torch.autograd.grad(trees.position_marginals.square().sum(), scores)
    assert torch.equal(gradient, expected)


@pytest.mark.parametrize("deviation", (1.0, 30.0, 1e4))
def test_long_sentences_are_accurate_whatever_the_size_of_scores(deviation):
    # Beyond a few, scores of 30 leave the range of float64: scaled numbers compute them.
    scores, upstream = deviation * draw(2, 70, 70), draw(2, 70, 70)
    results = []
    for backend in ("reference", "auto"):
        with use_backend(backend):
            leaf = scores.clone().requires_grad_()
            trees = BinaryTree(leaf, torch.tensor([70, 61]))
            gradients = torch.autograd.grad((trees.marginals * upstream).sum() + trees.entropy().sum(), leaf)
            results.append([trees.log_partition, trees.marginals, trees.max, *gradients])
    for found, expected in zip(*results):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_all_trees_in_the_order_of_their_probability():
    trees = BinaryTree(draw(2, 5, 5), torch.tensor([5, 3]))
    best = trees.topk(20)
    assert best.log_probs.isfinite().sum(0).tolist() == [14, 2]
    close(best.log_probs[:14, 0].exp().sum(), 1.0, 1e-9)
    assert (best.log_probs[:13, 0] >= best.log_probs[1:14, 0]).all()
    assert torch.equal(best.structures[0], trees.argmax)


@pytest.mark.parametrize(
    "error, message, scores, lengths",
    [
        (TypeError, "span_scores is a list", [[0.0]], None),
        (TypeError, "span_scores has dtype torch.int64", torch.zeros(2, 2).long(), None),
        (ValueError, r"span_scores has shape \(3, 2\); it must be \[\*batch, n, n\]", torch.zeros(3, 2), None),
        (ValueError, "lengths has values from 3", torch.zeros(2, 2), torch.tensor(3)),
    ],
)
def test_errors_name_what_is_wrong(error, message, scores, lengths):
    with pytest.raises(error, match=message):
        BinaryTree(scores, lengths)
