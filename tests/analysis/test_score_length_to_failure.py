"""analysis/length_to_failure.py: the measure by hand, and its files."""

import json

import pytest

from fairseq_structattn.analysis import length_to_failure as script


@pytest.mark.parametrize(
    "hypothesis, reference, share",
    [
        ("1 + 2", "1 + 2", 1.0),
        ("1 + 3", "1 + 2", 2 / 3),
        ("2 + 2", "1 + 2", 0.0),
        ("1", "1 + 2", 1 / 3),  # ends too early
        ("1 + 2 + 3", "1 + 2", 1.0),  # right as far as it is asked for
        ("", "1 + 2", 0.0),
        ("1", "", 1.0),
    ],
)
def test_share_before_failure(hypothesis, reference, share):
    assert script.share_before_failure(hypothesis, reference) == pytest.approx(share)


def test_subsets_are_scored_and_written(tmp_path, capsys):
    generated, reference, output = tmp_path / "generated", tmp_path / "reference", tmp_path / "scores.json"
    generated.write_text("H-1\t-0.1\t1 + @@ 3\nD-1\t-0.1\t1 + 3\nH-0\t-0.1\t4 * 5\nD-0\t-0.1\t4 * 5\n")
    reference.write_text("4 * 5\n1 + 2\n")
    script.main(["--subset", "depth2", str(generated), str(reference), "--output", str(output)])
    assert json.loads(output.read_text()) == {"length_to_failure@depth2": 83.33, "lines": {"depth2": "D"}}
    assert "depth2: 83.33 % of 2 references before failure, D- lines" in capsys.readouterr().out
    generated.write_text("H-1\t-0.1\t1 + 3\n")
    with pytest.raises(SystemExit, match="1 of 2 sentences have no translation"):
        script.main(["--subset", "depth2", str(generated), str(reference)])
