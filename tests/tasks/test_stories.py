"""Stories as a data set: what of them is kept, how batches look, and errors by file and line."""

import json

import pytest
import torch
from fairseq.data import Dictionary

from fairseq_structattn.tasks.stories import NO_FACT, Question, StoryDataset, read_questions

FIRST = Question(["mary got milk", "john left", "mary went home"], "where is the milk", "home", [1, 3])
SECOND = Question(["john left"], "where is john", "nowhere", [1])


@pytest.fixture
def dictionary():
    made = Dictionary()
    for word in "mary got milk john left went home where is the".split():
        made.add_symbol(word)
    return made


def words(dictionary, tokens):
    return [dictionary[token] for token in tokens if token != dictionary.pad()]


def test_batches_hold_the_last_facts_and_where_the_supporting_ones_are(dictionary):
    data = StoryDataset([FIRST, SECOND], dictionary, max_facts=2)
    batch = data.collater([data[0], data[1]])
    facts = batch["net_input"]["facts"]
    assert facts.shape == (2, 2, 3) and batch["net_input"]["lengths"].tolist() == [2, 1]
    assert words(dictionary, facts[0, 1]) == ["mary", "went", "home"] and words(dictionary, facts[1, 1]) == []
    assert words(dictionary, batch["net_input"]["question"][1]) == ["where", "is", "john"]
    assert batch["target"].tolist() == [dictionary.index("home"), dictionary.unk()]
    # The first fact is cut off; the third is the second that is left.
    assert batch["supporting"].tolist() == [[NO_FACT, 1], [0, NO_FACT]]
    assert batch["supporting_lengths"].tolist() == [2, 1]
    assert batch["nsentences"] == batch["ntokens"] == 2 and data.sizes.tolist() == [2, 1]
    alone = data.collater([1])["net_input"]
    assert alone["facts"].shape == (1, 1, 2) and alone["question"].shape == (1, 3)


def test_training_batches_are_others_in_each_epoch_and_the_same_for_a_seed(dictionary):
    def order(epoch, **options):
        data = StoryDataset([SECOND] * 50, dictionary, 9, **options)
        data.set_epoch(epoch)
        return data.ordered_indices().tolist()

    assert order(1) == order(2) == list(range(50))
    shuffled = order(1, shuffle=True)
    assert sorted(shuffled) == list(range(50)) and shuffled == order(1, shuffle=True)
    assert len({tuple(one) for one in (shuffled, order(2, shuffle=True), order(1, shuffle=True, seed=2))}) == 3
    assert not StoryDataset([SECOND], dictionary, 9, shuffle=True).can_reuse_epoch_itr_across_epochs


GOOD = SECOND._asdict()
WRONG = {
    "{": "not JSON",
    "[]": "not an object with the fields story, question, answer, supporting",
    json.dumps({**GOOD, "more": 1}): "not an object with the fields",
    json.dumps({**GOOD, "story": []}): "story is []",
    json.dumps({**GOOD, "story": ["a", " "]}): "story is ['a', ' ']",
    json.dumps({**GOOD, "story": "a"}): "story is 'a'",
    json.dumps({**GOOD, "question": ""}): "question is ''",
    json.dumps({**GOOD, "answer": 3}): "answer is 3",
    json.dumps({**GOOD, "supporting": [2]}): "supporting is [2]; it must be a list of numbers from 1 to 1",
    json.dumps({**GOOD, "supporting": [True]}): "supporting is [True]",
    json.dumps({**GOOD, "steps": 0}): "steps is 0; it must be a number from 1 on",
}


@pytest.mark.parametrize("line", WRONG)
def test_wrong_lines_are_named(tmp_path, line):
    path = tmp_path / "train.jsonl"
    path.write_text(json.dumps(GOOD) + "\n" + line + "\n")
    with pytest.raises(ValueError) as raised:
        read_questions(str(path))
    assert str(raised.value).startswith(f"{path}, line 2: {WRONG[line]}")


def test_files_are_read_and_empty_ones_refused(tmp_path):
    path = tmp_path / "train.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(FIRST._asdict()).encode() + b"\r\n")
    assert read_questions(str(path)) == [FIRST]
    path.write_text("")
    with pytest.raises(ValueError, match="no questions"):
        read_questions(str(path))


def test_steps_are_part_of_batches_where_questions_have_them(tmp_path, dictionary):
    assert "steps" not in StoryDataset([FIRST], dictionary, 9).collater([0])["net_input"]
    path = tmp_path / "train.jsonl"
    path.write_text("".join(json.dumps(one._replace(steps=2)._asdict()) + "\n" for one in (FIRST, SECOND)))
    data = StoryDataset(read_questions(str(path)), dictionary, 9)
    assert data.collater([1, 0])["net_input"]["steps"].tolist() == [2, 2]
    with path.open("a") as file:
        file.write(json.dumps(GOOD))
    with pytest.raises(ValueError, match="line 3: no steps, which other lines have"):
        read_questions(str(path))


def test_padding_of_a_batch_is_the_dictionarys(dictionary):
    batch = StoryDataset([FIRST, SECOND], dictionary, 9).collater([0, 1])["net_input"]
    assert torch.equal(batch["facts"][1, 1:], torch.full((2, 3), dictionary.pad()))
