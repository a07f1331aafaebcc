"""scripts/prepare/parallel_corpus.py: what is refused, and that the rest comes out as asked for."""

import gzip

import pytest
from helpers_scripts import load_script

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
    assert binarised == [(str(dest), "ja", "en", 5, 2)]
    report = capsys.readouterr().out
    assert [line.split() for line in report.splitlines() if line.startswith("train.ja")] == [
        ["train.ja", "2", "8", "6", "5"]
    ]


def test_binarise_leaves_the_finished_folder_only(corpus, capfd):
    pytest.importorskip("fairseq")
    run(corpus, "--source-threshold", "1", "--target-threshold", "1")
    assert (corpus / "dest" / "bin" / "dict.ja.txt").is_file()
    assert not (corpus / "dest" / "bin.tmp").exists()
