"""scripts/prepare/join_sentences.py: groups of consecutive pairs, on both sides alike."""

import pytest
from helpers_scripts import load_script

join_sentences = load_script("prepare/join_sentences.py")


@pytest.fixture
def corpus(tmp_path):
    for language in ("en", "de"):
        text = "".join(f"{language}{number}  .\n" for number in range(5))
        (tmp_path / f"text.{language}").write_text(text, encoding="utf-8")
    return tmp_path


def run(corpus, *sizes):
    options = ["--input", str(corpus / "text"), "--languages", "en", "de", "--output", str(corpus / "made" / "joined")]
    join_sentences.main([*options, "--sizes", *map(str, sizes)])
    return [(corpus / "made" / f"joined.{side}").read_text(encoding="utf-8").splitlines() for side in ("en", "de")]


def test_each_size_has_the_whole_corpus_in_order(corpus):
    english, german = run(corpus, 1, 2)
    assert english == [*(f"en{number} ." for number in range(5)), "en0 . en1 .", "en2 . en3 ."]
    assert german == [line.replace("en", "de") for line in english]


def test_what_fills_no_group_is_left_out(corpus):
    assert run(corpus, 3, 5)[0] == ["en0 . en1 . en2 .", "en0 . en1 . en2 . en3 . en4 ."]


@pytest.mark.parametrize(
    "sizes, message", [((0,), "--sizes 0"), ((6,), "from 1 to 5"), ((2, 2), "give each size once")]
)
def test_sizes_that_make_no_sense_are_refused(corpus, sizes, message):
    with pytest.raises(SystemExit, match=message):
        run(corpus, *sizes)
    assert not (corpus / "made").exists()


def test_sides_of_unequal_length_are_refused(corpus):
    (corpus / "text.de").write_text("de0 .\n", encoding="utf-8")
    with pytest.raises(SystemExit, match=r"text\.en has 5 lines but .*text\.de has 1"):
        run(corpus, 1)
