"""All tools and scripts but the benchmarks: they check what they are given before they begin; errors look alike."""

import gzip
import importlib
import json
import os
import re

import pytest
from helpers_scripts import ROOT, SCRIPTS, load_script
from made_records import record, records, words

PACKAGE = ROOT / "fairseq_structattn"
# Where each lies, by a name: analysis/… are the package's.
ALL = {
    path.relative_to(root).as_posix(): path
    for root, folder in ((PACKAGE, "analysis"), (SCRIPTS, "experiments"), (SCRIPTS, "prepare"))
    for path in sorted((root / folder).rglob("*.py"))
    if re.search(r"^def main\(", path.read_text(encoding="utf-8"), re.MULTILINE)
}
FILTERS = {"analysis/progress.py"}  # which are given no files
SENTENCES = ["one two three four five", "six seven eight nine ten"]
FAIRSEQ = ("plot_attention", "export_", "average", "draw_trees", "induced_trees", "parallel_corpus", "parse_sentences")
BINARISING = ("prepare/conllu.py", "prepare/parallel_corpus.py", "prepare/snli.py")

# IN/name is an input (of parallel corpora a prefix), OUT the output.
COMMANDS = {
    "analysis/attachment_scores.py": "--words IN/text.en --heads IN/heads --output OUT",
    "analysis/average_checkpoints.py": "IN/checkpoint --output OUT.pt",
    "analysis/bleu_by_length.py": (
        "--source IN/text.en --reference IN/text.de --system a IN/text.de --system b IN/generated --output OUT"
    ),
    "analysis/export_attention.py": "--path IN/checkpoint --data DATA --output OUT",
    "analysis/export_pairs.py": "--path IN/checkpoint --data DATA --output OUT",
    "analysis/length_to_failure.py": "--subset a IN/generated IN/text.de --output OUT",
    "analysis/parse_sentences.py": "--path IN/checkpoint --data DATA --words IN/text.en --output OUT",
    "analysis/plot_attention.py": "--records IN/records --output OUT.html",
    "analysis/results.py": (
        "score --results OUT --system a --setting b --split test --bleu IN/bleu --train-log IN/log --command c --seed 1"
    ),
    "analysis/score_bleu.py": "--generated IN/generated --reference IN/text.de --output OUT",
    "analysis/word_alignment.py": "--records IN/records --output OUT",
    "experiments/long_sentences/report.py": "IN/long --dest OUT/",
    "experiments/tree_transduction/draw_trees.py": "DATA --model a IN/checkpoint --output OUT.png",
    "experiments/tree_transduction/induced_trees.py": "IN/checkpoint DATA --output OUT",
    "experiments/tree_transduction/report.py": "IN/trees --dest OUT/",
    "prepare/babi.py": "--corpus DATA --task 2 --dest OUT/",
    "prepare/conllu.py": "--train IN/conllu --valid IN/conllu --test IN/conllu --dest OUT/",
    "prepare/conllu_heads.py": "--trees IN/conllu --words IN/word --output OUT",
    "prepare/join_sentences.py": "--input IN/text --languages en de --sizes 2 --output OUT",
    "prepare/number_words.py": "--train 9 --valid 2 --test 2 --dest OUT/",
    "prepare/parallel_corpus.py": (
        "--source-lang en --target-lang de --train IN/text --valid IN/text --test IN/text --dest OUT/"
    ),
    "prepare/snli.py": "--train IN/pairs.jsonl --valid IN/pairs.jsonl --test IN/pairs.jsonl --dest OUT/",
    "prepare/tree_transduction.py": "--train 9 --valid 2 --test 2 --dest OUT/",
}
BROKEN = {
    "missing": None,
    "not UTF-8": b"H-0\t-1\tcaf\xe9\n",
    "UTF-16": "one\ntwo\n".encode("utf-16"),
    "cut gzip": gzip.compress(b"H-0\t-1\tone two\n" * 99)[:-9],
}


def test_every_script_is_known_here_and_reports_errors_in_one_way():
    assert {name for name in ALL if not name.startswith("experiments")} - FILTERS <= set(COMMANDS) <= set(ALL)
    for name, path in ALL.items():
        text = path.read_text(encoding="utf-8")
        assert "@command\ndef main(arguments=None)" in text and "sys.exit(" not in text, name


def write(path, *lines):
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")


@pytest.fixture
def given(tmp_path):
    """Inputs that are as they should be."""
    folder = tmp_path / "in"
    for name in ("in", "in/long", "in/trees", "data"):
        (tmp_path / name).mkdir()
    for language in ("en", "de"):
        write(folder / f"text.{language}", *SENTENCES)
    write(folder / "generated", *(f"H-{i}\t-1\t{line}\nD-{i}\t-1\t{line}" for i, line in enumerate(SENTENCES)))
    records.write_records(str(folder / "records"), [record(0, words("a b"), words("c"))])
    write(folder / "bleu", '{"bleu": 1.0, "signature": "x"}')
    epoch = {"epoch": 1, "train_wps": "1", "train_train_wall": "1", "valid_bleu": "1", "valid_nll_loss": "1"}
    write(folder / "log", json.dumps(epoch))
    write(folder / "checkpoint", "no checkpoint")
    write(folder / "heads", *["0 1 1 3 3"] * len(SENTENCES))
    write(folder / "word", "one")
    write(folder / "conllu", "1\tone\t_\t_\t_\t_\t0\troot\t_\t_")
    pair = {"sentence1_binary_parse": "( one two )", "sentence2_binary_parse": "( one )", "gold_label": "neutral"}
    write(folder / "pairs.jsonl", json.dumps(pair))
    write(tmp_path / "data" / "dict.en.txt", "one 1")
    for split in ("train", "test"):
        story = ("1 Mary went home.", "2 Where is Mary?\thome\t1")
        write(tmp_path / "data" / f"qa2_two-supporting-facts_{split}.txt", *story, *story)
    return tmp_path


