"""scripts/analysis/score_bleu.py: order, missing sentences, signature."""

import json

import pytest
from helpers_scripts import load_script

score_bleu = load_script("analysis/score_bleu.py")

GENERATED = "S-1\tx\nT-1\tthree four five six\nH-1\t-0.1\tthree four five six\nD-1\t-0.1\tthree four five six\n"
GENERATED += "H-0\t-0.2\tone two one two\nH-0\t-0.9\tworse\nP-0\t-0.2\n"


@pytest.fixture
def generated(tmp_path):
    path = tmp_path / "generated.txt"
    path.write_text(GENERATED, encoding="utf-8")
    return path


def test_hypotheses_come_in_the_order_of_the_corpus(generated):
    assert score_bleu.read_hypotheses(str(generated), 2) == ["one two one two", "three four five six"]


@pytest.mark.parametrize("count, message", [(3, "1 of 3 sentences.*H-2"), (1, "H-1 is beyond the 1 lines")])
def test_lost_and_surplus_sentences_are_errors(generated, count, message):
    with pytest.raises(ValueError, match=message):
        score_bleu.read_hypotheses(str(generated), count)


def test_score_and_signature_are_written(generated, tmp_path, capsys):
    reference = tmp_path / "reference"
    reference.write_text("one two one two\nthree four five six\n", encoding="utf-8")
    output = tmp_path / "bleu.json"
    options = ["--generated", str(generated), "--reference", str(reference), "--tokenize", "none"]
    score_bleu.main(options + ["--output", str(output)])
    result = json.loads(output.read_text(encoding="utf-8"))
    assert result["bleu"] == 100.0 and result["sentences"] == 2 and "tok:none" in result["signature"]
    assert "BLEU 100.00" in capsys.readouterr().out


def test_bootstrap_gives_the_margin_of_the_score():
    hypotheses = ["one two three four five", "one two three six seven"] * 20
    references = ["one two three four five", "one two three four five"] * 20
    result = score_bleu.score(hypotheses, references, "none", bootstrap=100)
    assert 0 < result["confidence95"] < result["bleu"] < 100 and "bs:100" in result["signature"]
    assert "confidence95" not in score_bleu.score(hypotheses, references, "none")
