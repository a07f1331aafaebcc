"""scripts/benchmark/half_precision.py: training in every precision of fairseq, as far as a CPU can."""

import json

import pytest
from helpers_scripts import load_script

PRECISIONS = ("fp32", "fp16", "memory-efficient-fp16", "bf16", "amp")


@pytest.fixture(scope="module")
def half_precision():
    return load_script("benchmark/half_precision.py")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_kind_of_model_learns(half_precision, precision, tiny_corpus, tmp_path, monkeypatch):
    """Those that run all steps at once and those that go step by step, chains, and trees on either side; one of them in
    the precisions that are handled as another is."""
    output = tmp_path / "results.json"
    systems = ["crf", "luong_general_input_feeding", "bahdanau", "tree", "treedec"]
    systems = systems if precision in ("fp16", "bf16") else systems[:1]
    arguments = [str(tiny_corpus.bin), "--device", "cpu", "--reduce", "32", "--max-tokens", "300", "--batches", "4"]
    arguments += ["--updates", str(16 * 32), "--systems", ",".join(systems), "--precisions", precision]
    arguments += ["--output", str(output)]
    monkeypatch.setattr("sys.argv", ["half_precision.py", *arguments])
    half_precision.main()
    rows = json.loads(output.read_text(encoding="utf-8"))["rows"]
    assert [row["system"] for row in rows] == systems
    for row in rows:
        assert row["updates"] == 16 and row["skipped"] == 0
        assert row["last_loss"] < row["first_loss"]
        assert (row["last_loss_scale"] is None) == (precision in ("fp32", "bf16"))


def test_a_collapse_is_told(half_precision):
    class Collapsing:
        def __init__(self):
            self.seconds, self.trainer = [], self
            self.optimizer = type("Optimizer", (), {"scaler": type("Scaler", (), {"loss_scale": 0.5})})

        def update(self, batch):
            if len(self.seconds) == 3:
                raise FloatingPointError("Minimum loss scale reached")
            self.seconds.append(0.1)
            return {"loss": 4.0} if len(self.seconds) < 3 else None

    row = half_precision.train(Collapsing(), [{}], 10)
    assert (row["updates"], row["skipped"], row["last_loss"], row["least_loss_scale"]) == (3, 1, 4.0, 0.5)


def test_unknown_names_are_refused(half_precision, tmp_path, monkeypatch, capsys):
    arguments = ["half_precision.py", "bin", "--precisions", "fp16,fp8", "--output", str(tmp_path / "results.json")]
    monkeypatch.setattr("sys.argv", arguments)
    with pytest.raises(SystemExit):
        half_precision.main()
    assert "--precisions fp8: not known, choose from fp32" in capsys.readouterr().err
