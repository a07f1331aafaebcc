"""Trains and measures memory networks on bAbI: one start after the other in one process, through fairseq's own trainer.

    python scripts/experiments/babi/trainings.py --data babi/data --work babi --results R --seeds 1,2 chain.published

A row of the results, one line of JSON, has the scores of one start on one task: those of the validation and test set at
the epoch with the most correct answers on the validation set. A start of setting joint learns all twenty tasks and has
a row for each of those that are reported; its validation set is that of all twenty. A start is not repeated if it has
its rows with the same options and data, so the results of several calls and machines can be collected in one file.
"""

import argparse
import hashlib
import json
import os
import time
from typing import Dict, Iterable, List, NamedTuple, Set, Tuple

from fairseq_structattn.analysis import PLUGIN
from fairseq_structattn.analysis.files import (
    InputError,
    check_folders,
    check_inputs,
    check_output_folders,
    command,
    numbered_lines,
)
from fairseq_structattn.analysis.results import machine, versions

# Steps of each task (Kim et al. 2017, table 4).
STEPS = {2: 2, 3: 3, 7: 3, 8: 3, 11: 2, 13: 2, 14: 2, 15: 2, 16: 3, 17: 2, 18: 2, 19: 2}
SYSTEMS = {
    "memn2n": "structattn_memn2n",
    "chain": "structattn_memn2n_chain",
    "unary_chain": "structattn_memn2n_unary_chain",
}


def _sgd(epochs: int, halved_every: int) -> List[str]:
    """Options of SGD on sums over 32 questions, with rate 0.01 and norm 40 as published: fairseq has their mean."""
    rates = ",".join(str(0.01 * 32 * 0.5 ** (epoch // halved_every)) for epoch in range(epochs))
    return f"--optimizer sgd --lr {rates} --clip-norm 1.25 --batch-size 32 --max-epoch {epochs}".split()


PUBLISHED = _sgd(epochs=100, halved_every=25)
TUNED = [
    *_sgd(epochs=60, halved_every=15),
    *"--linear-start-epochs 10 --position-scale 2 --age-noise 0.1 --embed-dim 32 --answer-hidden-dim 32".split(),
    *"--chain-edges read".split(),
]
JOINT = [*TUNED, *"--embed-dim 50 --answer-hidden-dim 50".split()]
SETTINGS = {"published": PUBLISHED, "tuned": TUNED, "joint": JOINT}
TOGETHER = "together"
COLUMNS = ("task", "system", "setting", "seed", "fingerprint")


class Start(NamedTuple):
    """One training, of one task or of all of them; ``tasks`` are those that it has a row for."""

    tasks: Tuple[int, ...]
    system: str
    setting: str
    seed: int

    @property
    def data(self) -> str:
        """The name of the folder of its data."""
        return TOGETHER if len(self.tasks) > 1 else f"qa{self.tasks[0]}"

    @property
    def name(self) -> str:
        return f"{self.data}.{self.system}.{self.setting}-{self.seed}"

    @property
    def identities(self) -> List[Dict]:
        """What distinguishes each of its rows from those of other starts."""
        return [{"task": task, **dict(zip(self._fields[1:], self[1:]))} for task in self.tasks]

    @property
    def options(self) -> List[str]:
        """Options of fairseq-train, without paths and seed."""
        return [
            *("--task", "structattn_babi", "--arch", SYSTEMS[self.system]),
            *("--steps", str(max(STEPS[task] for task in self.tasks))),
            *("--criterion", "structattn_question_answering", "--lr-scheduler", "fixed"),
            *("--required-batch-size-multiple", "1", "--best-checkpoint-metric", "accuracy"),
            *("--maximize-best-checkpoint-metric", *SETTINGS[self.setting]),
        ]


def fingerprint(start: Start, data: str) -> str:
    """The fingerprint of the options and the data of a training, 12 hexadecimal digits."""
    digest = hashlib.sha256("\n".join(start.options).encode())
    for name in ("dict.txt", "train.jsonl", "valid.jsonl", "test.jsonl"):
        with open(os.path.join(data, name), "rb") as file:
            digest.update(file.read())
    return digest.hexdigest()[:12]


def read_rows(path: str) -> List[Dict]:
    """The rows of a file of results; none if there is no such file.

    Raises:
        InputError: a line is not a row
    """
    if not os.path.exists(path):
        return []
    rows = []
    for number, line in numbered_lines(path):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict) or not set(COLUMNS) <= set(row):
            raise InputError(f"{path}, line {number}: not a row of trainings.py; remove the line to have it made again")
        rows.append(row)
    return rows


def done(rows: Iterable[Dict]) -> Set:
    """The values of :data:`COLUMNS`, which identify a training, for each row."""
    return {tuple(row[column] for column in COLUMNS) for row in rows}


def train(start: Start, data: str, folder: str) -> None:
    """Trains with fairseq, which saves ``checkpoint_best.pt`` in `folder`."""
    from fairseq_cli.train import main as fairseq_train  # first: it sets up logging

    from fairseq import checkpoint_utils, options  # isort: skip
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf

    # fairseq stores the best score so far on the function itself, where the next training would find it.
    vars(checkpoint_utils.save_checkpoint).pop("best", None)
    given = [data, "--user-dir", PLUGIN, "--seed", str(start.seed), "--cpu"]
    given += [*start.options, "--save-dir", folder, "--batch-size-valid", "500", "--num-workers", "0"]
    given += ["--no-epoch-checkpoints", "--no-last-checkpoints", "--no-save-optimizer-state"]
    parser = options.get_training_parser()
    fairseq_train(convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, given + ["--log-format", "none"])))


