"""Two processes on one machine without GPUs make the same updates as one process with batches twice as large."""

from pathlib import Path

import pytest

pytest.importorskip("fairseq")

import torch  # noqa: E402
from fairseq import checkpoint_utils  # noqa: E402
from two_processes import check_processes_stay_equal_and_every_parameter_learns, run_two  # noqa: E402

import fairseq_structattn  # noqa: F401  (lets torch load checkpoints)

pytestmark = pytest.mark.usefixtures("forked_python")

PACKAGE = Path(__file__).resolve().parents[2] / "fairseq_structattn"
UPDATES = 4
# What one process reads as a batch of 8 are two batches of 4 for two: sentences stay in order (--curriculum), and none
# is left over. A penalty of this weight changes the result visibly if it is counted twice.
OPTIONS = [
    "--arch", "structattn_rnn_crf", "--dropout", 0,
    "--encoder-embed-dim", 16, "--encoder-hidden-size", 16, "--encoder-layers", 1,
    "--decoder-embed-dim", 16, "--decoder-hidden-size", 16, "--decoder-layers", 1, "--decoder-out-embed-dim", 16,
    "--criterion", "structattn_label_smoothed_cross_entropy", "--pairwise-l2", 0.5,
    "--coverage-loss", 0.3, "--attention-entropy", 0.2,
    "--optimizer", "sgd", "--lr", 0.5, "--clip-norm", 0, "--curriculum", 100, "--required-batch-size-multiple", 1,
    "--max-update", UPDATES, "--cpu", "--disable-validation", "--user-dir", PACKAGE,
]  # fmt: skip


def load(save_dir):
    return checkpoint_utils.load_checkpoint_to_cpu(str(save_dir / "checkpoint_last.pt"))


@pytest.mark.slow
def test_two_processes_equal_one_with_twice_the_batch(run_fairseq, tiny_corpus, tmp_path):
    options = [tiny_corpus.bin, *OPTIONS, "--batch-size", 4, "--save-dir", tmp_path / "two"]
    run_two([["-m", "fairseq_cli.train"]] * 2, options, "legacy_ddp")
    run_fairseq("train", tiny_corpus.bin, *OPTIONS, "--batch-size", 8, "--save-dir", tmp_path / "one")
    two, one = load(tmp_path / "two"), load(tmp_path / "one")
    assert two["optimizer_history"][-1]["num_updates"] == one["optimizer_history"][-1]["num_updates"] == UPDATES
    assert two["model"].keys() == one["model"].keys()
    assert any(name.endswith("pairwise") for name in one["model"])
    for name in one["model"]:
        torch.testing.assert_close(two["model"][name], one["model"][name], atol=1e-5, rtol=1e-4, msg=name)


@pytest.mark.slow
@pytest.mark.parametrize(
    "arch, ddp_backend",
    (("crf", "pytorch_ddp"), ("tree", "pytorch_ddp"), ("treedec", "pytorch_ddp"), ("bahdanau", "legacy_ddp")),
)
def test_processes_stay_equal_and_every_parameter_learns(tiny_corpus, tmp_path, arch, ddp_backend):
    names = (
        "encoder-embed-dim",
        "encoder-hidden-size",
        "decoder-embed-dim",
        "decoder-hidden-size",
        "decoder-out-embed-dim",
    )
    sizes = [word for name in names for word in (f"--{name}", 8)]
    options = [tiny_corpus.bin, "--arch", f"structattn_rnn_{arch}", *sizes, "--batch-size", 4, "--max-update", UPDATES]
    options += ["--criterion", "structattn_label_smoothed_cross_entropy", "--optimizer", "adam", "--lr", 0.01]
    options += ["--cpu", "--disable-validation", "--save-dir", tmp_path / "saved", "--user-dir", PACKAGE]
    check_processes_stay_equal_and_every_parameter_learns(options, ddp_backend, tmp_path)
