"""Target words per second of training: stock ``lstm`` and this package's models at equal sizes, in one run.

    python scripts/benchmark/training_speed.py BIN_DIR

The systems take turns, update by update, on the same batches of real sentences, so that what else the machine does
falls on all of them alike. An update is what fairseq-train does: forward pass, loss, backward pass, clipping, Adam.
BIN_DIR is a folder made by fairseq-preprocess, such as ``enja_chars/data/bin`` of ``scripts/experiments/enja_chars``.
"""

import argparse
import os
import statistics
import sys
import time
from typing import Dict, List, Sequence

import torch
from fairseq import options, tasks, utils
from fairseq.dataclass.utils import convert_namespace_to_omegaconf

import fairseq_structattn  # noqa: F401  (registers the architectures)

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from results import machine, versions, write_json  # noqa: E402

SIZES = (
    "--encoder-embed-dim 256 --encoder-hidden-size 256 --encoder-layers 1 --encoder-bidirectional "
    "--decoder-embed-dim 256 --decoder-hidden-size 512 --decoder-layers 1 --decoder-out-embed-dim 256 --dropout 0.2 "
    "--encoder-dropout-in 0.2 --encoder-dropout-out 0.2 --decoder-dropout-in 0.2 --decoder-dropout-out 0.2"
).split()
SYSTEMS = {
    "lstm": "--arch lstm",
    "luong_general": "--arch structattn_rnn_luong_general",
    "luong_general_input_feeding": "--arch structattn_rnn_luong_general --input-feeding",
    "crf": "--arch structattn_rnn_crf --decoder-start bridge",
    "bahdanau": "--arch structattn_rnn_bahdanau",
}
BASELINES = ("lstm", "luong_general")


class Trained:
    """A model with its loss and optimizer, and the seconds that each of its updates took."""

    def __init__(self, data: str, arguments: List[str], max_tokens: int, device: torch.device):
        parser = options.get_training_parser()
        argv = [data, "--max-tokens", str(max_tokens), *SIZES, *arguments]
        argv += ["--optimizer", "adam", "--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1"]
        self.config = convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, argv))
        self.task = tasks.setup_task(self.config.task)
        utils.set_torch_seed(1)
        self.model = self.task.build_model(self.config.model).to(device).train()
        self.criterion = self.task.build_criterion(self.config.criterion).train()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.seconds = []

    def update(self, batch: Dict) -> None:
        """One update, timed."""
        start = time.perf_counter()
        self.optimizer.zero_grad()
        loss, sample_size, _ = self.criterion(self.model, batch)
        (loss / sample_size).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.seconds.append(time.perf_counter() - start)


def sample_batches(trained: Trained, count: int, max_tokens: int, device: torch.device) -> List[Dict]:
    """`count` batches spread evenly over the training set, from short sentences to long ones."""
    trained.task.load_dataset("train")
    iterator = trained.task.get_batch_iterator(
        trained.task.dataset("train"), max_tokens=max_tokens, required_batch_size_multiple=8, seed=1
    )
    batches = sorted(iterator.next_epoch_itr(shuffle=False), key=lambda batch: batch["net_input"]["src_tokens"].size(1))
    step = max(1, len(batches) // count)
    batches = batches[step // 2 :: step][:count]
    return [utils.move_to_cuda(batch) for batch in batches] if device.type == "cuda" else batches


def measure(systems: Sequence[str], batches: List[Dict], trained: Dict[str, Trained], rounds: int) -> List[Dict]:
    """Rows of words per second, and ratios to each baseline from the times of the same batch."""
    for system in systems:
        for batch in batches[:2]:
            trained[system].update(batch)
        trained[system].seconds.clear()
    for turn in range(rounds):
        for number, batch in enumerate(batches):
            # Who goes first changes, lest one system always follows the same other.
            for offset in range(len(systems)):
                trained[systems[(number + turn + offset) % len(systems)]].update(batch)
        print(f"round {turn + 1} of {rounds}", file=sys.stderr)
    words = sum(batch["ntokens"] for batch in batches) * rounds
    rows = []
    for baseline in [name for name in BASELINES if name in systems]:
        for system in systems:
            pairs = zip(trained[baseline].seconds, trained[system].seconds)
            rows.append(
                {
                    "job": f"training step against {baseline}",
                    "system": system,
                    "words_per_second": round(words / sum(trained[system].seconds)),
                    "ratio": round(statistics.median(other / own for other, own in pairs), 3),
                }
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", metavar="BIN_DIR")
    parser.add_argument("--systems", default=",".join(SYSTEMS), help="comma separated (default: all)")
    parser.add_argument("--max-tokens", type=int, default=3000, help="tokens of a batch (default: 3000)")
    parser.add_argument("--batches", type=int, default=10, help="different batches (default: 10)")
    parser.add_argument("--rounds", type=int, default=3, help="updates of each system on each batch (default: 3)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    default_output = os.path.join(os.path.dirname(os.path.abspath(__file__)), "results", "training_speed.json")
    parser.add_argument("--output", default=default_output)
    arguments = parser.parse_args()
    systems = arguments.systems.split(",")
    unknown = [system for system in systems if system not in SYSTEMS]
    if unknown:
        parser.error(f"--systems {','.join(unknown)}: not known, choose from {', '.join(SYSTEMS)}")
    device = torch.device(arguments.device)
    trained = {name: Trained(arguments.data, SYSTEMS[name].split(), arguments.max_tokens, device) for name in systems}
    batches = sample_batches(trained[systems[0]], arguments.batches, arguments.max_tokens, device)
    rows = measure(systems, batches, trained, arguments.rounds)
    for row in rows:
        print(f"{row['job']:40} {row['system']:30} {row['words_per_second']:8} words/s  {row['ratio']:6.3f}x")
    os.makedirs(os.path.dirname(arguments.output), exist_ok=True)
    command = "python scripts/benchmark/training_speed.py BIN_DIR"
    threads = torch.get_num_threads()
    content = {"command": command, "versions": versions(), "machine": f"{machine()}, {threads} threads", "rows": rows}
    write_json(arguments.output, content)


if __name__ == "__main__":
    main()