def measure(checkpoint: str, data: str, splits: Iterable[str]) -> Dict[str, Dict]:
    """Accuracies and loss of each split, as fairseq-validate prints them."""
    import torch
    from fairseq import checkpoint_utils
    from fairseq.logging import metrics

    models, configuration, task = checkpoint_utils.load_model_ensemble_and_task([checkpoint], {"data": data})
    criterion = task.build_criterion(configuration.criterion)
    models[0].eval()
    found = {}
    for split in splits:
        task.load_dataset(split)
        dataset = task.dataset(split)
        with torch.no_grad(), metrics.aggregate(new_root=True) as measured:
            _, _, logged = criterion(models[0], dataset.collater(list(range(len(dataset)))))
            task.reduce_metrics([logged], criterion)
        values = measured.get_smoothed_values()
        found[split] = {name: values.get(name) for name in ("accuracy", "fact_accuracy", "loss")}
    return found


def epoch_of(checkpoint: str) -> int:
    """The epoch after which a checkpoint was saved."""
    from fairseq import checkpoint_utils

    iterator = checkpoint_utils.load_checkpoint_to_cpu(checkpoint)["extra_state"]["train_iterator"]
    # A checkpoint from the end of an epoch names the next epoch.
    return iterator["epoch"] - (iterator.get("iterations_in_epoch", 0) == 0)


def run(start: Start, data: str, work: str) -> List[Dict]:
    """Trains and measures a start, and returns its rows without the fingerprint."""
    folder = os.path.join(work, start.name)
    began = time.time()
    train(start, data, folder)
    about = {"seconds": round(time.time() - began, 1)}
    checkpoint = os.path.join(folder, "checkpoint_best.pt")
    about["epoch"] = epoch_of(checkpoint)
    tests = {task: f"qa{task}_test" if len(start.tasks) > 1 else "test" for task in start.tasks}
    found = measure(checkpoint, data, ("valid", *tests.values()))
    return [
        {**own, **_named("valid", found["valid"]), **_named("test", found[tests[own["task"]]]), **about}
        for own in start.identities
    ]


def _named(split: str, values: Dict) -> Dict:
    return {f"{split}_{name}": value for name, value in values.items()}


def append(path: str, rows: List[Dict]) -> None:
    """Appends rows in a single write, since other processes may append to the file, too."""
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with open(path, "ab", buffering=0) as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows).encode())


def parse_arguments(arguments=None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", metavar="SYSTEM.SETTING", help="see SYSTEMS and SETTINGS in the source")
    parser.add_argument("--data", required=True, metavar="DIR", help="folder of qa2, …, from scripts/prepare/babi.py")
    parser.add_argument("--work", required=True, metavar="DIR", help="folder for the trainings")
    parser.add_argument("--results", required=True, metavar="FILE", help="file to which rows are appended")
    parser.add_argument("--seeds", default="1", metavar="S,…", help="seeds of the starts (default: 1)")
    parser.add_argument("--tasks", default=",".join(map(str, STEPS)), metavar="N,…", help="default: those of the paper")
    parser.add_argument("--command", default="", help="command that the rows name as their origin")
    options = parser.parse_args(arguments)
    options.seeds = _numbers("--seeds", options.seeds)
    options.tasks = _numbers("--tasks", options.tasks)
    for number in options.tasks:
        if number not in STEPS:
            raise InputError(f"--tasks {number}: not one of {', '.join(map(str, STEPS))}")
    for name in options.names:
        system, _, setting = name.partition(".")
        if system not in SYSTEMS or setting not in SETTINGS:
            known = f"systems {', '.join(SYSTEMS)}; settings {', '.join(SETTINGS)}"
            raise InputError(f"{name}: no SYSTEM.SETTING; {known}")
    return options


def _numbers(option: str, text: str) -> List[int]:
    try:
        return [int(part) for part in text.replace(",", " ").split()]
    except ValueError:
        raise InputError(f"{option} {text}: not numbers with commas between, such as 1,2,3") from None


def starts_of(name: str, tasks: List[int], seed: int) -> List[Start]:
    """The starts of a SYSTEM.SETTING: one for each task, or one for all."""
    system, setting = name.split(".")
    return [Start(own, system, setting, seed) for own in ([tuple(STEPS)] if setting == "joint" else zip(tasks))]


@command
def main(arguments=None) -> None:
    options = parse_arguments(arguments)
    starts = [
        start for seed in options.seeds for name in options.names for start in starts_of(name, options.tasks, seed)
    ]
    folders = {start.data: os.path.join(options.data, start.data) for start in starts}
    check_folders({f"data of {name}:": folder for name, folder in folders.items()})
    check_output_folders({"--work": options.work})
    if os.path.exists(options.results):
        check_inputs({"--results": options.results})
    about = {"command": options.command, "versions": versions(), "machine": machine()}
    for start in starts:
        data = folders[start.data]
        own = {"fingerprint": fingerprint(start, data)}
        if {(*one.values(), *own.values()) for one in start.identities} <= done(read_rows(options.results)):
            continue
        rows = run(start, data, options.work)
        append(options.results, [{**row, **own, **about} for row in rows])
        for row in rows:
            told = f"answers {row['test_accuracy']} %, facts {row['test_fact_accuracy']} %"
            print(f"{start.name}, task {row['task']}: {told}, {row['seconds']} s", flush=True)


if __name__ == "__main__":
    os.environ.setdefault("LOGLEVEL", "WARNING")  # else fairseq reports every epoch
    main()
