"""Target words per second of training: stock ``lstm`` and this package's models at equal sizes, in one run.

    python scripts/benchmark/training_speed.py BIN_DIR
    python scripts/benchmark/training_speed.py BIN_DIR --systems flat,tree --source-length 40 --batch-size 32
    python scripts/benchmark/training_speed.py BIN_DIR --device cuda --precision fp16

The systems take turns, update by update, on the same batches of real sentences, so that other work of the machine
affects all of them alike. An update is one of fairseq's trainer: forward pass, loss, backward pass, clipping and Adam.
BIN_DIR is a folder made by fairseq-preprocess, such as ``enja/char/bin`` of ``scripts/experiments/enja``.
"""

import argparse
import statistics
import sys
import time
from typing import Any, Dict, List, Optional, Sequence

import torch
from fairseq import options, tasks, utils
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.trainer import Trainer

import fairseq_structattn  # noqa: F401  (registers the architectures)
from fairseq_structattn.analysis.files import check_outputs, command
from fairseq_structattn.analysis.results import machine, replace_rows, versions

SIZES = (
    "--encoder-embed-dim 256 --encoder-hidden-size 256 --encoder-layers 1 --encoder-bidirectional "
    "--decoder-embed-dim 256 --decoder-hidden-size 512 --decoder-layers 1 --decoder-out-embed-dim 256 --dropout 0.2 "
    "--encoder-dropout-in 0.2 --encoder-dropout-out 0.2 --decoder-dropout-in 0.2 --decoder-dropout-out 0.2"
).split()
SYSTEMS = {
    "lstm": "--arch lstm",
    "luong_general": "--arch structattn_rnn_luong_general",
    "luong_general_structattn_adam": "--arch structattn_rnn_luong_general --optimizer structattn_adam",
    "luong_general_input_feeding": "--arch structattn_rnn_luong_general --input-feeding",
    "luong_general_input_feeding_graphs": "--arch structattn_rnn_luong_general --input-feeding --decoder-graphs",
    "crf": "--arch structattn_rnn_crf --decoder-start bridge",
    "bahdanau": "--arch structattn_rnn_bahdanau",
    "flat": "--arch structattn_rnn_flat",
    "tree": "--arch structattn_rnn_tree",
    "tree_nonprojective": "--arch structattn_rnn_tree_nonprojective",
    "treedec": "--arch structattn_rnn_treedec",
}
BASELINES = ("lstm", "luong_general", "flat")


PRECISIONS = {
    "fp32": "",
    "fp16": "--fp16",
    "memory-efficient-fp16": "--memory-efficient-fp16",
    "bf16": "--bf16",
    "amp": "--amp",
}
# Fairseq makes flat gradients on a GPU only.
ON_CPU = "--cpu --fp16-no-flatten-grads"


class Trained:
    """A model with fairseq's trainer, and the seconds that each of its updates took.

    Args:
        data: a folder made by fairseq-preprocess
        arguments: of fairseq-train, to choose the architecture and its sizes
        max_tokens: tokens of a batch
        device: where to train
        precision: a key of :data:`PRECISIONS`
    """

    def __init__(self, data: str, arguments: List[str], max_tokens: int, device: torch.device, precision: str = "fp32"):
        parser = options.get_training_parser()
        argv = [data, "--max-tokens", str(max_tokens), "--distributed-world-size", "1"]
        argv += ["--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1"]
        argv += ["--optimizer", "adam", "--lr", "0.001", "--clip-norm", "1"]
        argv += [*arguments, *PRECISIONS[precision].split()]
        argv += ON_CPU.split() if device.type == "cpu" else []
        config = convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, argv))
        config.common.tpu = False  # what fairseq takes --bf16 without a GPU for
        self.task = tasks.setup_task(config.task)
        utils.set_torch_seed(1)
        model, criterion = self.task.build_model(config.model), self.task.build_criterion(config.criterion)
        self.trainer = Trainer(config, self.task, model, criterion)
        self.device = device
        self.seconds = []

    def update(self, batch: Dict) -> Dict[str, float]:
        """One update, timed, and what the trainer logs of it."""
        start = time.perf_counter()
        logged = self.trainer.train_step([batch])
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        self.seconds.append(time.perf_counter() - start)
        return logged


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


def batches_of_length(trained: Trained, count: int, length: int, size: int, device: torch.device) -> List[Dict]:
    """`count` batches of `size` training sentences with `length` source words."""
    trained.task.load_dataset("train")
    dataset = trained.task.dataset("train")
    # Sizes count </s>.
    found = [index for index in range(len(dataset)) if dataset.src_sizes[index] == length + 1]
    if len(found) < count * size:
        sys.exit(f"error: {len(found)} sentences have {length} source words, {count} batches of {size} need more")
    chosen = [found[start : start + size] for start in range(0, count * size, size)]
    batches = [dataset.collater([dataset[index] for index in indices]) for indices in chosen]
    return [utils.move_to_cuda(batch) for batch in batches] if device.type == "cuda" else batches


def model_options(sizes: str, reduce: int = 1) -> List[str]:
    """Of a value of ``--sizes``: equal sizes are divided by ``reduce``, those of the presets are what they are."""
    reduced = [str(reduced_number(int(word), reduce)) if word.isdigit() else word for word in SIZES]
    return reduced if sizes == "equal" else []


