"""analysis/word_alignment.py: words and their weights, against numbers worked out by hand."""

import pytest

from fairseq_structattn.analysis import word_alignment
from fairseq_structattn.analysis.attention_records import AttentionRecord, SourceTree, read_records, write_records

AlignmentError, Side = word_alignment.AlignmentError, word_alignment.Side
PIECES = Side("sentencepiece")


def spans(words):
    return [(word.text, word.start, word.end) for word in words]


@pytest.mark.parametrize(
    "pieces, words",
    [
        ([], []),
        (["▁the", "▁cat", "s"], [("the", 0, 1), ("cats", 1, 3)]),
        (["the", "▁cat"], [("the", 0, 1), ("cat", 1, 2)]),  # without a space in front (--add_dummy_prefix=false)
        (["▁", "cat", "▁", "s"], [("cat", 0, 2), ("s", 2, 4)]),
        (["▁", "▁cat"], [("cat", 0, 2)]),
        (["▁a", "▁", "▁", "b"], [("a", 0, 1), ("b", 1, 4)]),
        (["▁a", "▁"], [("a", 0, 2)]),
        (["▁"], []),
        (["▁a", "<unk>", "▁b"], [("a<unk>", 0, 2), ("b", 2, 3)]),
        (["▁", "<unk>", "▁b"], [("<unk>", 0, 2), ("b", 2, 3)]),
        (["▁", "<0xE7>", "<0x8C>", "<0xab>", "s"], [("猫s", 0, 5)]),
        (["▁", "<0xE7>", "▁b"], [("\ufffd", 0, 2), ("b", 2, 3)]),  # half a character
        (["▁▁a"], [("a", 0, 1)]),
    ],
)
def test_sentencepiece(pieces, words):
    assert spans(word_alignment.sentencepiece_words(pieces)) == words


@pytest.mark.parametrize("piece", ["▁of▁the", "the▁"])
def test_pieces_that_span_words_are_refused(piece):
    with pytest.raises(AlignmentError, match=f"sentence 3: the piece '{piece}' spans several words.*--words tokens"):
        PIECES.words(["▁a", piece], 3)


@pytest.mark.parametrize(
    "pieces, words",
    [
        ([], []),
        (["the", "cat@@", "s"], [("the", 0, 1), ("cats", 1, 3)]),
        (["un@@", "<unk>", "<unk>"], [("un<unk>", 0, 2), ("<unk>", 2, 3)]),
        (["a", "b@@"], [("a", 0, 1), ("b", 1, 2)]),
    ],
)
def test_subword_nmt(pieces, words):
    assert spans(word_alignment.subword_nmt_words(pieces)) == words


def test_characters_with_spaces():
    expected = [("ab", 0, 2), ("c", 2, 4)]
    assert spans(word_alignment.character_words(list("ab▁c"))) == expected
    assert spans(word_alignment.character_words(list("ab_c"), space="_")) == expected
    assert spans(word_alignment.character_words(list("__a__b_"), space="_")) == [("a", 0, 3), ("b", 3, 7)]
    assert spans(word_alignment.character_words([])) == []


def test_bytes_are_read_in_pieces_only():
    assert spans(word_alignment.character_words(list("<0x41>"))) == [("<0x41>", 0, 6)]
    assert spans(word_alignment.token_words(["<0x41>"])) == [("<0x41>", 0, 1)]


def test_characters_without_spaces_take_the_words_of_a_text():
    characters = ["私", "<unk>", "猫", "<unk>"]
    assert spans(word_alignment.words_of_text(characters, "私 は\u3000猫。")) == [
        ("私", 0, 1),
        ("は", 1, 2),
        ("猫。", 2, 4),
    ]
    assert word_alignment.words_of_text([], "") == []
    for text in ("私 は", "私 は 猫。 だ", "私 は 犬。"):
        with pytest.raises(AlignmentError, match="give"):
            word_alignment.words_of_text(characters, text)


def test_pieces_without_spaces_take_the_words_of_a_text():
    pieces = ["▁", "私には", "10", "<unk>", "見", "える", "。", "▁"]
    assert spans(word_alignment.words_of_pieces(pieces, "私 に は １０ 匹 見え る 。")) == [
        ("私には", 0, 2),
        ("10", 2, 3),
        ("<unk>", 3, 4),
        ("見える", 4, 6),
        ("。", 6, 8),
    ]
    assert spans(word_alignment.words_of_pieces(["▁un", "do", "▁it"], "undo it")) == [("undo", 0, 2), ("it", 2, 3)]
    assert word_alignment.words_of_pieces([], "") == []
    with pytest.raises(AlignmentError, match="'ab' stands where the text has 'a c'; give"):
        word_alignment.words_of_pieces(["▁ab"], "a c")


# "▁un" "do" "▁it" </s>  →  "▁mach" "▁es" "▁rück" "gängig" </s>, weights of a chain: rows sum to 2.
SOURCE = ["▁un", "do", "▁it", "</s>"]
TARGET = ["▁mach", "▁es", "▁rück", "gängig", "</s>"]
WEIGHTS = [
    [0.75, 0.5, 0.5, 0.25],
    [0.0, 0.25, 1.25, 0.5],
    [0.5, 0.25, 1.0, 0.25],
    [1.0, 0.75, 0.0, 0.25],
    [0.0, 0.0, 0.0, 2.0],
]
MEANS = [[1.25, 0.5, 0.25], [0.25, 1.25, 0.5], [1.25, 0.5, 0.25], [0.0, 0.0, 2.0]]
LARGEST = [[1.25, 0.5, 0.25], [0.25, 1.25, 0.5], [1.75, 1.0, 0.25], [0.0, 0.0, 2.0]]


