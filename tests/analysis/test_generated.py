"""analysis/generated.py: which lines are read, in what order, and what is incomplete."""

import pytest

from fairseq_structattn.analysis import generated

# Out of order, with two hypotheses of the first sentence, of which the best stands first.
BLOCKS = [
    "S-1\tx\nT-1\ty\nH-1\t-0.1\t▁th ree\nD-1\t-0.1\tthree\nP-1\t-0.1\n",
    "S-0\tx\nH-0\t-0.2\t▁o ne\nD-0\t-0.2\tone\nP-0\t-0.2\nA-0\t0-0\nH-0\t-0.9\t▁wor se\nD-0\t-0.9\tworse\n",
]
TRAILER = "2026-01-01 | INFO | fairseq_cli.generate | NOTE: hypothesis\nGenerate test with beam=5: BLEU4 = 1.0\n"


def write(path, text):
    path.write_bytes(text.encode())
    return str(path)


@pytest.fixture
def path(tmp_path):
    return write(tmp_path / "out", "\ufeff2026 | INFO\n" + "".join(BLOCKS) + TRAILER)


def test_text_is_read_in_the_order_of_the_corpus(path):
    assert generated.read_hypotheses(path, 2) == (["one", "three"], "D")
    assert generated.read_translations(path, 2, "H") == (["▁o ne", "▁th ree"], "H")


def test_old_outputs_have_tokens_only(tmp_path):
    text = "".join(line + "\n" for line in "".join(BLOCKS).split("\n") if not line.startswith("D-") and line)
    found = generated.read_hypotheses(write(tmp_path / "out", text), 2)
    assert found == (["▁o ne", "▁th ree"], "H") and found.described == "H- lines"
    with pytest.raises(generated.InputError, match="2 of 2 sentences have no translation, the first is D-0"):
        generated.read_hypotheses(str(tmp_path / "out"), 2, "D")


def test_lines_of_one_kind_may_be_cut_out_of_the_file(tmp_path):
    text = "".join(line + "\n" for line in sorted("".join(BLOCKS).split("\n")) if line.startswith("D-"))
    assert generated.read_translations(write(tmp_path / "out", text), 2) == (["one", "three"], "D")


def test_separators_inside_a_sentence_break_no_line(tmp_path):
    path = write(tmp_path / "out", "H-0\t-1\ta\u2028b\x85c\rd\te\r\nD-0\t-1\t\ufeffa\u2028b\n")
    assert generated.read_hypotheses(path, 1).sentences == ["\ufeffa\u2028b"]
    assert generated.read_hypotheses(path, 1, "H").sentences == ["a\u2028b\x85c\rd\te"]


def test_plain_text(tmp_path):
    path = write(tmp_path / "text", "one\nH-5 is no hypothesis\n")
    found = generated.read_translations(path, 2)
    assert found == (["one", "H-5 is no hypothesis"], "text") and found.described == "plain text"
    for text, message in (("", "text: the file is empty"), ("one\n", "text: 1 lines, but the reference has 2")):
        with pytest.raises(generated.InputError, match=message):
            generated.read_translations(write(tmp_path / "text", text), 2)


@pytest.mark.parametrize(
    "text, count, message",
    [
        ("".join(BLOCKS), 3, r"out, line 12, its last: 1 of 3 sentences have no translation, the first is D-2"),
        ("".join(BLOCKS), 1, r"out, line 3: H-1 is beyond the 1 lines"),
        ("".join(BLOCKS * 2), 2, r"out, line 15: H-1 was there before: were two outputs written to one file"),
        (BLOCKS[0] * 2, 2, r"out, line 8: H-1 was there before"),
        (BLOCKS[0] + "H-0\t-0.2\t▁o ne\n", 2, r"out, line 6: H-0 has no D-0 as others have"),
        ("".join(BLOCKS)[:-3], 2, r"out, line 12: D-0 is cut off"),
        (BLOCKS[0] + "H-0\t-0.2", 2, r"out, line 6: H-0 is cut off"),
        (BLOCKS[0] + "H-0\t-0.2\n", 2, r"out, line 6: H-0 is cut off"),
        ("", 1, "out: no H- or D- lines of fairseq-generate in it"),
        ("plain text\n", 1, "out: no H- or D- lines of fairseq-generate in it"),
    ],
)
def test_what_is_incomplete_or_too_much_is_refused(tmp_path, text, count, message):
    with pytest.raises(generated.InputError, match=message):
        generated.read_hypotheses(write(tmp_path / "out", text), count)