def arguments(name, given, replaced=None, output=None):
    """The command, with one of its inputs or its output replaced."""
    output = str(output or given / "new" / "folder" / "out")
    made, inputs = [], 0
    for part in COMMANDS[name].split():
        if part.startswith("IN/"):
            part = replaced[1] if replaced and replaced[0] == inputs else str(given / "in" / part[3:])
            inputs += 1
        elif part == "DATA":
            part = str(given / "data")
        made.append(re.sub(r"^OUT/?", lambda match: output, part))
    return made


def load(name):
    if PACKAGE in ALL[name].parents:
        return importlib.import_module("fairseq_structattn." + name[: -len(".py")].replace("/", "."))
    return load_script(name)


def run(name, given, monkeypatch, **changes):
    if any(script in name for script in FAIRSEQ):
        pytest.importorskip("fairseq")
    module = load(name)
    if name in BINARISING:
        monkeypatch.setattr(module, "binarise", lambda *options: None)
    module.main(arguments(name, given, **changes))


def assert_refused(name, given, capsys, monkeypatch, named, **changes):
    with pytest.raises(SystemExit) as ended:
        run(name, given, monkeypatch, **changes)
    printed = capsys.readouterr().err
    assert ended.value.code == 2
    errors = [line for line in printed.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and named in errors[0] and "Traceback" not in printed
    assert not [path for path in (given / "new").rglob("*") if path.is_file()]


INPUTS = [(name, place) for name in COMMANDS for place in range(COMMANDS[name].count("IN/"))]


@pytest.mark.parametrize("kind", BROKEN)
@pytest.mark.parametrize("name, place", INPUTS)
def test_broken_inputs_are_named(given, capsys, monkeypatch, name, place, kind):
    if BROKEN[kind] is not None:
        for ending in ("", ".en", ".de"):
            (given / f"broken{ending}").write_bytes(BROKEN[kind])
    assert_refused(name, given, capsys, monkeypatch, "broken", replaced=(place, str(given / "broken")))


@pytest.mark.parametrize("name, place", INPUTS)
def test_folders_are_no_inputs(given, capsys, monkeypatch, name, place):
    for ending in ("", ".en", ".de"):
        (given / f"folder{ending}").mkdir()
    assert_refused(name, given, capsys, monkeypatch, "folder", replaced=(place, str(given / "folder")))


@pytest.mark.parametrize("name", COMMANDS)
def test_outputs_are_checked_before_the_work(given, capsys, monkeypatch, name):
    write(given / "file", "")
    assert_refused(name, given, capsys, monkeypatch, "file", output=given / "file" / "out")
    if COMMANDS[name].endswith("OUT/"):
        assert_refused(name, given, capsys, monkeypatch, "file: a file, not a folder", output=given / "file")
        return
    for ending in ("", ".html", ".png", ".pt", ".en"):
        (given / f"there{ending}").mkdir()
    assert_refused(name, given, capsys, monkeypatch, "there", output=given / "there")


# Checkpoints and the folders of runs are not to be had here.
QUICK = [name for name in COMMANDS if "checkpoint" not in COMMANDS[name] and not name.startswith("experiments")]


@pytest.mark.parametrize("name", QUICK)
def test_outputs_come_into_new_folders(given, monkeypatch, name):
    if name == "prepare/number_words.py":
        pytest.importorskip("num2words")
    run(name, given, monkeypatch)
    made = [path.name for path in (given / "new").rglob("*") if path.is_file()]
    assert made and not any(made_name.endswith(".tmp") for made_name in made)


def test_inputs_may_be_packed_and_have_a_byte_order_mark(given, monkeypatch):
    packed = "analysis/bleu_by_length.py", "analysis/word_alignment.py", "prepare/join_sentences.py"
    for path in filter(os.path.isfile, (given / "in").iterdir()):
        path.write_bytes(gzip.compress(b"\xef\xbb\xbf" + path.read_bytes()))
    for name in packed:
        run(name, given, monkeypatch, output=given / "new" / os.path.basename(name))
    scores = json.loads((given / "new" / "bleu_by_length.py").read_text(encoding="utf-8"))
    assert {row["bleu"] for row in scores["rows"]} == {100.0}
    assert (given / "new" / "word_alignment.py").read_text() == "1-0\n"
    assert (given / "new" / "join_sentences.py.en").read_text(encoding="utf-8") == " ".join(SENTENCES) + "\n"
