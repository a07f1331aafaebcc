"""Trees of a whole data set: found impossible exactly where their probability is 0, named by line, and counted."""

import itertools
import logging
import math
from argparse import Namespace

import numpy as np
import pytest
import torch

from fairseq_structattn.criterions import given_trees
from fairseq_structattn.criterions.given_trees import check_trees, first_impossible
from fairseq_structattn.criterions.tree_supervision import why_impossible
from fairseq_structattn.distributions import IndependentHeads, ProjectiveTree, SpanningTree
from fairseq_structattn.tasks.source_heads import SourceHeads, WithSourceHeads

GOOD = [[0, 1, 2], [], [-1, 1, 2, 3, -1], [2, 0]]


def flat(sentences):
    return np.array(sum(sentences, []), np.int32), np.cumsum([0] + [len(sentence) for sentence in sentences])


def heads_of(words):
    """All heads of so many words, also unknown ones, of which none is its own."""
    for heads in itertools.product(range(-1, words + 1), repeat=words):
        if all(head != word for word, head in enumerate(heads, start=1)):
            yield list(heads)


@pytest.mark.parametrize("roots", ["multi", "single"])
@pytest.mark.parametrize("kind", [ProjectiveTree, SpanningTree])
def test_impossible_is_what_has_no_probability(kind, roots):
    for words in (1, 2, 3, 4):
        sentences = list(heads_of(words))
        trees = kind(torch.zeros(len(sentences), words + 1, words), roots=roots)
        possible = trees.log_prob_of_heads(torch.tensor(sentences)) > -math.inf
        for heads, expected in zip(sentences, possible.tolist()):
            found = first_impossible(*flat([heads]), kind is ProjectiveTree, roots == "single")
            assert found == (None if expected else 0), heads
            assert expected or not why_impossible(trees, torch.tensor(heads)).startswith("no tree")


@pytest.mark.parametrize("chunk", [1, 3, 7, 1000])
def test_the_first_is_found_among_many_sentences(chunk, monkeypatch):
    monkeypatch.setattr(given_trees, "CHUNK", chunk)
    assert first_impossible(*flat(GOOD), True, True) is None
    assert first_impossible(*flat(GOOD + [[0, 4, 1, 1]] + GOOD + [[2, 1]]), True, True) == 4
    assert first_impossible(*flat(GOOD + [[0, 4, 1, 1]] + GOOD + [[2, 1]]), False, True) == 9
    assert first_impossible(*flat(GOOD + GOOD + [[0, 0]]), True, True) == 8
    assert first_impossible(*flat(GOOD + GOOD + [[0, 0]]), True, False) is None
    assert first_impossible(*flat([]), True, True) is None


@pytest.mark.parametrize("changed", [{150: 7, 100: 0}, {299: 1, 298: 0}, {3: 1, 2: 0}, {20: 300, 300: 0, 5: 0, 250: 2}])
def test_long_sentences(changed):
    chain = list(range(300))
    crossing = [changed.get(word, head) for word, head in enumerate(chain, start=1)]
    assert first_impossible(*flat([chain]), True, True) is None
    assert first_impossible(*flat([chain, crossing]), True, False) == 1
    assert first_impossible(*flat([chain, crossing]), False, False) is None


@pytest.fixture
def data(tmp_path):
    def made(lines):
        path = tmp_path / "train.heads.src"
        path.write_text("".join(" ".join(map(str, line)) + "\n" for line in lines))
        return Namespace(dataset=WithSourceHeads(list(lines), SourceHeads(str(path), [len(line) for line in lines])))

    return made


SCORES = torch.zeros(1, 2, 1)


def test_the_line_and_the_reason_are_named(data):
    with pytest.raises(ValueError, match=r"train\.heads\.src, line 5: its arcs 1 → 3 and 4 → 2 cross"):
        check_trees(data([*GOOD, [0, 4, 1, 1]]), ProjectiveTree(SCORES))
    with pytest.raises(ValueError, match=r"line 5: its arc 1 → 3 goes over word 2, below which both hang"):
        check_trees(data([*GOOD, [2, -1, 1]]), ProjectiveTree(SCORES))
    with pytest.raises(ValueError, match=r"line 1: words 1 and 2 are attached to the root: choose --tree-roots multi"):
        check_trees(data([[0, 0], *GOOD]), SpanningTree(SCORES, roots="single"))
    with pytest.raises(ValueError, match=r"line 2: its arcs go round in a circle"):
        check_trees(data([[0], [2, 1]]), SpanningTree(SCORES))


def test_what_is_given_is_logged(data, caplog):
    caplog.set_level(logging.INFO)
    check_trees(data(GOOD), ProjectiveTree(SCORES))
    assert "heads of 8 of 10 words, in 3 of 4 sentences" in caplog.records[-1].message
    check_trees(data([[2, 1]]), IndependentHeads(SCORES))
    assert caplog.records[-1].levelname == "INFO"
    check_trees(data([[-1, -1], []]), ProjectiveTree(SCORES))
    assert "heads of 0 of 2 words" in caplog.records[-1].message and caplog.records[-1].levelname == "WARNING"
    check_trees(Namespace(), ProjectiveTree(SCORES))
    assert len(caplog.records) == 3
