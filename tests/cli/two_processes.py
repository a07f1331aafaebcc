"""Two processes on one machine without GPUs, which train together."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import torch

WORKER = Path(__file__).with_name("distributed_worker.py")
PATIENCE = 300  # seconds until two processes that wait for each other are given up


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


def check_processes_stay_equal_and_every_parameter_learns(options, ddp_backend, folder):
    """Trains by fairseq-train with `options`; PyTorch's own wrapper, without a search for unused parameters, stops at a
    parameter without gradient."""
    run_two([[WORKER, folder / f"rank{rank}.pt"] for rank in (0, 1)], options, ddp_backend)
    first, second = (torch.load(str(folder / f"rank{rank}.pt"), weights_only=True) for rank in (0, 1))
    assert first["received"].keys() == second["received"].keys() and all(first["received"].values())
    assert first["parameters"].keys() == second["parameters"].keys()
    for name, parameter in first["parameters"].items():
        assert torch.equal(parameter, second["parameters"][name]), name
