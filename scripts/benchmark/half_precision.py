"""Whether training is stable in half precision: losses, loss scale and peak memory of some hundred updates.

    python scripts/benchmark/half_precision.py BIN_DIR --systems lstm,crf --precisions fp16,bf16 --device cuda

Every update is one of fairseq's trainer, on real sentences. The losses are means, in bits a target word, of the first
and of the last tenth of the updates; null where one was not finite. Fairseq multiplies the loss in fp16 by a scale, so
that small gradients survive; where a gradient overflows it leaves the update out (``skipped``) and lowers the scale.
Training has collapsed where ``updates`` are fewer than asked for: the scale fell below fairseq's limit, or the gradient
was not finite.
"""

import argparse
import json
import math
import sys
from typing import Dict, List, Optional

import torch
from training_speed import PRECISIONS, SYSTEMS, Trained, add_reduce, model_options, reduced_number, sample_batches

from fairseq_structattn.analysis.files import check_outputs, command
from fairseq_structattn.analysis.results import machine, replace_rows, versions


def train(trained: Trained, batches: List[Dict], updates: int) -> Dict:
    """What became of the updates, as columns of a row."""
    losses, scales = [], []
    try:
        for number in range(updates):
            logged = trained.update(batches[number % len(batches)])
            losses += [] if logged is None else [float(logged["loss"])]
            scales.append(loss_scale(trained.trainer.optimizer))
    except FloatingPointError as error:
        print(f"training collapsed after {len(scales)} updates: {error}", file=sys.stderr)
    tenth = max(1, updates // 10)
    scales = [scale for scale in scales if scale is not None]
    return {
        "updates": len(trained.seconds),
        "skipped": len(trained.seconds) - len(losses),
        "first_loss": mean(losses[:tenth]),
        "last_loss": mean(losses[-tenth:]),
        "least_loss_scale": min(scales, default=None),
        "last_loss_scale": scales[-1] if scales else None,
    }


def loss_scale(optimizer) -> Optional[float]:
    """Of an optimizer of fairseq, None where it scales nothing."""
    scaler = getattr(optimizer, "scaler", None)
    if scaler is None:
        return None
    return float(scaler.get_scale() if hasattr(scaler, "get_scale") else scaler.loss_scale)


def mean(losses: List[float]) -> Optional[float]:
    """Rounded; None where there is none that is finite."""
    average = sum(losses) / len(losses) if losses else math.nan
    return round(average, 3) if math.isfinite(average) else None


def measure(arguments: argparse.Namespace, system: str, precision: str) -> Dict:
    """The row of one system in one precision."""
    device = torch.device(arguments.device)
    options = SYSTEMS[system].split() + model_options(arguments.sizes, arguments.reduce)
    updates = reduced_number(arguments.updates, arguments.reduce)
    if device.type == "cuda":
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
    trained = Trained(arguments.data, options, arguments.max_tokens, device, precision)
    trained.trainer.cuda_env = None  # else the trainer itself resets the peak after each update
    batches = sample_batches(trained, arguments.batches, arguments.max_tokens, device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    row = {"job": f"{updates} updates", "system": system, "precision": precision}
    row.update(train(trained, batches, updates))
    peak = round((torch.cuda.max_memory_allocated() - before) / 2**20) if device.type == "cuda" else None
    return {**row, "peak_mb": peak}


@command
def main(arguments=None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", metavar="BIN_DIR")
    parser.add_argument("--systems", default=",".join(SYSTEMS), help="comma separated (default: all)")
    parser.add_argument("--precisions", default=",".join(PRECISIONS), help="comma separated (default: all)")
    parser.add_argument("--updates", type=int, default=200, help="number of updates (default: 200)")
    parser.add_argument("--max-tokens", type=int, default=3000, help="tokens in a batch (default: 3000)")
    parser.add_argument("--batches", type=int, default=20, help="number of batches (default: 20)")
    parser.add_argument("--sizes", choices=("equal", "presets"), default="equal", help="see training_speed.py")
    add_reduce(parser, "equal sizes of models, and the updates,")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--output", required=True, metavar="FILE", help="file to which rows are appended")
    arguments = parser.parse_args(arguments)
    chosen = {"--systems": arguments.systems.split(","), "--precisions": arguments.precisions.split(",")}
    for (option, names), known in zip(chosen.items(), (SYSTEMS, PRECISIONS)):
        unknown = [name for name in names if name not in known]
        if unknown:
            parser.error(f"{option} {','.join(unknown)}: not known, choose from {', '.join(known)}")
    check_outputs({"--output": arguments.output})
    content = {
        "command": "python scripts/benchmark/half_precision.py BIN_DIR",
        "versions": versions(),
        "machine": machine(),
    }
    for system in chosen["--systems"]:
        for precision in chosen["--precisions"]:
            row = measure(arguments, system, precision)
            print(json.dumps(row), flush=True)
            replace_rows(arguments.output, {**content, "rows": [row]}, ("job", "system", "precision"))


if __name__ == "__main__":
    main()
