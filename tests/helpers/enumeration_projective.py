"""Projective dependency trees by listing all of them: what the algorithms are tested against."""

import functools
import itertools

import torch


def reaches(heads, word, ancestor):
    """Whether following the heads (`heads[m - 1]` is the head of word m) leads from a word to an ancestor or itself."""
    for _ in range(len(heads) + 1):
        if word == ancestor:
            return True
        if word == 0:
            return False
        word = heads[word - 1]
    return False


def is_projective_tree(heads):
    """By the definition: whatever lies between a word and its head descends from that head."""
    words = range(1, len(heads) + 1)
    return all(reaches(heads, m, 0) for m in words) and all(
        reaches(heads, between, heads[m - 1])
        for m in words
        for between in range(min(m, heads[m - 1]) + 1, max(m, heads[m - 1]))
    )


@functools.lru_cache(maxsize=None)
def all_trees(n, roots):
    """The head of each word in each tree, `[trees, n]`."""
    trees = [
        heads
        for heads in itertools.product(range(n + 1), repeat=n)
        if is_projective_tree(heads) and (roots == "multi" or heads.count(0) == 1)
    ]
    return torch.tensor(trees, dtype=torch.long).reshape(len(trees), n)
