"""Target words per second of training: fairseq's Transformer and this package's with structured heads, in one run.

    python scripts/benchmark/transformer.py BIN_DIR
    python scripts/benchmark/transformer.py BIN_DIR --systems softmax,chain --max-tokens 4000 --rounds 10

The models have the sizes of ``transformer_iwslt_de_en`` and take turns, update by update, on the same batches, as in
training_speed.py. On a CPU the time is that of the processor, whatever else the machine does. Each ratio is the median,
over updates, of the time of fairseq's model divided by the system's; its interval is that of a bootstrap of these
updates (95 %). BIN_DIR is a folder made by fairseq-preprocess.
"""

import argparse
import sys
import time
from typing import Dict, List, Sequence, Tuple

import numpy as np
import torch
from training_speed import Trained, sample_batches

from fairseq_structattn.analysis.files import check_outputs, command
from fairseq_structattn.analysis.results import machine, replace_rows, versions

BASELINE = "transformer"
OURS = "--arch structattn_transformer_iwslt_de_en"
TREES = "--encoder-self-attention-layers 0 --encoder-self-attention-heads"
SYSTEMS = {
    BASELINE: "--arch transformer_iwslt_de_en",
    "softmax": OURS,
    "chain": f"{OURS} --cross-attention-heads linear-chain",
    "two chains": f"{OURS} --cross-attention-heads softmax,linear-chain:2",
    "two projective trees": f"{OURS} {TREES} softmax,projective-tree:2",
    "two spanning trees": f"{OURS} {TREES} softmax,spanning-tree:2",
}
# The least ratio that is aimed at.
TARGETS = {"softmax": 0.97, "chain": 0.9, "two chains": 0.9, "two projective trees": 0.8, "two spanning trees": 0.8}
TINY = "--encoder-embed-dim 16 --encoder-ffn-embed-dim 16 --decoder-embed-dim 16 --decoder-ffn-embed-dim 16"
RESAMPLES = 2000


def times(trained: Dict[str, Trained], batches: List[Dict], rounds: int) -> Dict[str, List[float]]:
    """The seconds of each update of each system; the systems take turns."""
    systems, seconds = list(trained), {system: [] for system in trained}
    for system in systems:
        trained[system].update(batches[-1])
    for turn in range(rounds):
        for number, batch in enumerate(batches):
            # The order of the systems changes, so that no system always follows the same other.
            for offset in range(len(systems)):
                system = systems[(number + turn + offset) % len(systems)]
                clock = time.process_time if trained[system].device.type == "cpu" else time.perf_counter
                start = clock()
                trained[system].update(batch)
                seconds[system].append(clock() - start)
        print(f"round {turn + 1} of {rounds}", file=sys.stderr)
    return seconds


def ratio(baseline: Sequence[float], system: Sequence[float]) -> Tuple[float, float, float]:
    """The median of the quotients of paired times, and its interval by bootstrap, lower and upper end."""
    quotients = np.array(baseline) / np.array(system)
    drawn = np.random.default_rng(1).choice(quotients, (RESAMPLES, len(quotients)))
    lower, upper = np.percentile(np.median(drawn, 1), [2.5, 97.5])
    return float(np.median(quotients)), float(lower), float(upper)


def rows_of(seconds: Dict[str, List[float]], words: int, job: str) -> List[Dict]:
    """A row of results for each system, after `words` target words."""
    rows = []
    for system, own in seconds.items():
        middle, lower, upper = ratio(seconds[BASELINE], own)
        row = {"job": job, "system": system, "words_per_second": round(words / sum(own))}
        target = TARGETS.get(system, "")
        rows.append({**row, "ratio": round(middle, 3), "interval": f"{lower:.3f} to {upper:.3f}", "target": target})
    return rows


@command
def main(arguments=None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", metavar="BIN_DIR")
    parser.add_argument("--systems", default=",".join(SYSTEMS), help="comma separated (default: all)")
    parser.add_argument("--max-tokens", type=int, default=2000, help="tokens of a batch (default: 2000)")
    parser.add_argument("--batches", type=int, default=4, help="different batches (default: 4)")
    parser.add_argument("--rounds", type=int, default=5, help="updates of each system on each batch (default: 5)")
    parser.add_argument("--tiny", action="store_true", help="small models, to try the script out")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--output", metavar="FILE", help="of results, to which rows are added (default: only printed)")
    options = parser.parse_args(arguments)
    systems = list(dict.fromkeys([BASELINE, *options.systems.split(",")]))
    unknown = [system for system in systems if system not in SYSTEMS]
    if unknown:
        parser.error(f"--systems {options.systems}: {unknown[0]} is not known, choose from {', '.join(SYSTEMS)}")
    check_outputs({"--output": options.output})
    device, more = torch.device(options.device), ["--dropout", "0.3", *(TINY.split() if options.tiny else [])]
    trained = {
        name: Trained(options.data, SYSTEMS[name].split() + more, options.max_tokens, device) for name in systems
    }
    batches = sample_batches(trained[BASELINE], options.batches, options.max_tokens, device)
    seconds = times(trained, batches, options.rounds)
    job = f"training step of a Transformer, {options.max_tokens} tokens{', tiny sizes' if options.tiny else ''}"
    rows = rows_of(seconds, sum(batch["ntokens"] for batch in batches) * options.rounds, job)
    for row in rows:
        print("  ".join(str(value) for value in row.values()))
    if options.output is not None:
        content = {
            "command": "python scripts/benchmark/transformer.py BIN_DIR",
            "versions": versions("numba"),
            "machine": f"{machine()}, {torch.get_num_threads()} threads",
            "rows": rows,
        }
        replace_rows(options.output, content, ("job", "system"))


if __name__ == "__main__":
    main()
