"""analysis/attention_records.py: what is written is read again, and what is no record is named by line."""

import json

import pytest

from fairseq_structattn.analysis import attention_records

AttentionRecord, RecordError = attention_records.AttentionRecord, attention_records.RecordError


def record(number=0, **fields):
    given = {"id": number, "rank": 0, "score": -0.5, "forced": False, "source": ["猫", "</s>"], "target": ["</s>"]}
    return AttentionRecord(**{**given, "weights": [[0.25, 0.75]], **fields})


def test_records_are_read_as_they_were_written(tmp_path):
    path = str(tmp_path / "new" / "records.jsonl")
    tree = attention_records.SourceTree([0], [[1.0], [0.0]])
    full = record(1, rank=2, reference=["cat"], marginals=[[0.5, 1.5]], segments=[[[0, 2]]], trees=[[0]], tree=tree)
    assert attention_records.write_records(path, [record(), full]) == 2
    assert list(attention_records.read_records(path)) == [record(), full]
    first = (tmp_path / "new" / "records.jsonl").read_text(encoding="utf-8").splitlines()[0]
    assert "猫" in first and set(json.loads(first)) == {field.name for field in attention_records.fields(record())}


def test_nothing_is_half_written(tmp_path):
    path = tmp_path / "records.jsonl"
    attention_records.write_records(str(path), [record(7)])

    def interrupted():
        yield record(8)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        attention_records.write_records(str(path), interrupted())
    assert [one.id for one in attention_records.read_records(str(path))] == [7]


def test_records_stream(tmp_path):
    alive = []

    class Counted(AttentionRecord):
        def __del__(self):
            alive.remove(self.id)

    def many():
        for number in range(50):
            alive.append(number)
            yield Counted(**vars(record(number)))
            assert len(alive) <= 2

    assert attention_records.write_records(str(tmp_path / "records.jsonl"), many()) == 50


def test_numbers_that_json_lacks_are_refused(tmp_path):
    path = tmp_path / "records.jsonl"
    with pytest.raises(RecordError, match="sentence 3, rank 1: .*not a number.*precision"):
        attention_records.write_records(str(path), [record(3, rank=1, weights=[[float("nan"), 1.0]])])
    assert not path.exists()


def test_missing_file_is_named(tmp_path):
    for read in (attention_records.read_records, lambda path: attention_records.check_records("--records", path)):
        with pytest.raises(attention_records.InputError, match="nowhere.jsonl: no such file"):
            list(read(str(tmp_path / "nowhere.jsonl")))


RECORD = '{"id": 1, "source": ["a"], "target": ["b"], "weights": [[1.0]]'


@pytest.mark.parametrize(
    "line, message",
    [
        ('{"id": 1, "source', "line 2: not JSON .*cut off"),
        ("[1, 2]", "line 2: not a record"),
        ('{"id": 1, "source": [], "target": []}', "line 2: not a record.* weights"),
        ('{"id": 1, "source": ["a"], "target": ["b"], "weights": [[1.0, 0.0]]}', "line 2: weights is .*, not 1 rows"),
        (RECORD + ', "weights": null}', "line 2: weights is null, not 1 rows"),
        (RECORD + ', "weights": [[null]]}', "line 2: weights is ..null.., not 1 rows"),
        (RECORD + ', "id": null}', "line 2: id is null, not a whole number"),
        (RECORD + ', "source": [1]}', "line 2: source is .1., not a list of tokens"),
        (RECORD + ', "source": ["\\ud800"]}', "line 2: source is .*, not a list of tokens"),
        (RECORD + ', "score": null}', "line 2: score is null, not a number"),
        (RECORD + ', "marginals": [[]]}', "line 2: marginals is .*, not null or 1 rows"),
        (RECORD + ', "segments": [[[0, 2]]]}', "line 2: segments is .*runs within 1 source"),
        (RECORD + ', "trees": [[2]]}', "line 2: trees is .*lists of heads"),
        (RECORD + ', "tree": {}}', "line 2: tree is .*heads and the marginals"),
        ('{"id": 1, "source": ["a"], "target": ["b"], "weights": [[1.0]], "colour": 1}', "line 2: not a record"),
    ],
)
def test_what_is_no_record_is_named_by_line(tmp_path, line, message):
    path = tmp_path / "records.jsonl"
    attention_records.write_records(str(path), [record()])
    with open(path, "a", encoding="utf-8") as file:
        file.write(line + "\n")
    with pytest.raises(RecordError, match=message):
        list(attention_records.read_records(str(path)))


def test_words_are_those_of_a_sentence_without_the_mark_behind_them():
    assert attention_records.words_of(record()) == (["猫"], [])
    assert attention_records.words_of(record(source=["猫", "<s>"])) == (["猫", "<s>"], [])
    assert attention_records.words_of(record(source=["猫", "<s>"], target=["<s>"], label="x")) == (["猫"], [])
