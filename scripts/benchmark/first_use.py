"""How long kernels for the CPU take to compile at first use, from an empty cache: seconds of one core's time.

    python scripts/benchmark/first_use.py
    python scripts/benchmark/first_use.py --kernels 5    also the five slowest functions of each row

Each row is an action of one process, the first of which trains with a chain; a row counts only kernels that no row
before it has compiled. Time of other processes on a busy machine is not counted. The user's cache is not changed.
"""

import argparse
import collections
import os
import tempfile
import time
from typing import Callable, Dict, List

import torch

from fairseq_structattn.analysis.files import check_outputs, command
from fairseq_structattn.analysis.results import machine, replace_rows, versions
from fairseq_structattn.distributions import LinearChain, ProjectiveTree, SpanningTree


class CompileTimes:
    """What numba compiled since it was last asked: its own seconds of each function, without those of its parts."""

    def __init__(self):
        from numba.core import event

        times = self

        class Listener(event.Listener):
            def on_start(self, event):
                times.running.append([time.thread_time(), 0.0])

            def on_end(self, event):
                start, of_parts = times.running.pop()
                seconds = time.thread_time() - start
                if times.running:
                    times.running[-1][1] += seconds
                times.seconds[event.data["dispatcher"].py_func.__qualname__] += seconds - of_parts

        self.running: List[List[float]] = []
        self.seconds: Dict[str, float] = collections.Counter()
        event.register("numba:compile", Listener())

    def take(self) -> Dict[str, float]:
        """By name of the function."""
        taken, self.seconds = self.seconds, collections.Counter()
        return taken


def first_uses() -> Dict[str, Callable]:
    """What a process may do, in the order of the rows."""
    chain, table = torch.randn(4, 6, requires_grad=True), torch.randn(2, 2, requires_grad=True)
    states, tables = torch.randn(4, 6, 3, requires_grad=True), torch.randn(3, 3, requires_grad=True)
    arcs = torch.randn(4, 6, 5, requires_grad=True)
    made = {
        "binary chain": lambda: LinearChain(chain, table),
        "chain of states": lambda: LinearChain(states, tables, num_states=3),
        "projective tree": lambda: ProjectiveTree(arcs),
        "spanning tree": lambda: SpanningTree(arcs),
    }
    uses = {}
    for name, make in made.items():
        uses[f"{name}: marginals and gradients"] = lambda make=make: make().marginals.square().sum().backward()
        uses[f"{name}: argmax"] = lambda make=make: make().argmax
        uses[f"{name}: sample"] = lambda make=make: make().sample()
    return uses


def measure(kernels: int) -> List[Dict]:
    """Rows of all first uses, and of their sum."""
    times, rows = CompileTimes(), []
    for name, use in first_uses().items():
        use()
        taken = times.take()
        rows.append({"job": name, "seconds": round(sum(taken.values()), 1)})
        print(f"{rows[-1]['seconds']:6.1f}  {name}", flush=True)
        for function, seconds in sorted(taken.items(), key=lambda item: -item[1])[:kernels]:
            print(f"          {seconds:6.2f}  {function}")
    rows.append({"job": "all", "seconds": round(sum(row["seconds"] for row in rows), 1)})
    print(f"{rows[-1]['seconds']:6.1f}  all")
    return rows


@command
def main(arguments=None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--kernels", type=int, default=0, metavar="N", help="also show the N slowest functions (default: 0)"
    )
    parser.add_argument("--output", metavar="FILE", help="file for the results (default: only print them)")
    options = parser.parse_args(arguments)
    check_outputs({"--output": options.output})
    # One thread: what is compiled in another has a clock of its own.
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["STRUCTATTN_CACHE"] = folder
        rows = measure(options.kernels)
    if options.output is not None:
        content = {"versions": versions("numba"), "machine": machine(), "rows": rows}
        replace_rows(options.output, {"command": "python scripts/benchmark/first_use.py", **content}, ("job",))


if __name__ == "__main__":
    main()
