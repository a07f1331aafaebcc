"""scripts/benchmark/transformer.py: paired ratios and their intervals, and rows for every system."""

import json

import pytest
from helpers_scripts import load_script

benchmark = load_script("benchmark/transformer.py")


def test_ratios_are_of_pairs():
    # The machine is busy at the second update; the system takes twice the time of the baseline.
    assert benchmark.ratio([1.0, 9.0, 1.0], [2.0, 18.0, 2.0]) == (0.5, 0.5, 0.5)
    middle, lower, upper = benchmark.ratio([1.0] * 5, [1.0, 1.25, 2.0, 4.0, 5.0])
    assert middle == 0.5 and 0.2 <= lower < 0.5 < upper <= 1.0


@pytest.mark.filterwarnings("ignore")
def test_every_system_has_a_row(tiny_corpus, tmp_path, capsys):
    output = tmp_path / "results.json"
    arguments = [str(tiny_corpus.bin), "--device", "cpu", "--tiny", "--max-tokens", "150", "--batches", "1"]
    benchmark.main([*arguments, "--rounds", "2", "--systems", "chain,two spanning trees", "--output", str(output)])
    rows = json.loads(output.read_text(encoding="utf-8"))["rows"]
    assert [row["system"] for row in rows] == ["transformer", "chain", "two spanning trees"]
    assert rows[0]["ratio"] == 1.0 and rows[0]["interval"] == "1.000 to 1.000"
    assert all(row["words_per_second"] > 0 and row["ratio"] > 0 for row in rows)
    with pytest.raises(SystemExit):
        benchmark.main([*arguments, "--systems", "crf"])
    assert "--systems crf: crf is not known, choose from transformer, softmax" in capsys.readouterr().err
