"""Unlabelled attachment scores: by hand, of chance against enumeration, and of trees decoded in two ways."""

import json
from argparse import Namespace

import pytest
import torch
from enumeration_projective import all_trees

from fairseq_structattn.analysis import attachment_scores as scores
from fairseq_structattn.analysis import parse_sentences, parsers
from fairseq_structattn.distributions import IndependentHeads, ProjectiveTree, SpanningTree

GOLD = [[2, 0, 2], [0]]


def test_scores_by_hand():
    found = scores.score([[2, 3, 0], [0]], GOLD)
    assert found == {"directed": 50.0, "undirected": 75.0}
    assert scores.score(GOLD, GOLD) == {"directed": 100.0, "undirected": 100.0}
    assert scores.score([[2, 0, 1]], [[-1, 0, 2]])["directed"] == 50.0
    assert scores.score([[]], [[]])["directed"] == 0.0


def test_chains():
    assert scores.right_branching(3) == [0, 1, 2] and scores.left_branching(3) == [2, 3, 0]
    assert scores.left_branching(1) == [0] and scores.left_branching(0) == scores.right_branching(0) == []


@pytest.mark.parametrize("roots", ["single", "multi"])
def test_uniform_trees_against_all_of_them(roots):
    gold = [[2, 0, 2, 3], [0], []]
    every = [all_trees(len(heads), roots).tolist() for heads in gold]
    expected = {"directed": 0.0, "undirected": 0.0}
    for trees, heads in zip(every, gold):
        for tree in trees:
            found = scores.score([tree], [heads])
            for kind in expected:
                expected[kind] += found[kind] * len(heads) / len(trees) / 5
    assert scores.uniform(gold, ProjectiveTree, roots) == pytest.approx(expected)


def test_random_scores_make_trees():
    found = scores.random_scores([[0] * n for n in (5, 0, 1, 3)], SpanningTree, "single")
    assert [len(heads) for heads in found] == [5, 0, 1, 3]
    assert all(heads.count(0) == 1 for heads in found if heads)


@pytest.mark.parametrize("tree", [ProjectiveTree, SpanningTree])
def test_minimum_risk_is_the_tree_with_the_most_expected_right_heads(tree):
    torch.manual_seed(0)
    distribution = tree(torch.randn(1, 5, 4), None, "single")
    found = parsers.decode(distribution, "risk")[0]
    every = all_trees(4, "single") if tree is ProjectiveTree else distribution.sample((500,))[:, 0].argmax(-2)
    gains = [distribution.marginals[0].gather(0, heads.unsqueeze(0)).sum() for heads in every]
    best = distribution.marginals[0].gather(0, found.unsqueeze(0)).sum()
    assert best >= max(gains) - 1e-5
    assert torch.equal(parsers.decode(distribution, "argmax"), distribution.argmax.argmax(-2))


def test_independent_heads_become_a_tree():
    heads = parsers.decode(IndependentHeads(torch.tensor([[[0.0, 0.0], [5.0, 4.0], [3.0, 5.0]]])), "risk")
    assert 0 in heads[0].tolist()


class Model(torch.nn.Module):
    """Each word hangs on the word before it."""

    def source_attention(self, tokens):
        n = tokens.size(1)
        return SpanningTree(9 * torch.eye(n + 1, n).expand(len(tokens), -1, -1), tokens.ne(1).sum(1))


def test_the_script(tmp_path, monkeypatch, capsys):
    (tmp_path / "words").write_text("a b c\nd\n")
    (tmp_path / "heads").write_text("2 0 2\n0\n")
    (tmp_path / "model").write_text("")
    dictionary = Namespace(index=lambda word: 5, pad=lambda: 1)
    monkeypatch.setattr(scores, "load_parser", lambda *arguments: parsers.Parser(Model(), dictionary))
    call = ["--words", str(tmp_path / "words"), "--heads", str(tmp_path / "heads"), "--output", str(tmp_path / "out")]
    scores.main([*call, "--path", str(tmp_path / "model"), "--data", str(tmp_path)])
    written = json.loads((tmp_path / "out").read_text())
    assert written["risk"] == written["argmax"] == {"directed": 50.0, "undirected": 75.0}
    assert "right-branching" in capsys.readouterr().out
    (tmp_path / "heads").write_text("2 0\n0\n")
    with pytest.raises(SystemExit, match="heads, line 1: 2 heads of 3 words"):
        scores.main(call)


def test_heads_are_written_as_they_are_read(tmp_path, monkeypatch):
    (tmp_path / "words").write_text("a b c\n\nd\n")
    (tmp_path / "model").write_text("")
    dictionary = Namespace(index=lambda word: 5, pad=lambda: 1)
    monkeypatch.setattr(parse_sentences, "load_parser", lambda *arguments: parsers.Parser(Model(), dictionary))
    call = ["--path", str(tmp_path / "model"), "--data", str(tmp_path), "--words", str(tmp_path / "words")]
    parse_sentences.main([*call, "--output", str(tmp_path / "out")])
    assert (tmp_path / "out").read_text() == "0 1 2\n\n0\n"
