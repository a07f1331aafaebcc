"""analysis/files.py: lines, what is refused before work begins, what is never half-written, how errors are reported."""

import gzip
import json
import os
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_structattn.analysis import files

# Whatever UTF-8 can say, but for the line feed.
LINES = st.lists(
    st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\n")).map(lambda line: line.rstrip("\r"))
)


@given(LINES, st.booleans(), st.booleans())
def test_lines_that_are_written_are_read_back(tmp_path_factory, lines, packed, marked):
    path = tmp_path_factory.getbasetemp() / "written" / "lines.txt"
    if not marked:  # what looks like a byte order mark at the beginning of a file is one
        lines = [line.lstrip("\ufeff") for line in lines]
    files.write_lines(str(path), lines)
    written = b"\xef\xbb\xbf" * marked + path.read_bytes()
    path.write_bytes(gzip.compress(written) if packed else written)
    assert files.read_lines(str(path)) == lines


def test_the_last_line_needs_no_end(tmp_path):
    for content, lines in ((b"a\r\n\nb", ["a", "", "b"]), (b"", []), (b"\xef\xbb\xbf", []), (b"\n", [""])):
        (tmp_path / "text").write_bytes(content)
        assert files.read_lines(str(tmp_path / "text")) == lines


@pytest.mark.parametrize(
    "content, message",
    [
        (b"ok\ncaf\xe9\n", r"text, line 2: not UTF-8 \(byte 0xe9 at position 4\)"),
        ("one\n".encode("utf-16"), r"text, line 1: UTF-16; convert the file: iconv"),
        (gzip.compress(b"one\ntwo\n" * 99, mtime=0)[:-12], r"text: its gzip packing is broken"),
        (b"\x1f\x8bnothing", r"text: its gzip packing is broken"),
    ],
)
def test_what_is_no_text_is_refused(tmp_path, content, message):
    (tmp_path / "text").write_bytes(content)
    with pytest.raises(files.InputError, match=message):
        files.read_lines(str(tmp_path / "text"))


@pytest.mark.parametrize(
    "content, message",
    [
        ('{"bleu": 1', "bleu.json: not JSON .*cut off"),
        ("[1]", "bleu.json: not an object of JSON with bleu;"),
        ('{"other": 1}', "bleu.json: not an object of JSON with bleu;"),
    ],
)
def test_what_is_no_json_is_refused(tmp_path, content, message):
    (tmp_path / "bleu.json").write_text(content)
    with pytest.raises(files.InputError, match=message):
        files.read_json(str(tmp_path / "bleu.json"), "bleu")


def test_inputs_are_files(tmp_path):
    (tmp_path / "text").touch()
    files.check_inputs({"--source": str(tmp_path / "text"), "--reference": None})
    with pytest.raises(files.InputError, match="--source .*nowhere: no such file"):
        files.check_inputs({"--source": str(tmp_path / "nowhere")})
    with pytest.raises(files.InputError, match="--source .*: a folder; name a file in it"):
        files.check_inputs({"--source": str(tmp_path)})
    files.check_folders({"--data": str(tmp_path), "--more": None})
    with pytest.raises(files.InputError, match="--data .*text: a file, not a folder"):
        files.check_folders({"--data": str(tmp_path / "text")})
    with pytest.raises(files.InputError, match="--data .*nowhere: no such folder"):
        files.check_folders({"--data": str(tmp_path / "nowhere")})


def test_outputs_are_checked_without_being_made(tmp_path):
    (tmp_path / "text").touch()
    new = str(tmp_path / "new" / "folder" / "a.json")
    files.check_outputs({"--output": new, "--plot": None, "--records": str(tmp_path / "text")})
    assert not (tmp_path / "new").exists()
    for path, message in (
        (tmp_path, "a folder; name a file in it"),
        ("", "a folder; name a file in it"),
        (tmp_path / "text" / "a.json", "text is a file, not a folder"),
    ):
        with pytest.raises(files.InputError, match=message):
            files.check_outputs({"--output": str(path)})
    with pytest.raises(files.InputError, match="--plot .*: the file that --output names, too"):
        files.check_outputs({"--output": new, "--plot": new})
    files.check_output_folders({"--dest": str(tmp_path), "--other": str(tmp_path / "new")})
    with pytest.raises(files.InputError, match="--dest .*text: a file, not a folder"):
        files.check_output_folders({"--dest": str(tmp_path / "text")})


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_outputs_that_must_not_be_written_are_refused(tmp_path):
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        with pytest.raises(files.InputError, match="you may not write to"):
            files.check_outputs({"--output": str(tmp_path / "new" / "a.json")})
    finally:
        tmp_path.chmod(stat.S_IRWXU)


def test_nothing_is_half_written_and_nothing_is_left_lying(tmp_path):
    path = tmp_path / "new" / "a.txt"
    files.write_lines(str(path), ["whole"])

    def interrupted():
        yield "half"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        files.write_lines(str(path), interrupted())
    assert path.read_text() == "whole\n" and os.listdir(tmp_path / "new") == ["a.txt"]


def test_links_and_devices_stay_what_they_are(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "target.json")
    files.write_json(str(tmp_path / "link"), {"a": "猫"})
    assert (tmp_path / "link").is_symlink()
    assert json.loads((tmp_path / "target.json").read_text(encoding="utf-8")) == {"a": "猫"}
    files.check_outputs({"--output": os.devnull, "--plot": os.devnull})
    files.write_lines(os.devnull, ["gone"])
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


def test_rows_of_results_have_a_line_each(tmp_path):
    rows = [{"a": 1, "b": ["猫"]}, {"a": 2}]
    content = {"command": "a\nb", "versions": {"x": "1"}, "rows": rows, "none": [], "last": [1]}
    files.write_json(str(tmp_path / "results.json"), content)
    lines = (tmp_path / "results.json").read_text(encoding="utf-8").splitlines()
    assert json.loads("\n".join(lines)) == content and list(json.loads("\n".join(lines))) == list(content)
    assert [' "rows": [', '  {"a": 1, "b": ["猫"]},', '  {"a": 2}', " ],"] == lines[5:9]
    for other in ([{"a": 1}], {}, [], "a", None):
        files.write_json(str(tmp_path / "other.json"), other)
        assert json.loads((tmp_path / "other.json").read_text(encoding="utf-8")) == other


def test_errors_are_one_line_and_code_2(tmp_path, capsys):
    @files.command
    def main(arguments=None):
        if arguments:
            raise arguments
        open(tmp_path / "nowhere", "rb").close()

    for arguments, message in (
        (files.InputError("--size 3: give 1 or 2"), "--size 3: give 1 or 2"),
        (None, f"{tmp_path}/nowhere: No such file"),
        (UnicodeEncodeError("ascii", "a猫", 1, 2, "why"), "'猫' cannot be written in ascii; give names in UTF-8"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 2
        printed = capsys.readouterr()
        assert printed.out == "" and printed.err.startswith(f"error: {message}") and printed.err.count("\n") == 1
