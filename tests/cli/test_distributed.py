"""Two processes on one machine without GPUs make the same updates as one process with batches twice as large."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("fairseq")

import torch  # noqa: E402
from fairseq import checkpoint_utils  # noqa: E402

import fairseq_structattn  # noqa: F401, E402  (lets torch load checkpoints)

PACKAGE = Path(__file__).resolve().parents[2] / "fairseq_structattn"
UPDATES = 4
PATIENCE = 300  # seconds until two processes that wait for each other are given up
# What one process reads as a batch of 8 are two batches of 4 for two: sentences stay in order (--curriculum), and none
# is left over. A penalty of this weight changes the result visibly if it is counted twice.
OPTIONS = [
    "--arch", "structattn_rnn_crf", "--dropout", 0,
    "--encoder-embed-dim", 16, "--encoder-hidden-size", 16, "--encoder-layers", 1,
    "--decoder-embed-dim", 16, "--decoder-hidden-size", 16, "--decoder-layers", 1, "--decoder-out-embed-dim", 16,
    "--criterion", "structattn_label_smoothed_cross_entropy", "--pairwise-l2", 0.5,
    "--optimizer", "sgd", "--lr", 0.5, "--clip-norm", 0, "--curriculum", 100, "--required-batch-size-multiple", 1,
    "--max-update", UPDATES, "--cpu", "--disable-validation", "--user-dir", PACKAGE,
]  # fmt: skip


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start_rank(corpus, save_dir, rank, port):
    distributed = [
        "--distributed-world-size", 2, "--distributed-rank", rank,
        "--distributed-init-method", f"tcp://127.0.0.1:{port}", "--device-id", 0,
        "--distributed-backend", "gloo", "--distributed-no-spawn", "--ddp-backend", "legacy_ddp",
    ]  # fmt: skip
    args = [corpus.bin, *OPTIONS, *distributed, "--batch-size", 4, "--save-dir", save_dir]
    return subprocess.Popen(
        [sys.executable, "-m", "fairseq_cli.train", *map(str, args)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
    )


def train_two(corpus, save_dir):
    port = free_port()
    ranks = [start_rank(corpus, save_dir, rank, port) for rank in (0, 1)]
    try:
        return [rank.communicate(timeout=PATIENCE)[0] for rank in ranks], [rank.returncode for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


def load(save_dir):
    return checkpoint_utils.load_checkpoint_to_cpu(str(save_dir / "checkpoint_last.pt"))


@pytest.mark.slow
def test_two_processes_equal_one_with_twice_the_batch(run_fairseq, tiny_corpus, tmp_path):
    outputs, codes = train_two(tiny_corpus, tmp_path / "two")
    assert codes == [0, 0], "\n".join(output[-2000:] for output in outputs)
    run_fairseq("train", tiny_corpus.bin, *OPTIONS, "--batch-size", 8, "--save-dir", tmp_path / "one")
    two, one = load(tmp_path / "two"), load(tmp_path / "one")
    assert two["optimizer_history"][-1]["num_updates"] == one["optimizer_history"][-1]["num_updates"] == UPDATES
    assert two["model"].keys() == one["model"].keys()
    assert any(name.endswith("pairwise") for name in one["model"])
    for name in one["model"]:
        torch.testing.assert_close(two["model"][name], one["model"][name], atol=1e-5, rtol=1e-4, msg=name)
