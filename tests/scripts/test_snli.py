"""scripts/prepare/snli.py: three formats of the same pairs, what is left out and what is refused."""

import json

import pytest
from helpers_scripts import load_script

pytestmark = pytest.mark.usefixtures("forked_python")

snli = load_script("prepare/snli.py")
PAIRS = [
    ("( ( A dog ) ( runs . ) )", "( A ( dog sleeps ) )", "contradiction"),
    ("( A cat )", "( An animal )", "entailment"),
    ("( A -LRB- )", "( Dogs run )", "-"),
]
PLAIN = [("A dog runs .", "A dog sleeps"), ("A cat", "An animal"), ("A -LRB-", "Dogs run")]


def write_jsonl(path, pairs=PAIRS):
    path.write_text("".join(json.dumps(dict(zip(snli.FIELDS, pair), pairID="x")) + "\n" for pair in pairs))
    return str(path)


def write_table(path, pairs=PAIRS):
    names = ("gold_label", "captionID", "sentence1_binary_parse", "sentence2_binary_parse")
    rows = [names] + [(label, "id", first, second) for first, second, label in pairs]
    path.write_text("".join("\t".join(row) + "\n" for row in rows))
    return str(path)


def write_parallel(folder, pairs=PAIRS):
    for name, place in (("s1", 0), ("s2", 1)):
        (folder / name).write_text("".join(snli.leaves(pair[place]) + " \n" for pair in pairs))
    (folder / "labels").write_text("".join(pair[2] + "\n" for pair in pairs))
    return ",".join(str(folder / name) for name in ("s1", "s2", "labels"))


@pytest.mark.parametrize("kind", ["jsonl", "table", "parallel"])
def test_three_formats_of_the_same_pairs(tmp_path, kind):
    source = {
        "jsonl": lambda: write_jsonl(tmp_path / "a.jsonl"),
        "table": lambda: write_table(tmp_path / "a.txt"),
        "parallel": lambda: write_parallel(tmp_path),
    }[kind]()
    pairs = snli.read_pairs(source)
    assert [pair[:2] for pair in pairs] == PLAIN
    assert [pair.label for pair in snli.labelled(pairs, None)] == ["contradiction", "entailment"]


def test_everything_is_written(tmp_path, capsys):
    train, dest = write_jsonl(tmp_path / "train.jsonl"), tmp_path / "out"
    test = write_table(tmp_path / "test.txt", [("( Five mice )", "( A dog )", "entailment")] * 2)
    valid = write_parallel(tmp_path)
    call = [
        "--train",
        train,
        "--valid",
        valid,
        "--test",
        test,
        "--dest",
        str(dest),
        "--test-rows",
        "0:1",
        "--lowercase",
    ]
    snli.main(call)
    assert "train: 2 pairs, 1 without a label left out" in capsys.readouterr().out
    assert (dest / "train.premise").read_text() == "a dog runs .\na cat\n"
    assert (dest / "test.hypothesis").read_text() == "a dog\n"
    assert (dest / "bin" / "train.label").read_text() == "contradiction\nentailment\n"
    assert (dest / "bin" / "dict.label.txt").read_text() == "contradiction 1\nentailment 1\n"
    assert "mice" not in (dest / "dict.txt").read_text()
    assert (dest / "bin" / "test.premise-hypothesis.premise.idx").exists()
    snli.main(call + ["--all-words"])
    assert "mice 0\n" in (dest / "dict.txt").read_text()


@pytest.mark.parametrize(
    "name, text, message",
    [
        ("a.jsonl", '{"gold_label": "x"}\n', "a.jsonl, line 1: no text under sentence1_binary_parse"),
        ("a.jsonl", "{\n", "a.jsonl, line 1: not JSON"),
        ("a.txt", "gold_label\tsentence1\n", "a.txt, line 1: no column sentence1_binary_parse"),
        ("a.txt", "\t".join(snli.FIELDS) + "\n( a )\n", "a.txt, line 2: 1 columns, the first line has 3"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(snli.InputError) as error:
        snli.read_pairs(str(tmp_path / name))
    assert message in str(error.value)


def test_labels_and_words_are_checked(tmp_path):
    pairs = snli.read_pairs(write_jsonl(tmp_path / "a.jsonl"))
    with pytest.raises(snli.InputError, match="a.jsonl, line 2: 'entailment' is no label; those .* are contradiction;"):
        snli.labelled(pairs, ["contradiction"])
    pairs = snli.read_pairs(write_jsonl(tmp_path / "a.jsonl", [("( <pad> )", "( a )", "x")]))
    with pytest.raises(snli.InputError, match="line 1: the word <pad> means something else"):
        snli.labelled(pairs, None)


def test_files_of_unequal_length(tmp_path):
    source = write_parallel(tmp_path)
    (tmp_path / "labels").write_text("x\n")
    with pytest.raises(snli.InputError, match="unequal length: .*s1 3, .*s2 3, .*labels 1 lines"):
        snli.read_pairs(source)
    with pytest.raises(snli.InputError, match="2 files; name one, or premises"):
        snli.read_pairs("a,b")


@pytest.mark.parametrize("rows", ["3", "2:2", "1:4"])
def test_rows_that_are_not_there(rows):
    with pytest.raises(snli.InputError, match=f"--train-rows {rows}: "):
        snli.parse_rows(rows, "--train-rows", 3)
    assert snli.parse_rows("1:3", "--train-rows", 3) == (1, 3)
