"""Averages the parameters of checkpoints of one training into a checkpoint that translates.

    structattn-average checkpoints/checkpoint{7,8,9}.pt --output checkpoints/average.pt

The mean of the last epochs' parameters often translates better than any of them, as long as they come from one
training. The mean of parameters of different seeds makes no sense; such models can form an ensemble. All other content
is that of the last checkpoint, without the state of the optimiser: the average can translate, but not resume training.
"""

import argparse
from typing import Dict, List

import torch

from fairseq_structattn.analysis.files import InputError, beside, check_inputs, check_outputs, command

OPTIMISER = "last_optimizer_state"


def load(path: str) -> Dict:
    """A checkpoint of fairseq on the CPU.

    Raises:
        InputError: the file is no checkpoint
    """
    import fairseq  # noqa: F401  (first: its import applies the repairs, which cannot import it themselves)

    from fairseq_structattn.compat.checkpoints import load_checkpoint

    try:
        found = load_checkpoint(path, map_location="cpu")
    except Exception as error:  # torch and pickle raise many types for other files
        reason = str(error).split("\n")[0]
        raise InputError(f"{path}: not a checkpoint of fairseq ({type(error).__name__}: {reason})") from None
    if not isinstance(found, dict) or not isinstance(found.get("model"), dict):
        raise InputError(f"{path}: not a checkpoint of fairseq; it has no parameters of a model")
    return found


def check_alike(first: Dict[str, torch.Tensor], other: Dict[str, torch.Tensor], path: str) -> None:
    """Refuses checkpoints whose parameters differ in name or shape.

    Raises:
        InputError: parameters that only one of them has, or of another shape
    """
    different = sorted(
        name
        for name in {*first, *other}
        if getattr(first.get(name), "shape", 0) != getattr(other.get(name), "shape", 1)
    )
    if different:
        raise InputError(
            f"{path}: another model than the first, its {different[0]} differs; average checkpoints of one training"
        )


def average(states: List[Dict[str, torch.Tensor]]) -> Dict[str, torch.Tensor]:
    """The means of parameters, in their own precision; integers, such as counts, are those of the last checkpoint."""
    means = {}
    for name, last in states[-1].items():
        if last.is_floating_point():
            total = torch.stack([state[name].double() for state in states]).sum(0)
            means[name] = (total / len(states)).to(last.dtype)
        else:
            means[name] = last
    return means


@command
def main(arguments=None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoints", nargs="+", metavar="FILE", help="checkpoints of one training")
    parser.add_argument("--output", required=True, metavar="FILE", help="checkpoint to write")
    options = parser.parse_args(arguments)
    check_inputs({f"checkpoint {number}": path for number, path in enumerate(options.checkpoints, 1)})
    check_outputs({"--output": options.output})
    loaded = [load(path) for path in options.checkpoints]
    for path, one in zip(options.checkpoints, loaded):
        check_alike(loaded[0]["model"], one["model"], path)
    kept = {name: value for name, value in loaded[-1].items() if name != OPTIMISER}
    with beside(options.output) as made:
        torch.save({**kept, "model": average([one["model"] for one in loaded])}, made)
    print(f"averaged {len(loaded)} checkpoints: {options.output}")


if __name__ == "__main__":
    main()
