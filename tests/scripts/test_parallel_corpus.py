"""scripts/prepare/parallel_corpus.py: what is refused, and that the rest comes out as asked for."""

import gzip
import os

import pytest
from helpers_scripts import load_script

pytestmark = pytest.mark.usefixtures("forked_python")

parallel_corpus = load_script("prepare/parallel_corpus.py")


def write(path, text, encoding="utf-8"):
    path.write_bytes(text.encode(encoding))
    return str(path)


@pytest.fixture
def corpus(tmp_path):
    for split in ("train", "dev", "test"):
        write(tmp_path / f"{split}.ja", "彼 は 走 る 。\nはい 。\n")
        write(tmp_path / f"{split}.en", "he runs .\nyes .\n")
    return tmp_path


def run(corpus, *options):
    arguments = ["--source-lang", "ja", "--target-lang", "en", "--dest", str(corpus / "dest"), *options]
    for option, prefix in (("--train", "train"), ("--valid", "dev"), ("--test", "test")):
        arguments += [option, str(corpus / prefix)]
    parallel_corpus.main(arguments)


def test_characters_and_words():
    assert parallel_corpus.as_characters("彼 は\u3000走る 。") == "彼 は 走 る 。"
    assert parallel_corpus.as_words("he  runs .") == "he runs ."


def test_separators_inside_a_sentence_break_no_line(tmp_path):
    path = write(tmp_path / "a.en", "one\u2028two\nthree\r\n")
    assert [parallel_corpus.as_words(line) for line in parallel_corpus.read_sentences(path)] == ["one two", "three"]


def test_marks_of_byte_order_and_packed_files(tmp_path):
    content = "\ufeffone \ufefftwo\n".encode()
    for path, text in ((tmp_path / "a", content), (tmp_path / "a.gz", gzip.compress(content))):
        path.write_bytes(text)
        assert parallel_corpus.read_sentences(str(path)) == ["one \ufefftwo"]


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("dev.en", b"he runs .\n", r"dev\.ja has 2 lines but .*dev\.en has 1 lines"),
        ("test.ja", b"ok .\ncaf\xe9 .\n", r"test\.ja, line 2: not UTF-8 \(byte 0xe9 at position 4\)"),
        ("train.en", b"he runs .\n \n", r"train\.en, line 2: empty line"),
        ("train.ja", b"", r"train\.ja: the file is empty"),
        ("train.en", b"he <pad> runs\nyes .\n", r"train\.en, line 1: the token <pad> means .* example &lt;pad&gt;"),
        ("dev.en", b"he runs\nyes </s>\n", r"dev\.en, line 2: the token </s> means something else"),
    ],
)
def test_broken_files_are_refused_before_anything_is_written(corpus, name, content, message):
    (corpus / name).write_bytes(content)
    with pytest.raises(SystemExit, match=message):
        run(corpus)
    assert not (corpus / "dest").exists()


def test_tokens_that_only_contain_marks_are_taken(corpus):
    (corpus / "train.en").write_bytes(b"he runs</s>\n< pad > <unk>\n")
    assert parallel_corpus.prepare_split(str(corpus / "train"), {"en": parallel_corpus.as_words})["en"][1] == (
        "< pad > <unk>"
    )


def test_missing_file_is_named(corpus):
    (corpus / "dev.ja").unlink()
    with pytest.raises(SystemExit, match=r"dev\.ja: no such file"):
        run(corpus)


def test_prepared_files_and_binarisation(corpus, monkeypatch, capsys):
    binarised = []
    monkeypatch.setattr(parallel_corpus, "binarise", lambda *arguments: binarised.append(arguments))
    run(corpus, "--source-characters", "--source-threshold", "5")
    dest = corpus / "dest"
    assert (dest / "valid.ja").read_text(encoding="utf-8") == "彼 は 走 る 。\nは い 。\n"
    assert (dest / "valid.en").read_bytes() == (corpus / "dev.en").read_bytes()
    assert binarised == [(str(dest), ["ja", "en"], ["test"], [5, 2], {})]
    report = capsys.readouterr().out
    assert [line.split() for line in report.splitlines() if line.startswith("train.ja")] == [
        ["train.ja", "2", "8", "6", "5"]
    ]


def test_binarise_leaves_the_finished_folder_only(corpus, capfd):
    pytest.importorskip("fairseq")
    run(corpus, "--source-threshold", "1", "--target-threshold", "1")
    assert (corpus / "dest" / "bin" / "dict.ja.txt").is_file()
    assert not (corpus / "dest" / "bin.tmp").exists()


def test_further_test_sets_are_numbered(corpus):
    pytest.importorskip("fairseq")
    arguments = ["--source-lang", "ja", "--target-lang", "en", "--dest", str(corpus / "dest")]
    arguments += ["--train", str(corpus / "train"), "--valid", str(corpus / "dev")]
    parallel_corpus.main([*arguments, "--test", str(corpus / "test"), str(corpus / "dev")])
    assert (corpus / "dest" / "test1.ja").read_bytes() == (corpus / "dev.ja").read_bytes()
    assert (corpus / "dest" / "bin" / "test1.ja-en.ja.bin").is_file()


