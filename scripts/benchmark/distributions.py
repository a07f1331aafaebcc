"""Marginals and their backward pass: this package beside torch-struct and SuPar, in one process, in float32.

    pip install -e ".[fast,benchmark]" -c constraints.txt
    python scripts/benchmark/distributions.py

Before a job is timed, each library's marginals and gradients are compared with this package's plain PyTorch in float64
(``max_error``; – where they are not finite). The libraries then take turns, so that other work of the machine affects
all of them alike; ``ratio`` is the median, over turns, of a library's time divided by ours for forward and backward
pass together. ``peak_mb`` is the peak memory that both passes add to a fresh process, or to the GPU. On a GPU times are
measured on the device: its queue is kept full, so that they exclude the launch overhead of Python. ``copy`` is the time
to copy scores and gradients on a GPU. A library that is not installed is left out. For jobs about another quantity,
``marginals`` is the time of this package's marginals from the same scores. ``--jobs cliffs`` compares cases that need
more than the simplest one, such as impossible states, with the simplest one: ``ratio`` of the line ``cliff``.
"""

import argparse
import importlib
import importlib.util
import math
import os
import subprocess
import sys
import time
import warnings
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence

import torch
from torch import Tensor

from fairseq_structattn.analysis.files import check_outputs, command
from fairseq_structattn.analysis.results import machine, replace_rows, versions
from fairseq_structattn.distributions import BinaryTree, LinearChain, ProjectiveTree, SpanningTree, use_backend
from fairseq_structattn.distributions.kernels import triton_launch

OURS = "fairseq_structattn"
COPY = "copy"
MARGINALS = "marginals"
CLIFF = "cliff"
WITH_PAPER = ("reference", "paper")
# Items whose results are compared; in float64 and with a tape over the recursion, all would take long.
CHECKED = 4


class System(NamedTuple):
    """A library at one job: its inputs, its computation, and the conversion of both to this package's layout."""

    inputs: List[Tensor]
    upstream: Tensor
    marginals: Callable[..., Tensor]
    decode: Callable[[Tensor], Tensor]

    def run(self, device: torch.device) -> List[Tensor]:
        """Marginals, gradients, and as a last tensor the seconds at the end of either pass."""
        leaves = [tensor.detach().clone().requires_grad_() for tensor in self.inputs]
        clock = Clock(device)
        marginals = self.marginals(*leaves)
        clock.lap()
        marginals.backward(self.upstream)
        clock.lap()
        return [marginals.detach(), leaves[0].grad, torch.tensor(clock.seconds())]


