"""scripts/benchmark/training_speed.py: what it measures, and that it writes nothing unless a file is named."""

import json

import pytest
from helpers_scripts import SCRIPTS, load_script

PUBLISHED = SCRIPTS / "benchmark" / "results"


@pytest.mark.filterwarnings("ignore")
def test_files_are_written_when_one_is_named_only(tiny_corpus, tmp_path, capsys):
    speed = load_script("benchmark/training_speed.py")
    before = {path: path.read_bytes() for path in PUBLISHED.iterdir()}
    arguments = [str(tiny_corpus.bin), "--device", "cpu", "--reduce", "32", "--max-tokens", "300", "--batches", "2"]
    arguments += ["--rounds", "1", "--systems", "lstm,luong_general"]
    speed.main(arguments)
    assert "words/s" in capsys.readouterr().out
    output = tmp_path / "new" / "results.json"
    speed.main([*arguments, "--output", str(output)])
    content = json.loads(output.read_text(encoding="utf-8"))
    assert len(content["rows"]) == 4 and content["machine"] and content["versions"]["torch"]
    assert all(row["job"].endswith("reduced 32 times") for row in content["rows"])
    assert {path: path.read_bytes() for path in PUBLISHED.iterdir()} == before
    with pytest.raises(SystemExit):
        speed.main([*arguments, "--output", str(tmp_path)])
    assert f"--output '{tmp_path}': a folder" in capsys.readouterr().err