def record(source=SOURCE, target=TARGET, weights=WEIGHTS, **fields):
    return AttentionRecord(0, 0, -1.0, False, list(source), list(target), weights, **fields)


def aligned(tokens, side=PIECES):
    return word_alignment.alignment(tokens, word_alignment.merged(tokens, side, side))


@pytest.mark.parametrize("rows, expected", [("mean", MEANS), ("max", LARGEST)])
def test_weights_of_words(rows, expected):
    tree = SourceTree([0, 1, 1], [])
    words = word_alignment.merged(
        record(marginals=WEIGHTS, segments=[[]] * 5, tree=tree, reference=["▁mach", "s"]), PIECES, PIECES, rows
    )
    assert words.source == ["undo", "it", "</s>"] and words.target == ["mach", "es", "rückgängig", "</s>"]
    assert words.weights == expected
    assert words.reference == ["machs"]
    assert words.marginals is words.segments is words.tree is None
    # The piece "▁rück" alone would have been linked with "it".
    assert word_alignment.pharaoh(word_alignment.alignment(record(), words)) == "0-0 1-1 0-2"


def test_the_end_of_a_sentence_is_never_linked():
    assert aligned(record(weights=[[0.0, 0.0, 0.5, 1.5]] * 5)) == [(1, 0), (1, 1), (1, 2)]


def test_words_without_attention_and_sentences_without_words():
    silent = record(weights=[[0.0, 0.0, 0.0, 2.0]] + WEIGHTS[1:])
    assert aligned(silent) == [(1, 1), (0, 2)]
    for empty in (record(["</s>"], TARGET, [[2.0]] * 5), record(SOURCE, ["</s>"], WEIGHTS[4:])):
        words = word_alignment.merged(empty, PIECES, PIECES)
        assert aligned(empty) == []
        assert words.source[-1] == words.target[-1] == "</s>"


def test_a_target_that_was_cut_off_has_no_end():
    cut_off = record(SOURCE, TARGET[:2], WEIGHTS[:2])
    assert word_alignment.merged(cut_off, PIECES, PIECES).target == ["mach", "es"]
    assert aligned(cut_off) == [(0, 0), (1, 1)]


def test_words_that_only_look_like_marks_are_words():
    tokens = ["</s>", "a", "<pad>", "<unk>", "</s>", "</s>"]
    weights = [[float(row == column) for column in range(6)] for row in range(6)]
    plain = Side("tokens")
    assert aligned(record(tokens, tokens, weights), plain) == [(number, number) for number in range(5)]
    characters = Side("characters")
    spelled = record([*"</s>", "</s>"], [*"</s>"], [[1.0, 0, 0, 0, 0]] * 4)
    assert aligned(spelled, characters) == [(0, 0)]  # the target has no end, its only word is spelled like one


def test_command(tmp_path, capsys):
    records, output, merged = (str(tmp_path / name) for name in ("a.jsonl", "new/links.txt", "words.jsonl"))
    write_records(records, [record(), record(list("ab▁") + ["</s>"], ["▁x", "</s>"], [[0.5, 0.5, 0.0, 1.0]] * 2)])
    word_alignment.main(["--records", records, "--words", "sentencepiece"])
    assert capsys.readouterr().out == "0-0 1-1 0-2\n0-0\n"
    options = ["--source-words", "characters", "--target-words", "tokens", "--output", output, "--merged", merged]
    word_alignment.main(["--records", records, *options])
    assert (tmp_path / "new" / "links.txt").read_text().splitlines()[1] == "0-0"
    assert [one.source for one in read_records(merged)][1] == ["ab", "</s>"]
    assert not list(tmp_path.rglob("*.tmp"))


def test_command_with_pieces_and_the_words_of_a_text(tmp_path, capsys):
    records, text, merged = str(tmp_path / "a.jsonl"), tmp_path / "text", str(tmp_path / "words.jsonl")
    write_records(records, [record(["▁猫", "は走る", "。", "</s>"], ["x", "</s>"], [[0.4, 0.3, 0.2, 0.1]] * 2)])
    text.write_text("猫は 走る 。\n", encoding="utf-8")
    command = ["--records", records, "--source-words", "sentencepiece", "--source-text", str(text)]
    word_alignment.main([*command, "--merged", merged])
    assert capsys.readouterr().out == "0-0\n"
    (found,) = read_records(merged)
    assert found.source == ["猫は走る", "。", "</s>"] and found.weights[0] == pytest.approx([0.7, 0.2, 0.1])


def test_command_with_the_words_of_a_text(tmp_path, capsys):
    records, text = str(tmp_path / "a.jsonl"), tmp_path / "text"
    write_records(records, [record(["a", "b", "c", "</s>"], ["x", "</s>"], [[0.4, 0.3, 0.45, 0.0]] * 2)])
    command = ["--records", records, "--source-words", "characters", "--source-text", str(text)]
    text.write_text("ab c\n")
    word_alignment.main(command)
    assert capsys.readouterr().out == "0-0\n"
    text.write_text("ab d\n")
    with pytest.raises(SystemExit, match="sentence 0: 'c' stands where the text has 'd'"):
        word_alignment.main(command)
    text.write_text("")
    with pytest.raises(SystemExit, match="sentence 0: the text has only 0 lines"):
        word_alignment.main(command)
    with pytest.raises(SystemExit):
        word_alignment.parse_arguments(["--records", records, "--source-text", "x"])
    assert "is for characters" in capsys.readouterr().err
