"""analysis/plot_attention.py: which sentences are shown, in which form, and what is said when none are."""

import sys

import pytest
from made_records import record, records, words

from fairseq_structattn.analysis import plot_attention


@pytest.fixture
def written(tmp_path):
    """Two translations each of the sentences 0 to 4."""
    path = tmp_path / "attention.jsonl"
    made = (record(i, words(f"source{i}"), words(f"target{i}"), rank=rank) for i in range(5) for rank in range(2))
    assert records.write_records(str(path), made) == 10
    return path


def run(path, output, *options):
    plot_attention.main(["--records", str(path), "--output", str(output), *options])


def test_a_picture_shows_three_sentences_unless_told_otherwise(written, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    run(written, tmp_path / "a.svg")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "sentence 0, score -0.500: source0 -> target0"
    assert lines[1] == "sentence 0, hypothesis 2, score -0.500: source0 -> target0"
    assert len(lines) == 7 and lines[6] == f"written: {tmp_path / 'a.svg'}"
    run(written, tmp_path / "b.svg", "--ids", "4,1")
    assert [line.split(",")[0] for line in capsys.readouterr().out.splitlines()[:-1]] == ["sentence 4"] * 2 + [
        "sentence 1"
    ] * 2


def test_a_page_shows_all_of_them(written, tmp_path):
    run(written, tmp_path / "all.html")
    run(written, tmp_path / "two.html", "--sentences", "2")
    page, short = ((tmp_path / name).read_text(encoding="utf-8") for name in ("all.html", "two.html"))
    assert all(f"source{i}" in page for i in range(5))
    assert "source1" in short and "source2" not in short
    assert sorted(path.name for path in tmp_path.iterdir()) == ["all.html", "attention.jsonl", "two.html"]


def test_a_page_needs_no_matplotlib(written, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    run(written, tmp_path / "page.html")
    assert (tmp_path / "page.html").exists()


@pytest.mark.parametrize(
    "options, message",
    [
        (["--ids", "3,7"], "--ids 7: no such sentence.*0 to 4"),
        (["--output", "a.doc"], "--output a.doc.*png.*html"),
    ],
)
def test_impossible_wishes_are_refused_by_name(written, tmp_path, options, message):
    pytest.importorskip("matplotlib")
    with pytest.raises(SystemExit, match=message):
        run(written, tmp_path / "a.png", *options)


@pytest.mark.parametrize("option, known", [("--tokenize", "13a"), ("--post-process", "no such way")])
def test_unknown_ways_to_make_words_are_refused(tmp_path, option, known):
    pytest.importorskip("fairseq")
    made = [record(0, ["a"], ["b"], reference=["c"])]
    records.write_records(str(tmp_path / "a.jsonl"), made)
    with pytest.raises(SystemExit, match=f"{option} nonsense: .*{known}"):
        run(tmp_path / "a.jsonl", tmp_path / "page.html", option, "nonsense")
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


def test_files_that_hold_nothing_are_refused(tmp_path):
    with pytest.raises(SystemExit, match="nowhere.jsonl: no such file.*structattn-export writes one"):
        run(tmp_path / "nowhere.jsonl", tmp_path / "a.html")
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(SystemExit, match="no sentences"):
        run(tmp_path / "empty.jsonl", tmp_path / "a.html")
    with pytest.raises(SystemExit, match="no sentences"):
        run(tmp_path / "empty.jsonl", tmp_path / "a.html", "--ids", "0")


@pytest.mark.parametrize(
    "options, numbers", [([], "0 1 2"), (["--ids", "3,1"], "3 1"), (["--sentences", "9"], "0 1 2 3")]
)
def test_sentences_are_translated_on_the_way(options, numbers, monkeypatch, tmp_path, capsys):
    pytest.importorskip("fairseq")
    pytest.importorskip("matplotlib")
    from building import DICTIONARY, build, sentences
    from fairseq.data import LanguagePairDataset
    from fairseq.tasks.translation import TranslationConfig, TranslationTask

    from fairseq_structattn.analysis import export_attention

    lengths = [3, 5, 1, 4]
    dataset = LanguagePairDataset(sentences(lengths), lengths, DICTIONARY, shuffle=False)
    task = TranslationTask(TranslationConfig(), DICTIONARY, DICTIONARY)
    monkeypatch.setattr(export_attention, "check_model", lambda *given: None)
    monkeypatch.setattr(export_attention, "load_models", lambda *given, **_: ([build("structattn_rnn_crf")], task))
    monkeypatch.setattr(export_attention, "load_dataset", lambda *given: dataset)
    arguments = ["--path", "a.pt", "--data", "bin", "--beam", "2", "--output", str(tmp_path / "a.svg")]
    plot_attention.main([*arguments, *options])
    printed = [line.split(",")[0] for line in capsys.readouterr().out.splitlines() if line.startswith("sentence")]
    assert printed == [f"sentence {number}" for number in numbers.split()]


def test_missing_matplotlib_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SystemExit, match="extra `plot`"):
        plot_attention.main(["--path", "a.pt", "--data", "bin", "--output", "a.png"])


def test_missing_checkpoint_is_named(tmp_path):
    pytest.importorskip("fairseq")
    pytest.importorskip("matplotlib")
    with pytest.raises(SystemExit, match="--path .*nowhere.pt: no such checkpoint"):
        plot_attention.main(["--path", str(tmp_path / "nowhere.pt"), "--data", str(tmp_path), "--output", "a.png"])


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--path", "a.pt"], "--path needs --data"),
        ([], "one of the arguments --records --path is required"),
        (["--records", "a", "--ids", "1,b"], "'1,b' is not a list"),
        (["--records", "a", "--sentences", "0"], "--sentences 0"),
    ],
)
def test_wrong_commands_are_explained(arguments, message, capsys):
    with pytest.raises(SystemExit):
        plot_attention.main([*arguments, "--output", "a.png"])
    assert message in capsys.readouterr().err
