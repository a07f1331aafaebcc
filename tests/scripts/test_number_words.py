"""scripts/prepare/number_words.py: distinct numbers, nothing shared between splits, the same files every time."""

import sys

import pytest
from helpers_scripts import load_script

number_words = load_script("prepare/number_words.py")


def choose(**changes):
    options = dict(train=200, valid=20, test=20, limit=10000, seed=1)
    options.update(changes)
    return number_words.choose_numbers(**options)


def test_splits_have_their_sizes_and_share_no_number():
    splits = choose()
    assert {split: len(numbers) for split, numbers in splits.items()} == {"train": 200, "valid": 20, "test": 20}
    assert len({number for numbers in splits.values() for number in numbers}) == 240
    assert all(0 <= number < 10000 for numbers in splits.values() for number in numbers)


def test_every_small_number_is_in_some_split():
    splits = choose()
    assert set(range(20)) <= {number for numbers in splits.values() for number in numbers}


def test_the_seed_decides():
    assert choose() == choose()
    assert choose() != choose(seed=2)


def test_all_numbers_below_the_limit_can_be_asked_for():
    splits = choose(train=60, valid=20, test=20, limit=100)
    assert sorted(number for numbers in splits.values() for number in numbers) == list(range(100))


@pytest.mark.parametrize("changes, named", [({"limit": 239}, "--limit 239"), ({"valid": 0}, "--valid 0")])
def test_impossible_wishes_are_refused_by_name(changes, named):
    with pytest.raises(ValueError, match=named):
        choose(**changes)


def test_words_of_both_languages():
    pytest.importorskip("num2words")
    assert number_words.german_characters(47) == "s i e b e n u n d v i e r z i g"
    assert number_words.english_words(47) == "forty seven"
    assert number_words.english_words(12345) == "twelve thousand three hundred and forty five"
    assert "_" in number_words.german_characters(1000047).split()


def test_letters_are_linked_with_the_word_that_they_mean():
    pytest.importorskip("num2words")
    numbers = [*range(1200), 11011, 21021, 99999, 100000, 101001, 271000, 999999]
    for number in numbers:
        letters = number_words.german_characters(number).split()
        words = number_words.english_words(number).split()
        assert "".join(number_words.german_parts(number)) == "".join(letters)
        links = [link.split("-") for link in number_words.alignment(number).split()]
        assert {int(j) for _, j in links} == {j for j, word in enumerate(words) if word != "and"}, number
    assert number_words.alignment(21) == "6-0 7-0 8-0 9-0 10-0 11-0 12-0 0-1 1-1 2-1"
    assert number_words.alignment(101).endswith("10-3 11-3 12-3 13-3")


def test_alignments_are_written_when_asked_for(tmp_path, capsys):
    pytest.importorskip("num2words")
    size = ["--train", "9", "--valid", "2", "--test", "2", "--alignments"]
    number_words.main(["--dest", str(tmp_path / "new"), *size])
    assert len((tmp_path / "new" / "train.align").read_text().splitlines()) == 9
    with pytest.raises(SystemExit):
        number_words.main(["--dest", str(tmp_path / "more"), *size, "--limit", "2000000"])
    assert "--limit 2000000: alignments" in capsys.readouterr().err


def test_files_are_aligned_and_reproducible(tmp_path):
    pytest.importorskip("num2words")
    for folder in ("one", "two"):
        number_words.main(["--dest", str(tmp_path / folder), "--train", "50", "--valid", "5", "--test", "5"])
    names = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert names == ["test.de", "test.en", "train.de", "train.en", "valid.de", "valid.en"]
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
        assert len((tmp_path / "one" / name).read_text(encoding="utf-8").splitlines()) == (50 if "train" in name else 5)


def test_missing_num2words_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "num2words", None)
    with pytest.raises(SystemExit, match="quickstart"):
        number_words.main(["--dest", str(tmp_path)])
