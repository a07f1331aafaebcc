"""analysis/export_pairs.py: two trees, their alignment and both labels, against the model itself."""

from argparse import Namespace

import numpy as np
import pytest
import torch
from building_pairs import HYPOTHESIS, PREMISE, TASK, WORDS, build

from fairseq_structattn.analysis import export_pairs as pairs
from fairseq_structattn.analysis.attention_records import read_records, write_records
from fairseq_structattn.tasks.sentence_pairs import Labels, SentencePairs


@pytest.fixture
def dataset(tmp_path):
    sides = [[torch.tensor(row, dtype=torch.long) for row in rows] for rows in (PREMISE, HYPOTHESIS)]
    sizes = np.array([[len(row) for row in rows] for rows in zip(*sides)])
    labels = tmp_path / "labels"
    labels.write_text("a\nc\nb\n")
    return SentencePairs(*sides, sizes, Labels(str(labels), TASK.label_dictionary), WORDS.pad(), (None, None))


def test_records_are_what_the_model_sees(dataset, tmp_path):
    model = build("structattn_decomposable_tree")
    found = list(pairs.export(model, TASK, dataset, [0, 1, 2]))
    assert [one.label for one in found] == ["a", "c", "b"]
    one = found[0]
    assert one.source == [WORDS[token] for token in PREMISE[0]] + ["<s>"] and len(one.target) == 3
    scores, extra = model(*(torch.tensor([rows[0]]) for rows in (PREMISE, HYPOTHESIS)))
    assert one.predicted == "abc"[scores.argmax()] and one.score == round(scores.log_softmax(-1).max().item(), 6)
    alignment = extra["attn"][1][0]
    assert one.weights[0][0] == pytest.approx(alignment[1, 1].item(), abs=1e-4)
    assert one.weights[2][4] == pytest.approx(alignment[0, 0].item(), abs=1e-4)
    assert one.weights[1][4] == pytest.approx(alignment[2, 0].item(), abs=1e-4)
    for tree, heads in zip((one.tree, one.target_tree), extra["source_attention"]):
        assert tree.heads == heads.argmax[0].argmax(0).tolist()
        assert np.allclose(tree.marginals, heads.marginals[0].tolist(), atol=1e-4)
    assert found[1].target == ["<s>"] and found[1].target_tree.heads == []
    write_records(str(tmp_path / "pairs.jsonl"), found)
    assert list(read_records(str(tmp_path / "pairs.jsonl"))) == found


def test_a_model_without_a_parser_has_no_trees(dataset):
    (one,) = pairs.export(build("structattn_decomposable"), TASK, dataset, [2])
    assert one.tree is None and one.target_tree is None and len(one.weights) == 4


def test_the_script(dataset, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(pairs, "check_model", lambda *arguments: None)
    monkeypatch.setattr(
        pairs, "load_models", lambda *arguments, **more: ([build("structattn_decomposable_flat")], TASK)
    )
    monkeypatch.setattr(pairs, "load_dataset", lambda *arguments: dataset)
    call = ["--path", "x", "--data", "y", "--output", str(tmp_path / "out")]
    pairs.main([*call, "--ids", "2,0"])
    assert [one.id for one in read_records(str(tmp_path / "out"))] == [2, 0]
    with pytest.raises(SystemExit, match="--ids 3: the subset has the pairs 0 to 2"):
        pairs.main([*call, "--ids", "3"])
    monkeypatch.setattr(pairs, "load_models", lambda *arguments, **more: ([None], Namespace()))
    with pytest.raises(SystemExit, match="no model of pairs of sentences; export_attention.py is for others"):
        pairs.main(call)
