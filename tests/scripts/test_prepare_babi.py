"""scripts/prepare/babi.py: what becomes of the files of a task, and errors by file and line."""

import json

import pytest
from helpers_scripts import load_script

script = load_script("prepare/babi.py")
STORIES = """1 Mary got the Football there.
2 John went to the kitchen.
3 Where is the football?\tgarden\t1
4 Mary went back to the garden.
5 What is Mary carrying? \tfootball,milk\t4 1

1 The office is east of the hall.
2 How do you go from the hall to the office?\ts,e\t1
""".replace("\n", "\r\n")


@pytest.fixture
def corpus(tmp_path):
    for split in ("train", "test"):
        (tmp_path / f"qa2_two-supporting-facts_{split}.txt").write_bytes(b"\xef\xbb\xbf" + STORIES.encode())
    return tmp_path


def questions(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_files_become_questions_with_the_facts_before_them(corpus):
    script.main(["--corpus", str(corpus), "--task", "2", "--dest", str(corpus / "made")])
    facts = ["mary got the football there", "john went to the kitchen", "mary went back to the garden"]
    expected = [
        {"story": facts[:2], "question": "where is the football", "answer": "garden", "supporting": [1]},
        {"story": facts, "question": "what is mary carrying", "answer": "football,milk", "supporting": [3, 1]},
        {
            "story": ["the office is east of the hall"],
            "question": "how do you go from the hall to the office",
            "answer": "s,e",
            "supporting": [1],
        },
    ]
    assert questions(corpus / "made" / "test.jsonl") == expected
    # The last stories are held out.
    assert questions(corpus / "made" / "train.jsonl") == expected[:2]
    assert questions(corpus / "made" / "valid.jsonl") == expected[2:]
    counts = dict(line.split() for line in (corpus / "made" / "dict.txt").read_text().splitlines())
    assert counts["football,milk"] == "1" and counts["mary"] == "4" and "s,e" not in counts


def test_several_tasks_are_together_and_apart(corpus, capsys):
    for split in ("train", "test"):
        (corpus / f"qa3_x_{split}.txt").write_text("1 Mary left.\n2 Where is Mary?\tout\t1\n" * 2)
    call = ["--corpus", str(corpus), "--dest", str(corpus / "made"), "--task", "2", "3", "--steps", "2", "1"]
    script.main(call)
    made = {path.stem: questions(path) for path in (corpus / "made").glob("*.jsonl")}
    assert sorted(made) == ["qa2_test", "qa2_valid", "qa3_test", "qa3_valid", "test", "train", "valid"]
    for split in ("valid", "test"):
        assert made[split] == made[f"qa2_{split}"] + made[f"qa3_{split}"]
    assert [one["steps"] for one in made["train"]] == [2, 2, 1] and made["qa3_test"][0]["answer"] == "out"
    assert "out 1" in (corpus / "made" / "dict.txt").read_text().splitlines()
    for steps, expected in ((["2"], "1 numbers for 2 tasks"), (["2", "0"], "--steps 0: must be at least 1")):
        with pytest.raises(SystemExit):
            script.main([*call[:-2], *steps])
        assert expected in capsys.readouterr().err


def test_held_out_stories_have_a_tenth_of_the_questions():
    stories = [[number] * 5 for number in range(200)]
    train, valid = script.split_off(stories, 0.1)
    assert (len(train), valid) == (180, stories[180:])


WRONG = {
    "Mary went home.": "'Mary went home.' is not a number and a sentence",
    "3 Mary went home.": "number 3 after 0",
    "1 Mary went home.\n3 Mary left.": "number 3 after 1",
    "1 ?.": "'?.' has no words",
    "1 Where is Mary?\thome\t1": "a question before any fact",
    "1 Mary left.\n2 Where is Mary?\thome": "2 fields",
    "1 Mary left.\n2 Where is Mary?\tat home\t1": "answer 'at home'",
    "1 Mary left.\n2 Where is Mary?\thome\t1 2": "supporting fact 2; the facts before it are 1",
}


@pytest.mark.parametrize("text", WRONG)
def test_wrong_lines_are_named(tmp_path, text):
    path = tmp_path / "qa1_x_train.txt"
    path.write_text(text + "\n")
    with pytest.raises(script.InputError) as raised:
        script.read_stories(str(path))
    assert str(raised.value).startswith(f"{path}, line {1 + text.count(chr(10))}: {WRONG[text]}")


def test_files_without_questions_missing_and_double_ones_are_told(corpus, capsys):
    (corpus / "qa3_a_train.txt").write_text("1 Mary left.\n")
    (corpus / "qa4_a_train.txt").write_text("1 Mary left.\n")
    (corpus / "qa4_b_train.txt").write_text("1 Mary left.\n")
    told = {"3": "qa3_a_train.txt: no questions", "4": "2 files qa4_*_train.txt", "5": "no file qa5_*_train.txt"}
    for task, expected in told.items():
        with pytest.raises(SystemExit):
            script.main(["--corpus", str(corpus), "--task", task, "--dest", str(corpus / "made")])
        assert expected in capsys.readouterr().err
    for arguments in (["--valid-share", "1"], ["--valid-share", "0.9"]):
        with pytest.raises(SystemExit):
            script.main(["--corpus", str(corpus), "--task", "2", "--dest", str(corpus / "made"), *arguments])
        assert "--valid-share" in capsys.readouterr().err
    assert not (corpus / "made").exists()