def test_names_may_end_in_gz(corpus):
    (corpus / "dev.ja.gz").write_bytes(gzip.compress((corpus / "dev.ja").read_bytes() + "犬\n".encode()))
    (corpus / "dev.ja").unlink()
    with pytest.raises(SystemExit, match=r"dev\.ja\.gz has 3 lines but .*dev\.en has 2 lines"):
        run(corpus)


@pytest.fixture
def pieces(corpus, monkeypatch):
    """A corpus for sentencepiece, and what is handed to fairseq-preprocess."""
    pytest.importorskip("sentencepiece")
    write(corpus / "train.ja", "彼 は 走 る 。\n彼 は 歩 く 。\n私 は 走 る 。\n" * 5)
    write(corpus / "train.en", "he runs .\nhe walks .\ni run .\n" * 5)
    calls = []
    monkeypatch.setattr(parallel_corpus, "binarise", lambda *arguments: calls.append(arguments))
    return calls


def text(corpus, name):
    return (corpus / "dest" / name).read_text(encoding="utf-8")


def test_pieces_of_either_side(corpus, pieces):
    run(corpus, "--source-joined", "--source-sentencepiece", "13", "--target-sentencepiece", "17")
    assert [line.replace(" ", "") for line in text(corpus, "train.ja").splitlines()[:2]] == [
        "▁彼は走る。",
        "▁彼は歩く。",
    ]
    english = text(corpus, "train.en").splitlines()[0].split(" ")
    assert "".join(english) == "▁he▁runs▁." and len(english) < len("▁he▁runs▁.")
    dictionaries = {language: str(corpus / "dest" / f"dict.{language}.txt") for language in ("ja", "en")}
    assert pieces[-1][-1] == dictionaries
    listed = [line.split(" ") for line in text(corpus, "dict.ja.txt").splitlines()]
    assert len(listed) == 13 - 3 and all(
        int(count) == text(corpus, "train.ja").split().count(piece) for piece, count in listed
    )


def test_joint_pieces_have_one_model_and_one_dictionary(corpus, pieces):
    run(corpus, "--joint-sentencepiece", "30", "--sentencepiece-type", "bpe")
    assert sorted(name for name in os.listdir(corpus / "dest") if name.endswith(".model")) == ["sentencepiece.model"]
    assert text(corpus, "dict.ja.txt") == text(corpus, "dict.en.txt")
    assert f"{'▁.'} 15\n" in text(corpus, "dict.en.txt")


def test_models_are_learned_once_for_the_same_text_and_settings(corpus, pieces, monkeypatch):
    import subwords

    learned = []
    monkeypatch.setattr(subwords, "learn", lambda *what, learn=subwords.learn: learned.append(what) or learn(*what))
    for options in (["13"], ["13"], ["12"], ["12", "--character-coverage", "0.99"]):
        run(corpus, "--source-sentencepiece", *options)
    assert len(learned) == 3
    write(corpus / "train.ja", "彼 は 走 る 。\n" * 15)
    run(corpus, "--source-sentencepiece", "9")
    assert len(learned) == 4


def test_a_model_that_there_is_can_be_applied(corpus, pieces):
    run(corpus, "--target-sentencepiece", "17")
    before = text(corpus, "train.en")
    model = corpus / "mine.model"
    (corpus / "dest" / "sentencepiece.en.model").rename(model)
    run(corpus, "--target-sentencepiece", str(model))
    assert text(corpus, "train.en") == before and not (corpus / "dest" / "sentencepiece.en.model").exists()


@pytest.mark.parametrize(
    "options, message",
    [
        (["--source-sentencepiece", "5"], r"--source-sentencepiece 5: the characters alone need 12; .* or more"),
        (
            ["--target-sentencepiece", "999"],
            r"--target-sentencepiece 999: the training text has pieces for \d+ at most",
        ),
        (
            ["--joint-sentencepiece", "20", "--source-sentencepiece", "9"],
            "--joint-sentencepiece: a model for both sides",
        ),
        (
            ["--source-characters", "--source-sentencepiece", "9"],
            "--source-characters: not with --source-sentencepiece",
        ),
        (["--target-joined"], "--target-joined: makes one token of a sentence; add --target-sentencepiece"),
        (["--source-sentencepiece", "13", "--character-coverage", "1.5"], "--character-coverage 1.5: a share"),
        (["--source-sentencepiece", "missing.model"], "--source-sentencepiece missing.model: no such file"),
        (["--source-sentencepiece", __file__], r"test_parallel_corpus\.py: not a model of sentencepiece"),
    ],
)
def test_pieces_that_cannot_be_are_refused(corpus, pieces, options, message):
    with pytest.raises(SystemExit, match=message):
        run(corpus, *options)
    assert pieces == []


def test_sentences_of_which_no_piece_is_left_are_named(corpus, pieces):
    write(corpus / "test.ja", "彼 は 走 る 。\n\u200b\n")
    with pytest.raises(SystemExit, match=r"test\.ja, line 2: only characters that sentencepiece drops"):
        run(corpus, "--source-sentencepiece", "13")
