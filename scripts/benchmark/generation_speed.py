"""Target words per second of translation by beam search: stock ``lstm`` and this package's models at equal sizes.

    python scripts/benchmark/generation_speed.py BIN_DIR
    python scripts/benchmark/generation_speed.py BIN_DIR --systems lstm,bahdanau --beam 1 --batch-size 1

The systems take turns, batch by batch, on the same sentences of the validation set, as in ``training_speed.py``.
Weights are those that training begins with, so every translation is given as many words as its batch has source
positions, up to ``--longest``. What is timed is what fairseq-generate does with a batch: encoder, and at each word
decoder and search.
"""

import argparse
import sys
import time
from typing import Dict, List

import torch
from fairseq import options, tasks, utils
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from training_speed import ON_CPU, SYSTEMS, add_reduce, chosen_systems, measure, model_options, publish, reduced_number

import fairseq_structattn  # noqa: F401  (registers the architectures)
from fairseq_structattn.analysis.files import check_outputs, command

# Those of training_speed.py whose generation differs.
GENERATING = ("lstm", "luong_general", "luong_general_input_feeding", "crf", "bahdanau")


class Generating:
    """A model with fairseq's generator, and the seconds that each of its batches took.

    Args:
        data: a folder made by fairseq-preprocess
        arguments: of fairseq-train, to choose the architecture and its sizes
        beam: size of the beam
        device: where to translate
    """

    def __init__(self, data: str, arguments: List[str], beam: int, device: torch.device):
        argv = [data, *arguments, *(ON_CPU.split() if device.type == "cpu" else [])]
        config = convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_training_parser(), argv))
        config.generation.beam = beam
        self.config, self.task = config, tasks.setup_task(config.task)
        utils.set_torch_seed(1)
        self.model = self.task.build_model(config.model).to(device).eval()
        self.model.prepare_for_inference_(config)
        self.device = device
        self.seconds: List[float] = []

    def update(self, batch: Dict) -> None:
        """Translates a batch, timed."""
        # Every hypothesis has this length; </s> comes after it.
        words = batch["words"]
        self.config.generation.min_len = self.config.generation.max_len_b = words
        generator = self.task.build_generator([self.model], self.config.generation)
        start = time.perf_counter()
        self.task.inference_step(generator, [self.model], batch)
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        self.seconds.append(time.perf_counter() - start)


def batches_of(generating: Generating, count: int, size: int, longest: int, device: torch.device) -> List[Dict]:
    """`count` batches of `size` validation sentences spread evenly from short sentences to long ones."""
    generating.task.load_dataset("valid")
    dataset = generating.task.dataset("valid")
    order = sorted(range(len(dataset)), key=lambda index: dataset.src_sizes[index])
    if len(order) < size:
        sys.exit(f"error: the validation set has {len(order)} sentences, a batch of --batch-size {size} needs more")
    starts = [round(turn * (len(order) - size) / max(count - 1, 1)) for turn in range(count)]
    batches = [dataset.collater([dataset[index] for index in order[start : start + size]]) for start in starts]
    for batch in batches:
        batch["words"] = min(batch["net_input"]["src_tokens"].size(1), longest)
        batch["ntokens"] = size * batch["words"]
    return [utils.move_to_cuda(batch) for batch in batches] if device.type == "cuda" else batches


@command
def main(arguments=None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", metavar="BIN_DIR")
    parser.add_argument("--systems", default=",".join(GENERATING), help="comma separated (default: %(default)s)")
    parser.add_argument("--beam", type=int, default=5, help="size of the beam (default: 5)")
    parser.add_argument("--batch-size", type=int, default=16, help="sentences of a batch (default: 16)")
    parser.add_argument("--batches", type=int, default=4, help="number of batches (default: 4)")
    parser.add_argument("--longest", type=int, default=30, help="most words of a translation (default: 30)")
    parser.add_argument("--rounds", type=int, default=3, help="translations of each batch (default: 3)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    add_reduce(parser, "sizes of models, and the rounds,")
    parser.add_argument("--output", metavar="FILE", help="file to which rows are appended (default: only print them)")
    arguments = parser.parse_args(arguments)
    systems = chosen_systems(parser, arguments.systems)
    check_outputs({"--output": arguments.output})
    device, sizes = torch.device(arguments.device), model_options("equal", arguments.reduce)
    generating = {
        name: Generating(arguments.data, SYSTEMS[name].split() + sizes, arguments.beam, device) for name in systems
    }
    first = generating[systems[0]]
    batches = batches_of(first, arguments.batches, arguments.batch_size, arguments.longest, device)
    rounds = reduced_number(arguments.rounds, arguments.reduce)
    sizes_of_data = f", beam {arguments.beam}, {arguments.batch_size} sentences"
    reduced = f", reduced {arguments.reduce} times" if arguments.reduce > 1 else ""
    rows = measure(systems, batches, generating, rounds, sizes_of_data + reduced, "translation")
    publish(rows, arguments.output, "generation_speed.py")


if __name__ == "__main__":
    main()
