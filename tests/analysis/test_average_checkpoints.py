"""analysis/average_checkpoints.py: the mean of parameters, what is kept, and what is refused."""

import argparse
import subprocess
import sys

import numpy as np
import pytest
import torch

pytest.importorskip("fairseq")
from fairseq_structattn.analysis import average_checkpoints as averaging
from fairseq_structattn.compat.checkpoints import load_checkpoint


def write(path, **parameters):
    """With what real checkpoints have that torch refuses: options, and numbers of numpy in meters."""
    content = {"args": None, "cfg": {"model": argparse.Namespace(arch="m")}, "extra_state": {"bleu": np.float64(31)}}
    content.update(model=parameters, last_optimizer_state={"big": torch.ones(9)})
    torch.save(content, path)
    return str(path)


def test_parameters_are_averaged_and_the_optimiser_is_left_behind(tmp_path):
    paths = [
        write(tmp_path / f"{number}.pt", weight=torch.tensor([number, 0.5]), half=torch.tensor([2.0 * number]).half(),
              seen=torch.tensor(number))
        for number in (1, 2, 6)
    ]  # fmt: skip
    averaging.main([*paths, "--output", str(tmp_path / "new" / "average.pt")])
    found = load_checkpoint(tmp_path / "new" / "average.pt")
    assert set(found) == {"args", "cfg", "model", "extra_state"} and found["extra_state"] == {"bleu": 31}
    assert found["cfg"] == {"model": argparse.Namespace(arch="m")}
    assert torch.equal(found["model"]["weight"], torch.tensor([3.0, 0.5]))
    assert torch.equal(found["model"]["half"], torch.tensor([6.0]).half())
    assert found["model"]["seen"] == 6


def test_it_is_a_command(tmp_path):
    """Where nothing has imported fairseq before."""
    paths = [write(tmp_path / f"{number}.pt", weight=torch.tensor([number])) for number in (1.0, 2.0)]
    call = [sys.executable, "-m", "fairseq_structattn.analysis.average_checkpoints", *paths]
    done = subprocess.run([*call, "--output", str(tmp_path / "average.pt")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "averaged 2 checkpoints" in done.stdout + done.stderr


@pytest.mark.parametrize("other", [{"weight": torch.ones(3)}, {"bias": torch.ones(2)}, {}])
def test_other_models_are_refused(tmp_path, other):
    paths = [write(tmp_path / "a.pt", weight=torch.ones(2)), write(tmp_path / "b.pt", **other)]
    with pytest.raises(SystemExit, match=r"b\.pt: another model than the first, its (weight|bias) differs"):
        averaging.main([*paths, "--output", str(tmp_path / "average.pt")])
    assert not (tmp_path / "average.pt").exists()


def test_files_that_are_no_checkpoints_are_refused(tmp_path):
    (tmp_path / "text.pt").write_text("not a checkpoint")
    torch.save({"weights": torch.ones(1)}, tmp_path / "tensors.pt")
    for name, message in (
        ("text", "not a checkpoint of fairseq"),
        ("tensors", "it has no parameters"),
        ("x", "no such file"),
    ):
        with pytest.raises(SystemExit, match=message):
            averaging.main([str(tmp_path / f"{name}.pt"), "--output", str(tmp_path / "average.pt")])
