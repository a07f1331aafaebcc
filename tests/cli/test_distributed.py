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
WORKER = Path(__file__).with_name("distributed_worker.py")
UPDATES = 4
PATIENCE = 300  # seconds until two processes that wait for each other are given up
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


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start_rank(command, options, rank, port, ddp_backend):
    distributed = [
        "--distributed-world-size", 2, "--distributed-rank", rank,
        "--distributed-init-method", f"tcp://127.0.0.1:{port}", "--device-id", 0,
        "--distributed-backend", "gloo", "--distributed-no-spawn", "--ddp-backend", ddp_backend,
    ]  # fmt: skip
    return subprocess.Popen(
        [sys.executable, *map(str, [*command, *options, *distributed])],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
    )


def run_two(commands, options, ddp_backend):
    """Runs one command for each rank, with the same options, until both have ended well."""
    port = free_port()
    ranks = [start_rank(command, options, rank, port, ddp_backend) for rank, command in enumerate(commands)]
    try:
        outputs = [rank.communicate(timeout=PATIENCE)[0] for rank in ranks]
        assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(output[-2000:] for output in outputs)
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


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
    commands = [[WORKER, tmp_path / f"rank{rank}.pt"] for rank in (0, 1)]
    # PyTorch's own wrapper, without a search for unused parameters, stops at a parameter without gradient.
    run_two(commands, options, ddp_backend)
    first, second = (torch.load(str(tmp_path / f"rank{rank}.pt"), weights_only=True) for rank in (0, 1))
    assert first["received"].keys() == second["received"].keys() and all(first["received"].values())
    assert first["parameters"].keys() == second["parameters"].keys()
    for name, parameter in first["parameters"].items():
        assert torch.equal(parameter, second["parameters"][name]), name