def reduced_number(number: int, by: int) -> int:
    """``number`` divided by ``by``, and at least 1."""
    return max(number // by, 1)


def add_reduce(parser: argparse.ArgumentParser, what: str) -> None:
    """The option ``--reduce``, with which a benchmark does on any machine what it does on a large one."""
    parser.add_argument(
        "--reduce", type=int, default=1, metavar="N", help=f"divide {what} by this, to try the script out (default: 1)"
    )


def description(arguments: argparse.Namespace) -> str:
    """What is unusual about the batches and the models."""
    batches = f", {arguments.batch_size} sentences of {arguments.source_length} words"
    sizes = {"equal": "", "presets": ", sizes of the presets"}[arguments.sizes]
    sizes += f", reduced {arguments.reduce} times" if arguments.reduce > 1 else ""
    precision = "" if arguments.precision == "fp32" else f", {arguments.precision}"
    return (batches if arguments.source_length else "") + sizes + precision


def measure(
    systems: Sequence[str],
    batches: List[Dict],
    trained: Dict[str, Any],
    rounds: int,
    data: str,
    what: str = "training step",
) -> List[Dict]:
    """Rows of words per second on `data`, and ratios to each baseline from the times of the same batch.

    Args:
        systems: in the order of the rows
        batches: with the number of target words of each, ``"ntokens"``
        trained: of each system, an object such as :class:`Trained`
        rounds: how often each system has each batch
        data: what is unusual about the batches and the models
        what: name of that which is timed
    """
    for system in systems:
        for batch in batches[:2]:
            trained[system].update(batch)
        trained[system].seconds.clear()
    for turn in range(rounds):
        for number, batch in enumerate(batches):
            # The order of the systems changes, so that no system always follows the same other.
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
                    "job": f"{what} against {baseline}{data}",
                    "system": system,
                    "words_per_second": round(words / sum(trained[system].seconds)),
                    "ratio": round(statistics.median(other / own for other, own in pairs), 3),
                }
            )
    return rows


def publish(rows: List[Dict], output: Optional[str], script: str) -> None:
    """Prints the rows that `script` measured and, if `output` is a file, adds them to it."""
    for row in rows:
        print(f"{row['job']:80} {row['system']:30} {row['words_per_second']:8} words/s  {row['ratio']:6.3f}x")
    if output is None:
        return
    content = {
        "command": f"python scripts/benchmark/{script} BIN_DIR",
        "versions": versions("numba"),
        "machine": f"{machine()}, {torch.get_num_threads()} threads",
        "rows": rows,
    }
    replace_rows(output, content, ("job", "system"))


def chosen_systems(parser: argparse.ArgumentParser, names: str) -> List[str]:
    """The systems of ``--systems``; an error of the parser names those that are not known."""
    systems = names.split(",")
    unknown = [system for system in systems if system not in SYSTEMS]
    if unknown:
        parser.error(f"--systems {','.join(unknown)}: not known, choose from {', '.join(SYSTEMS)}")
    return systems


@command
def main(arguments=None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", metavar="BIN_DIR")
    parser.add_argument("--systems", default=",".join(SYSTEMS), help="comma separated (default: all)")
    parser.add_argument("--max-tokens", type=int, default=3000, help="tokens in a batch (default: 3000)")
    parser.add_argument("--batches", type=int, default=10, help="number of batches (default: 10)")
    parser.add_argument("--source-length", type=int, help="only sentences with this number of source words")
    parser.add_argument("--batch-size", type=int, default=32, help="number of such sentences in a batch (default: 32)")
    parser.add_argument(
        "--sizes",
        choices=("equal", "presets"),
        default="equal",
        help="of models: equal for all, or those of each system's preset (default: equal)",
    )
    parser.add_argument(
        "--precision", choices=PRECISIONS, default="fp32", help="precision, as in fairseq-train (default: fp32)"
    )
    parser.add_argument("--rounds", type=int, default=3, help="updates of each system on each batch (default: 3)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    add_reduce(parser, "equal sizes of models, and the rounds,")
    parser.add_argument("--output", metavar="FILE", help="file to which rows are appended (default: only print them)")
    arguments = parser.parse_args(arguments)
    systems = chosen_systems(parser, arguments.systems)
    check_outputs({"--output": arguments.output})
    device = torch.device(arguments.device)
    sizes = model_options(arguments.sizes, arguments.reduce)
    trained = {
        name: Trained(arguments.data, SYSTEMS[name].split() + sizes, arguments.max_tokens, device, arguments.precision)
        for name in systems
    }
    first = trained[systems[0]]
    if arguments.source_length is None:
        batches = sample_batches(first, arguments.batches, arguments.max_tokens, device)
    else:
        batches = batches_of_length(first, arguments.batches, arguments.source_length, arguments.batch_size, device)
    rounds = reduced_number(arguments.rounds, arguments.reduce)
    rows = measure(systems, batches, trained, rounds, description(arguments))
    publish(rows, arguments.output, "training_speed.py")


if __name__ == "__main__":
    main()
