"""analysis/conllu.py: trees of records, against the format's description."""

import re

import pytest

from fairseq_structattn.analysis.attention_records import AttentionRecord, RecordError, SourceTree
from fairseq_structattn.analysis.conllu import sentence, with_conllu


def record(words, heads, number=0, rank=0):
    tree = None if heads is None else SourceTree(heads, [])
    return AttentionRecord(number, rank, 0.0, False, words + ["</s>"], ["</s>"], [], tree=tree)


def test_a_tree_with_two_roots():
    assert sentence(record(["not", "(", "a"], [0, 3, 0], number=4)) == (
        "# sent_id = 4\n"
        "# text = not ( a\n"
        "1\tnot\t_\t_\t_\t_\t0\troot\t_\t_\n"
        "2\t(\t_\t_\t_\t_\t3\tdep\t_\t_\n"
        "3\ta\t_\t_\t_\t_\t0\troot\t_\t_\n"
        "\n"
    )


def check_format(text):
    """The rules of the format that do not concern names of relations and features; returns the number of sentences."""
    assert text == "" or text.endswith("\n\n") and "\n\n\n" not in text
    blocks = text.split("\n\n")[:-1]
    for block in blocks:
        lines = block.split("\n")
        comments = [line for line in lines if line.startswith("#")]
        assert lines[: len(comments)] == comments and re.match(r"# sent_id = \S+$", comments[0])
        columns = [line.split("\t") for line in lines[len(comments) :]]
        assert columns and all(len(row) == 10 and all(row) for row in columns)
        assert [row[0] for row in columns] == [str(number) for number in range(1, len(columns) + 1)]
        assert all((row[7] == "root") == (row[6] == "0") and 0 <= int(row[6]) <= len(columns) for row in columns)
        assert comments[1] == "# text = " + " ".join(row[1] for row in columns)
    return len(blocks)


def test_each_sentence_is_written_once_and_empty_ones_are_left_out(tmp_path):
    path = tmp_path / "new" / "trees.conllu"
    records = [record(["#", "b"], [2, 0], 0), record(["#", "b"], [2, 0], 0, rank=1), record([], [], 1)]
    records.append(record(["c"], [0], 2))
    passed = list(with_conllu(records, str(path)))
    assert passed == records
    text = path.read_text(encoding="utf-8")
    assert check_format(text) == 2 and re.findall("sent_id = (.*)", text) == ["0", "2"]


def test_nothing_is_half_written(tmp_path):
    path = tmp_path / "trees.conllu"
    records = with_conllu([record(["a"], [0]), record(["b"], [0], 1)], str(path))
    next(records)
    records.close()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("heads, message", [(None, "needs a single model.*--source-attention"), ([2, 1], "no tree")])
def test_what_is_no_tree_is_refused(heads, message):
    with pytest.raises(RecordError, match=f"sentence 6: .*{message}"):
        sentence(record(["a", "b"], heads, number=6))
