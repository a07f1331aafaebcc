"""scripts/prepare/conllu.py: words and heads of CoNLL-U, what is left out and what is refused."""

from collections import Counter

import pytest
from helpers_scripts import load_script

pytestmark = pytest.mark.usefixtures("forked_python")

conllu = load_script("prepare/conllu.py")
conllu_heads = load_script("prepare/conllu_heads.py")


def lines(*words):
    """Lines of words, each (number, form, head)."""
    return "".join(f"{number}\t{form}\t_\t_\t_\t_\t{head}\tdep\t_\t_\n" for number, form, head in words)


TREE = lines((1, "They", 2), (2, "run", 0), (3, "home", 2))
RANGE = lines(("1-2", "don't", "_"), (1, "do", 0), (2, "n't", 1), ("2.1", "go", "_"), (3, "1 000", 1))
CROSSING = lines((1, "a", 3), (2, "b", 0), (3, "c", 2), (4, "d", 1))


def read(tmp_path, text):
    path, left_out = tmp_path / "a.conllu", Counter()
    path.write_text(text, encoding="utf-8")
    return list(conllu.read_trees(str(path), left_out)), left_out


def test_words_and_heads(tmp_path):
    trees, left_out = read(tmp_path, f"# text = x\n{TREE}\n\n# y\n{RANGE}")
    assert [tree[:2] for tree in trees] == [
        (["They", "run", "home"], [2, 0, 2]),
        (["do", "n't", "1_000"], [0, 1, 1]),
    ]
    assert left_out == {"ranges": 1, "empty": 1}


@pytest.mark.parametrize(
    "heads, crossing", [([2, 0, 2], False), ([3, 0, 2, 1], True), ([0, 4, 1, 1], True), ([3, 1, 0], False), ([], False)]
)
def test_crossing_arcs(heads, crossing):
    assert conllu.Tree(["w"] * len(heads), heads, "").is_crossing() == crossing


def test_an_arc_over_the_root_word_crosses_that_of_the_root():
    assert conllu.Tree(["w"] * 3, [3, 0, 2], "").is_crossing()


@pytest.mark.parametrize(
    "text, message",
    [
        ("1\ta\n", "line 1: 2 columns with tabs between"),
        (TREE + lines((5, "x", 0)), "line 4: word '5' where 4 is due"),
        (TREE.replace("\t0\t", "\t_\t"), "line 2: '_' is no head"),
        (TREE.replace("\t0\t", "\t4\t"), "line 2: head 4, but the sentence has 3 words"),
        (TREE.replace("\t0\t", "\t1\t"), "line 1: following the heads from word 1 leads round in a circle"),
        (TREE.replace("home", "</s>"), "line 3: the word '</s>' means something else"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path, text, message):
    with pytest.raises(conllu.InputError, match="a.conllu, ") as error:
        read(tmp_path, text)
    assert message in str(error.value)


def test_everything_is_written(tmp_path, capsys):
    for name, text in (("train", TREE + "\n" + CROSSING), ("valid", TREE), ("test", CROSSING + "\n" + RANGE)):
        (tmp_path / name).write_text(text)
    call = [word for name in ("train", "valid", "test") for word in (f"--{name}", str(tmp_path / name))]
    dest = tmp_path / "out"
    conllu.main([*call, "--dest", str(dest), "--crossing", "drop"])
    said = capsys.readouterr().out
    assert "train: 1 sentences, 3 words; 1 had crossing arcs" in said and "1 sentences with crossing arcs" in said
    assert "test: 2 sentences, 7 words; 1 had crossing arcs" in said and "1 ranges of multiword tokens, 1 empty" in said
    assert (dest / "train.words").read_text() == "They run home\n"
    assert (dest / "test.heads.words").read_text() == "3 0 2 1\n0 1 1\n"
    assert (dest / "bin" / "test.heads.words").exists() and (dest / "bin" / "train.words-None.words.idx").exists()
    conllu.main([*call, "--dest", str(dest), "--lowercase"])
    assert (dest / "train.words").read_text() == "they run home\na b c d\n"
    counts = dict(line.split(" ") for line in (dest / "dict.txt").read_text().splitlines())
    assert counts["run"] == "1" and counts["n't"] == "0"


# Heads of a text that is there already


def write_heads(tmp_path, words, trees):
    (tmp_path / "words").write_text(words)
    (tmp_path / "trees").write_text(trees)
    files = {"--trees": "trees", "--words": "words", "--output": "new/heads"}
    conllu_heads.main([word for option, name in files.items() for word in (option, str(tmp_path / name))])
    return (tmp_path / "new" / "heads").read_text()


def test_heads_of_a_text_are_those_of_its_trees(tmp_path, capsys):
    assert write_heads(tmp_path, "they  run home\n\ndo n't 1_000\n", f"{TREE}\n{RANGE}") == "2 0 2\n\n0 1 1\n"
    assert capsys.readouterr().out.splitlines()[1] == "  left out: 1 ranges of multiword tokens, 1 empty nodes"


@pytest.mark.parametrize(
    "words, message",
    [
        ("they run\n", "words, line 1: 2 words, but its tree (.*trees, line 1) has 3; let the parser take words as"),
        ("they ran home\n", "words, line 1: word 2 is 'ran', but in its tree (.*trees, line 1) 'run'"),
        ("they run home\n\na\n", "words, line 3: no tree for it; .*trees ends before"),
        ("\n", "trees, line 1: no sentence for this tree; .*words ends before"),
    ],
)
def test_trees_of_another_text_are_refused(tmp_path, words, message):
    with pytest.raises(SystemExit, match=message.replace("(", r"\(").replace(")", r"\)")):
        write_heads(tmp_path, words, TREE)
    assert not (tmp_path / "new" / "heads").exists()
