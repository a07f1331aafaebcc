"""Models that select facts: their records, the page and picture of them, and the picture of several side by side."""

import json
from argparse import Namespace

import pytest
import torch

pytest.importorskip("fairseq")

from helpers_scripts import load_script

from fairseq_structattn.analysis import attention_records, export_attention
from fairseq_structattn.analysis import plot_attention as plot
from fairseq_structattn.models import MemoryNetwork
from fairseq_structattn.tasks import BabiTask

drawing = load_script("experiments/babi/draw_facts.py")
QUESTIONS = [
    {"story": ["a b", "b c a", "c"], "question": "what is a", "answer": "b", "supporting": [1, 2]},
    {"story": ["c c", "a"], "question": "where is b", "answer": "c", "supporting": [1, 2]},
]


@pytest.fixture
def task(tmp_path):
    (tmp_path / "dict.txt").write_text("".join(f"{word} 1\n" for word in "abc"))
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(one) + "\n" for one in QUESTIONS))
    made = BabiTask.setup_task(Namespace(data=str(tmp_path), max_facts=2, train_subset="train", seed=1))
    made.load_dataset("test")
    return made


def model(task, kind, seed=1):
    torch.manual_seed(seed)
    options = Namespace(fact_selection=kind, init_std=1.0, linear_start_epochs=0)
    return MemoryNetwork.build_model(options, task).eval()


def records(task, made):
    return list(export_attention.export([made], task, task.dataset("test")))


@pytest.mark.parametrize("kind", ["successive", "chain", "unary-chain"])
def test_records_tell_what_is_selected(task, kind, tmp_path):
    made = model(task, kind)
    first, second = records(task, made)
    logits, selection = made(**task.dataset("test").collater([0, 1])["net_input"])
    assert first.source == ["b c a.", "c."] and second.source == ["c c.", "a."]
    assert first.target == [first.source[fact] for fact in selection.facts[0]]
    assert first.segments == [[(fact, fact + 1)] for fact in selection.facts[0].tolist()]
    torch.testing.assert_close(torch.tensor(second.marginals), selection.distribution.marginals[1])
    # The first supporting fact is no longer in the story.
    assert first.reference == ["b c a."] and second.reference == ["c c.", "a."]
    answer = task.target_dictionary[logits[1].argmax()]
    assert second.question == f"where is b? {answer}" + ("" if answer == "c" else " (right: c)")
    path = str(tmp_path / "records.jsonl")
    attention_records.write_records(path, [first, second])
    read = list(attention_records.read_records(path))
    assert [one.question for one in read] == [first.question, second.question]
    plot.main(["--records", path, "--output", str(tmp_path / "page.html")])
    assert "what is a? " in (tmp_path / "page.html").read_text(encoding="utf-8")
    pytest.importorskip("matplotlib")
    plot.main(["--records", path, "--output", str(tmp_path / "picture.png")])
    assert (tmp_path / "picture.png").stat().st_size > 1000


def test_several_models_and_texts_of_translations_are_refused(task, monkeypatch):
    made = model(task, "chain")
    with pytest.raises(attention_records.InputError, match="2 models"):
        list(export_attention.export([made, made], task, task.dataset("test")))
    monkeypatch.setattr(export_attention, "load_models", lambda *given: ([made], task))
    options = ["--path", "x", "--data", "y", "--output", "z", "--source", "text"]
    with pytest.raises(attention_records.InputError, match="--source text: of translations only"):
        export_attention.records_of(export_attention.parse_arguments(options))


def test_models_are_drawn_side_by_side(task, monkeypatch, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    found = {kind: records(task, model(task, kind)) for kind in ("successive", "chain")}
    monkeypatch.setattr(drawing, "records_of", lambda path, *given: found[path.rpartition("/")[2]])
    given = ["--data", str(tmp_path), "--output", str(tmp_path / "facts.png")]
    for kind in found:
        (tmp_path / kind).write_text("")
        given += ["--model", kind, str(tmp_path / kind)]
    drawing.main([*given, "--question", "1"])
    assert (tmp_path / "facts.png").stat().st_size > 1000
    assert f"question 1, {found['successive'][1].question}" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        drawing.main([*given, "--question", "2"])
    assert "--question 2: no such question; there are 2" in capsys.readouterr().err
    figure = drawing.draw([drawing.Selected(kind, one[0]) for kind, one in found.items()])
    labels = figure.axes[0].get_yticklabels()
    assert [label.get_text() for label in labels] == ["b c a.", "c."]
    assert [label.get_fontweight() for label in labels] == ["bold", "normal"]
    assert [len(axes.patches) for axes in figure.axes] == [2, 2]


def test_the_question_that_shows_a_difference_is_found():
    def asked(target, answer=""):
        return Namespace(target=target, reference=["a", "b"], question=f"what? x{answer}")

    other = [asked(["a", "b"]), asked(["b", "a"]), asked(["b", "b"])]
    last = [asked(["a", "b"]), asked(["a", "b"], " (right: y)"), asked(["a", "b"])]
    assert drawing.telling([other, last]) == 2 and drawing.telling([last, last]) == 0
    assert drawing.telling([last, other, last]) == 0