class Job(NamedTuple):
    """A problem: scores of the given shape and standard deviation, the batch first. Of this package's backends only the
    compiled one is timed unless ``thorough``."""

    name: str
    systems: Callable[[Tensor, Tensor], Dict[str, System]]
    shape: Sequence[int]
    deviation: float = 1.0
    thorough: bool = True

    @property
    def length(self) -> int:
        return self.shape[-1] if self.systems is not state_chains else self.shape[1] + 1

    def reduced(self, by: int) -> "Job":
        """The same job with lengths divided by ``by``, and the number of items by its cube."""
        fewer = self.length - min(max(self.length // by, 2), self.length)
        positions = 1 if self.systems is state_chains else len(self.shape) - 1
        shorter = [size - fewer for size in self.shape[1 : 1 + positions]]
        return self._replace(shape=(max(self.shape[0] // by**3, 1), *shorter, *self.shape[1 + positions :]))

    def draw(self, batch: int, device: torch.device, dtype: torch.dtype = torch.float32) -> Dict[str, System]:
        """Its systems, for the first `batch` items."""
        torch.manual_seed(1)
        scores, upstream = self.deviation * torch.randn(*self.shape), torch.randn(*self.shape)
        return self.systems(scores[:batch].to(device, dtype), upstream[:batch].to(device, dtype))


class Clock:
    """Times since it was made, on the CPU or on a GPU."""

    # Cycles of the GPU, a few milliseconds, in which Python launches the kernels that are timed.
    HEAD_START = 10_000_000

    def __init__(self, device: torch.device):
        self.on_gpu = device.type == "cuda"
        if self.on_gpu:
            torch.cuda.synchronize()
            torch.cuda._sleep(self.HEAD_START)
        self.laps = []
        self.lap()

    def lap(self) -> None:
        """Marks this moment, on a GPU the moment when it has done what it was asked so far."""
        if self.on_gpu:
            self.laps.append(torch.cuda.Event(enable_timing=True))
            self.laps[-1].record()
        else:
            self.laps.append(time.perf_counter())

    def seconds(self) -> List[float]:
        """From the start to each lap."""
        first, *others = self.laps
        if not self.on_gpu:
            return [lap - first for lap in others]
        torch.cuda.synchronize()
        return [first.elapsed_time(lap) / 1e3 for lap in others]


def identity(tensor: Tensor) -> Tensor:
    return tensor


def ours(
    function: Callable[..., Tensor], *inputs: Tensor, upstream: Tensor, others: Sequence[str] = ("reference",)
) -> Dict[str, System]:
    """This package's kernels and other backends for ``function``, from potentials to marginals."""

    def under(backend: str) -> Callable[..., Tensor]:
        def run(*potentials: Tensor) -> Tensor:
            with use_backend(backend):
                return function(*potentials)

        return run

    return {
        f"{OURS} {backend}": System(list(inputs), upstream, under(backend), identity)
        for backend in (compiled_backend(inputs[0].device), *others)
    }


def compiled_backend(device: torch.device) -> str:
    """``cuda`` on a GPU, and in Triton's interpreter, where there is none."""
    return "cuda" if device.type == "cuda" or triton_launch.interpreted() else "cpu"


def load(name: str):
    """The module of another library, None if it is not installed."""
    return importlib.import_module(name) if importlib.util.find_spec(name.split(".")[0]) else None


def binary_chains(unary: Tensor, upstream: Tensor) -> Dict[str, System]:
    """Chains ``[batch, n]`` of two states with one table; torch-struct takes a table per edge."""
    torch_struct, structs = load("torch_struct"), load("supar.structs")
    table = torch.tensor([[0.3, -0.2], [-0.4, 0.6]]).to(unary)
    stays = torch.zeros_like(unary)

    def torch_struct_marginals(scores: Tensor) -> Tensor:
        states = torch.stack((torch.zeros_like(scores), scores), -1)
        edges = table.t() + states[:, 1:, :, None]
        edges = torch.cat((edges[:, :1] + states[:, :1, None, :], edges[:, 1:]), 1)
        pairs = torch_struct.LinearChainCRF(edges).marginals
        return torch.cat((pairs[:, :1].sum(2)[..., 1], pairs.sum(3)[..., 1]), 1)

    def supar_marginals(scores: Tensor) -> Tensor:
        transitions = torch.nn.functional.pad(table, (0, 1, 0, 1))
        return structs.LinearChainCRF(torch.stack((stays, scores), -1), transitions).marginals[..., 1]

    systems = ours(lambda scores: LinearChain(scores, table).marginals, unary, upstream=upstream, others=WITH_PAPER)
    if unary.is_cuda:
        systems[COPY] = System([unary], upstream, torch.clone, identity)
    if torch_struct:
        systems["torch-struct"] = System([unary], upstream, torch_struct_marginals, identity)
    if structs:
        systems["SuPar"] = System([unary], upstream, supar_marginals, identity)
    return systems


def quantity_of_chains(
    quantity: Callable[[LinearChain, LinearChain], Tensor],
) -> Callable[[Tensor, Tensor], Dict[str, System]]:
    """A quantity of binary chains and of others with the same couplings, summed up for each chain, beside marginals."""

    def systems(unary: Tensor, upstream: Tensor) -> Dict[str, System]:
        table = torch.tensor([[0.3, -0.2], [-0.4, 0.6]]).to(unary)

        def marginals(scores: Tensor) -> Tensor:
            return LinearChain(scores, table).marginals

        def values(scores: Tensor) -> Tensor:
            value = quantity(LinearChain(scores, table), LinearChain(torch.zeros_like(scores), table))
            return value.reshape(len(scores), -1).sum(1)

        made = ours(values, unary, upstream=upstream[:, 0])
        made[MARGINALS] = System([unary], upstream, marginals, identity)
        return made

    return systems


def cliff(simple: Callable[[Tensor], Tensor], special: Callable[[Tensor], Tensor]) -> Callable[..., Dict[str, System]]:
    """Two functions of this package of the same scores: the simplest case, and one that needs more."""

    def systems(scores: Tensor, upstream: Tensor) -> Dict[str, System]:
        made = ours(simple, scores, upstream=upstream)
        made[CLIFF] = System([scores], upstream, special, identity)
        return made

    return systems


TABLE = torch.tensor([[0.3, -0.2], [-0.4, 0.6]])
FORBIDDING = torch.tensor([[0.3, -math.inf], [-0.4, 0.6]])


def _chain(table: Tensor = TABLE, **options) -> Callable[[Tensor], Tensor]:
    return lambda scores: LinearChain(scores, table.to(scores), **options).marginals


def _chain_with_tables(scores: Tensor) -> Tensor:
    tables = TABLE.to(scores).expand(*scores[..., 1:].shape, 2, 2)
    return LinearChain(scores, tables.contiguous()).marginals


def _chain_of_states(scores: Tensor) -> Tensor:
    states = torch.stack((torch.zeros_like(scores), scores), -1)
    return LinearChain(states, TABLE.to(scores), num_states=2).marginals[..., 1]


def _masked_chain(scores: Tensor) -> Tensor:
    return LinearChain(scores.masked_fill(scores > 1, -1e9), TABLE.to(scores)).marginals


def _tree(kind: type, scale: float = 1.0, forbid: bool = False) -> Callable[[Tensor], Tensor]:
    def marginals(scores: Tensor) -> Tensor:
        return kind((scale * scores).masked_fill(scores > 1, -math.inf) if forbid else scale * scores).marginals

    return marginals


def _prefer_each_other(arcs: Tensor) -> Tensor:
    """Adds 50 to the scores of arcs between words 1 and 2, 3 and 4, and so on."""
    bonus = torch.zeros_like(arcs)
    first, second = torch.arange(0, arcs.shape[-1] - 1, 2), torch.arange(1, arcs.shape[-1], 2)
    bonus[:, first + 1, second] = bonus[:, second + 1, first] = 50
    return arcs + bonus


def sampled_trees(change: Callable[[Tensor], Tensor]) -> Callable[..., Dict[str, System]]:
    """A sample of each spanning tree, of scores and of changed scores; the backward pass is of the scores alone."""

    def sample(arcs: Tensor) -> Tensor:
        return SpanningTree(arcs.detach()).sample() * arcs

    return cliff(sample, lambda arcs: sample(change(arcs)))


def state_chains(edges: Tensor, upstream: Tensor) -> Dict[str, System]:
    """Chains of K states with scores and marginals of edges, ``[batch, n-1, K, K]``."""
    torch_struct = load("torch_struct")
    states = torch.zeros(edges.shape[0], edges.shape[1] + 1, edges.shape[-1]).to(edges)

    def edge_marginals(pairwise: Tensor) -> Tensor:
        return LinearChain(states, pairwise, num_states=states.shape[-1]).edge_marginals

    systems = ours(edge_marginals, edges, upstream=upstream)
    # With 50 states a run of torch-struct takes 17 seconds and 4 GB.
    if not torch_struct or states.shape[-1] > 25:
        return systems
    flipped = (edges.transpose(2, 3).contiguous(), upstream.transpose(2, 3).contiguous())
    systems["torch-struct"] = System(
        [flipped[0]],
        flipped[1],
        lambda scores: torch_struct.LinearChainCRF(scores).marginals,
        lambda marginals: marginals.transpose(2, 3),
    )
    return systems


def _to_torch_struct(arcs: Tensor) -> Tensor:
    """From ``[batch, n+1, n]``, the root's row first, to ``[batch, n, n]`` with the root's arcs on the diagonal."""
    square = arcs[:, 1:].clone()
    square.diagonal(0, 1, 2).copy_(arcs[:, 0])
    return square


def _from_torch_struct(square: Tensor) -> Tensor:
    words = square.clone()
    words.diagonal(0, 1, 2).zero_()
    return torch.cat((square.diagonal(0, 1, 2).unsqueeze(1), words), 1)


def _to_supar(arcs: Tensor) -> Tensor:
    """From ``[batch, n+1, n]`` to ``[batch, dependent, head]``, where the root is a dependent too."""
    return torch.nn.functional.pad(arcs, (1, 0)).transpose(1, 2).contiguous()


def _from_supar(scores: Tensor) -> Tensor:
    return scores.transpose(1, 2)[:, :, 1:]


def trees(cls: type, torch_struct_name: str, supar_name: str) -> Callable[[Tensor, Tensor], Dict[str, System]]:
    """Trees over ``[batch, n+1, n]``, with any number of words on the root."""

    def systems(arcs: Tensor, upstream: Tensor) -> Dict[str, System]:
        torch_struct, structs = load("torch_struct"), load("supar.structs")
        lengths = torch.full((len(arcs),), arcs.shape[-1], device=arcs.device)
        upstream = upstream * cls(arcs).arc_mask
        others = WITH_PAPER if cls is ProjectiveTree else ("reference",)
        made = ours(lambda scores: cls(scores).marginals, arcs, upstream=upstream, others=others)
        if torch_struct:
            made["torch-struct"] = System(
                [_to_torch_struct(arcs)],
                _to_torch_struct(upstream),
                lambda square: getattr(torch_struct, torch_struct_name)(square, multiroot=True).marginals,
                _from_torch_struct,
            )
        if structs:
            made["SuPar"] = System(
                [_to_supar(arcs)],
                _to_supar(upstream),
                lambda scores: getattr(structs, supar_name)(scores, lengths, multiroot=True).marginals,
                _from_supar,
            )
        return made

    return systems


def constituents(spans: Tensor, upstream: Tensor) -> Dict[str, System]:
    """Binary trees with scores of spans ``[batch, n, n]``, by their first and last word."""
    torch_struct, structs = load("torch_struct"), load("supar.structs")
    upstream = upstream.triu()
    made = ours(lambda scores: BinaryTree(scores).marginals, spans, upstream=upstream)
    if torch_struct:
        made["torch-struct"] = System(
            [spans.unsqueeze(-1)],
            upstream.unsqueeze(-1),
            lambda scores: torch_struct.TreeCRF(scores).marginals,
            lambda found: found.squeeze(-1).triu(),
        )
    if structs:
        made["SuPar"] = System(
            [_between_words(spans)],
            _between_words(upstream),
            lambda scores: structs.ConstituencyCRF(scores).marginals,
            lambda found: found[:, :-1, 1:].triu(),
        )
    return made


def _between_words(spans: Tensor) -> Tensor:
    """From ``[batch, n, n]``, by first and last word, to ``[batch, n+1, n+1]``, by the places before and after."""
    return torch.nn.functional.pad(spans, (1, 0, 0, 1))


PROJECTIVE = trees(ProjectiveTree, "DependencyCRF", "DependencyCRF")
SPANNING = trees(SpanningTree, "NonProjectiveDependencyCRF", "MatrixTree")
QUANTITIES = (
    ("edge marginals", lambda chain, other: chain.edge_marginals),
    ("entropy", lambda chain, other: chain.entropy()),
    ("divergence", lambda chain, other: chain.kl(other)),
)
GROWTH = (25, 50, 100, 200)
JOBS = {
    "cpu": [
        *(Job("binary chain", binary_chains, (3200, n), thorough=n <= 50) for n in GROWTH),
        *(Job(f"binary chain, {name}", quantity_of_chains(of), (3200, 50), thorough=False) for name, of in QUANTITIES),
        *(Job(f"chain of {states} states", state_chains, (64, 19, states, states)) for states in (25, 50, 100)),
        # Of 32 trees of 200 words the tapes of the other libraries take more than 16 GB.
        *(Job("projective tree", PROJECTIVE, (32 if n < 200 else 8, n + 1, n), thorough=n <= 50) for n in GROWTH),
        *(Job("binary tree", constituents, (32 if n < 200 else 8, n, n), thorough=n <= 50) for n in GROWTH),
        *(Job("spanning tree", SPANNING, (32 if n < 200 else 8, n + 1, n), thorough=n <= 50) for n in GROWTH),
        Job("spanning tree, deviation 30", SPANNING, (32, 51, 50), 30.0),
    ],
    "cuda": [
        Job("binary chain", binary_chains, (100_000, 200), thorough=False),
        Job("binary chain", binary_chains, (3200, 50)),
        Job("binary chain", binary_chains, (64, 50)),
        *(Job(f"chain of {states} states", state_chains, (64, 19, states, states)) for states in (25, 100)),
        *(Job("projective tree", PROJECTIVE, (256, n + 1, n)) for n in (32, 64)),
        Job("projective tree, deviation 30", PROJECTIVE, (256, 65, 64), 30.0, thorough=False),
        *(Job("spanning tree", SPANNING, (256, n + 1, n), thorough=n <= 64) for n in (32, 64, 100)),
        Job("spanning tree, deviation 30", SPANNING, (256, 65, 64), 30.0),
    ],
    "cliffs": [
        *(
            Job(f"binary chain, {name}", cliff(_chain(), special), (960, 30), thorough=False)
            for name, special in (
                ("an impossible pair of states", _chain(FORBIDDING)),
                ("scores of both ends", _chain(start=TABLE[0], end=TABLE[1])),
                ("an impossible first state", _chain(start=FORBIDDING[0])),
                ("num_states=2", _chain_of_states),
                ("a table for each edge", _chain_with_tables),
                ("couplings of 100", _chain(100 * TABLE)),
                ("scores of 100", lambda scores: _chain()(100 * scores)),
                ("masks of −1e9", _masked_chain),
            )
        ),
        *(
            Job(f"{name}, {case}", cliff(_tree(kind), _tree(kind, *options)), (32, 51, 50), thorough=False)
            for name, kind in (("projective tree", ProjectiveTree), ("spanning tree", SpanningTree))
            for case, options in (
                ("impossible arcs", (1.0, True)),
                ("deviation 30", (30.0,)),
                ("deviation 100", (100.0,)),
            )
        ),
        *(
            Job(f"sample of a spanning tree, {name}", sampled_trees(change), (8, n + 1, n), thorough=False)
            for n in (50, 200)
            for name, change in (
                ("deviation 30", lambda arcs: 30 * arcs),
                ("deviation 100", lambda arcs: 100 * arcs),
                ("words that prefer each other", _prefer_each_other),
            )
        ),
    ],
    # To try the script out, also in Triton's interpreter.
    "tiny": [
        Job("binary chain", binary_chains, (5, 4)),
        Job("binary chain, entropy", quantity_of_chains(QUANTITIES[1][1]), (5, 4)),
        Job("binary tree", constituents, (2, 3, 3)),
        Job("projective tree", PROJECTIVE, (2, 4, 3)),
        Job("spanning tree", SPANNING, (2, 4, 3)),
    ],
}


def errors(job: Job, device: torch.device) -> Dict[str, Optional[float]]:
    """For each system the largest error of marginals and gradients in the first items of a job."""
    exact = job.draw(CHECKED, device, torch.float64)[f"{OURS} reference"].run(device)[:2]
    systems = job.draw(CHECKED, device)
    return {
        name: None if name in (COPY, MARGINALS, CLIFF) else _error(system, exact, device)
        for name, system in systems.items()
    }


def _error(system: System, exact: List[Tensor], device: torch.device) -> Optional[float]:
    try:
        found = [system.decode(tensor) for tensor in system.run(device)[:2]]
    except RuntimeError:  # a singular matrix
        return None
    worst = max((one - other).abs().max().item() for one, other in zip(found, exact))
    return worst if worst < float("inf") else None


def seconds(job: Job, device: torch.device, rounds: int) -> Dict[str, Tensor]:
    """For each system that works at all, ``[rounds, 2]``: forward pass, and forward and backward pass."""
    systems = job.draw(job.shape[0], device)
    slow = () if job.thorough else (f"{OURS} reference", f"{OURS} paper")
    times = {name: [] for name in systems if name not in slow}
    for turn in range(rounds + 1):
        for name, system in [(name, systems[name]) for name in times]:
            try:
                passed = system.run(device)[2]
            except RuntimeError as error:
                if name.startswith(OURS):
                    print(f"{job.name}, {name}: {error}", file=sys.stderr)
                continue
            # The first turn warms up.
            times[name] += [passed] if turn > 0 else []
    return {name: torch.stack(passed) for name, passed in times.items() if passed}


def peak_mb(jobs: str, number: int, system: str, device: torch.device, reduce: int) -> Optional[float]:
    """Peak memory of one run; that of kernels for the CPU is measured in a process of its own."""
    if compiled_backend(device) == "cuda":
        return round(measure_peak(JOBS[jobs][number].reduced(reduce), system, device), 1)
    command = [sys.executable, "-W", "ignore", os.path.abspath(__file__), "--device", str(device), "--jobs", jobs]
    command += ["--reduce", str(reduce), "--peak", str(number), system]
    finished = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    return None if finished.returncode else float(finished.stdout.split()[-1])


def measure_peak(job: Job, name: str, device: torch.device) -> float:
    """Megabytes that a run takes at its highest beyond what a run on one item has left behind."""
    job.draw(1, device)[name].run(device)
    system = job.draw(job.shape[0], device)[name]
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        system.run(device)
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    with open("/proc/self/clear_refs", "w") as resets:
        resets.write("5")  # sets the high-water mark of resident memory to the present
    before = _resident("VmRSS")
    system.run(device)
    return (_resident("VmHWM") - before) / 1024


def _resident(field: str) -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(field))


def measure(jobs: str, number: int, device: torch.device, rounds: int, reduce: int) -> List[Dict]:
    """Rows of one job; without ratios if this package's kernels cannot do it."""
    job = JOBS[jobs][number].reduced(reduce)
    wrong, times = errors(job, device), seconds(job, device, rounds)
    base = times.get(f"{OURS} {compiled_backend(device)}")
    rows = []
    for name, passed in times.items():
        forward, both = passed.median(0).values.tolist()
        library, _, backend = name.partition(" ")
        rows.append(
            {
                "job": job.name,
                "batch": job.shape[0],
                "length": job.length,
                "library": library,
                "backend": backend,
                "forward_ms": round(forward * 1e3, 3),
                "forward_backward_ms": round(both * 1e3, 3),
                "ratio": None if base is None else round((passed[:, 1] / base[:, 1]).median().item(), 2),
                "peak_mb": peak_mb(jobs, number, name, device, reduce),
                "max_error": None if wrong[name] is None else float(f"{wrong[name]:.1e}"),
            }
        )
        print(*rows[-1].values(), sep="\t", flush=True)
    return rows


def print_growth(rows: List[Dict]) -> None:
    """How the time for an item grows from the shortest to the longest job of one name, as a power of the length."""
    for name in sorted({row["job"] for row in rows}):
        for system in sorted({(row["library"], row["backend"]) for row in rows}):
            own = [row for row in rows if row["job"] == name and (row["library"], row["backend"]) == system]
            if len({row["length"] for row in own}) > 1:
                first, last = own[0], own[-1]
                times = last["forward_backward_ms"] / last["batch"] / (first["forward_backward_ms"] / first["batch"])
                power = math.log(times) / math.log(last["length"] / first["length"])
                span = f"{first['length']} to {last['length']}"
                print(f"{name}, {' '.join(system)}: {times:.1f} times from n = {span}, n^{power:.2f}")


@command
def main(arguments=None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", choices=JOBS, help="list of jobs (default: that of the device)")
    parser.add_argument("--job", action="append", metavar="NAME", help="only jobs whose name contains this")
    parser.add_argument("--rounds", type=int, default=7, help="measurements of each library (default: 7)")
    parser.add_argument(
        "--reduce",
        type=int,
        default=1,
        metavar="N",
        help="divide lengths and rounds by this, and numbers of items by its cube, to try the script out (default: 1)",
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--peak", nargs=2, metavar=("NUMBER", "SYSTEM"), help=argparse.SUPPRESS)
    parser.add_argument("--output", metavar="FILE", help="file to which rows are appended (default: only print them)")
    arguments = parser.parse_args(arguments)
    device = torch.device(arguments.device)
    jobs = arguments.jobs or device.type
    # Both libraries warn of functions that newer releases of PyTorch deprecate.
    warnings.filterwarnings("ignore")
    if arguments.peak:
        job = JOBS[jobs][int(arguments.peak[0])].reduced(arguments.reduce)
        print(round(measure_peak(job, arguments.peak[1], device), 1))
        return
    check_outputs({"--output": arguments.output})
    measured = []
    for number, job in enumerate(JOBS[jobs]):
        if any(part in job.name for part in arguments.job or [""]):
            rows = measure(jobs, number, device, max(arguments.rounds // arguments.reduce, 1), arguments.reduce)
            measured += rows
            if arguments.output is not None:
                write(arguments.output, rows)
    print_growth(measured)


def write(output: str, rows: List[Dict]) -> None:
    """Adds the rows of one job to a file of results, in the place of older ones of the same job."""
    content = {
        "command": "python scripts/benchmark/distributions.py",
        "versions": versions("numba", "torch-struct", "supar"),
        "machine": f"{machine()}, {torch.get_num_threads()} threads",
        "rows": rows,
    }
    replace_rows(output, content, ("job", "batch", "length"))


if __name__ == "__main__":
    main()
