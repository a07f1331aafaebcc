"""analysis/score_bleu.py: sacrebleu's own numbers of the text that was meant, margins, what is refused."""

import json
import subprocess
import sys

import pytest

from fairseq_structattn.analysis import score_bleu

# What fairseq prints under --bpe sentencepiece: pieces in H-, text in D-.
PIECES = ["▁The ▁c at , ▁is n ' t ▁here .", "▁It ' s ▁a ▁d og ."]
TEXT = ["The cat, isn't here.", "It's a dog."]
REFERENCES = ["The cat isn't here, sir.", "It's a big dog."]


def generated(path, text=TEXT):
    blocks = [
        f"S-{i}\tx\nT-{i}\t<<unk>>\nH-{i}\t-0.1\t{PIECES[i]}\nD-{i}\t-0.1\t{text[i]}\nP-{i}\t-0.1\n" for i in (1, 0)
    ]
    path.write_text("".join(blocks), encoding="utf-8")
    return str(path)


def write(path, lines):
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return str(path)


def sacrebleu(reference, hypotheses, tokenize):
    command = [sys.executable, "-m", "sacrebleu", reference, "-i", hypotheses, "-m", "bleu", "-w", "2", "--force"]
    done = subprocess.run([*command, "--tokenize", tokenize], stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def scored(tmp_path, *options):
    reference, output = write(tmp_path / "ref", REFERENCES), tmp_path / "new" / "bleu.json"
    arguments = ["--generated", generated(tmp_path / "out"), "--reference", reference, "--output", str(output)]
    score_bleu.main([*arguments, *options])
    return json.loads(output.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "options, text, tokenize",
    [
        ([], TEXT, "13a"),
        (["--tokenize", "intl"], TEXT, "intl"),
        (["--lines", "H", "--tokenize", "none"], PIECES, "none"),
    ],
)
def test_scores_are_those_of_sacrebleu_by_hand(tmp_path, capsys, options, text, tokenize):
    result = scored(tmp_path, *options)
    theirs = sacrebleu(str(tmp_path / "ref"), write(tmp_path / "by_hand", text), tokenize)
    assert result["bleu"] == theirs["score"] and theirs["signature"] in result["signature"].replace("bs:1|", "")
    assert result["lines"] == ("H" if "H" in options else "D") and result["sentences"] == 2
    assert f"on 2 sentences, {result['lines']}- lines" in capsys.readouterr().out
    assert (result["bleu"] > 15) == (text is TEXT)


def test_bootstrap_gives_the_margin_of_the_score():
    hypotheses = ["one two three four five", "one two three six seven"] * 20
    references = ["one two three four five", "one two three four five"] * 20
    result = score_bleu.score(hypotheses, references, "none", bootstrap=100)
    assert 0 < result["confidence95"] < result["bleu"] < 100 and "bs:100" in result["signature"]
    assert "confidence95" not in score_bleu.score(hypotheses, references, "none")
    assert "confidence95" not in score_bleu.score(hypotheses[:1], references[:1], "none", bootstrap=100)


@pytest.mark.parametrize(
    "options, message",
    [
        (["--tokenize", "moses"], "--tokenize moses: unknown, choose from 13a"),
        (["--bootstrap", "1"], "--bootstrap 1: too few to tell anything; give 100 or more"),
        (["--bootstrap", "-5"], "--bootstrap -5"),
    ],
)
def test_options_that_make_no_sense_are_refused_before_anything_is_written(tmp_path, options, message):
    with pytest.raises(SystemExit, match=message) as ended:
        scored(tmp_path, *options)
    assert ended.value.code == 2 and not (tmp_path / "new").exists()


def test_tokenisers_that_are_not_to_be_had_are_refused(monkeypatch):
    from sacrebleu.metrics import BLEU

    def unavailable(*given, **options):
        raise RuntimeError("mecab is\nnot installed")

    monkeypatch.setattr(BLEU, "__init__", unavailable)
    with pytest.raises(score_bleu.InputError, match="--tokenize ja-mecab: not to be had here .mecab is not installed"):
        score_bleu.bleu_metric("ja-mecab")


def test_empty_reference_is_refused(tmp_path):
    with pytest.raises(score_bleu.InputError, match="empty: the file is empty"):
        score_bleu.read_references(write(tmp_path / "empty", []))
