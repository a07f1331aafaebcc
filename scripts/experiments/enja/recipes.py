"""Measures fairseq's uses of trained models: averaged checkpoints, ensembles, half precision, distillation.

    python scripts/experiments/enja/recipes.py --work WORK_DIR [RECIPE ...]

The models are those of run.sh in WORK_DIR, for CHAR with the modern model; this script trains fairseq's own ``lstm``
and the student. Each recipe leaves a line in recipes.jsonl, for report.py; a recipe with a line is not repeated.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from typing import Callable, Dict, List

from one_run import AVERAGED, Run

from fairseq_structattn.analysis import results
from fairseq_structattn.analysis.average_checkpoints import main as average_checkpoints
from fairseq_structattn.analysis.files import InputError, command, numbered_lines, read_lines, write_lines
from fairseq_structattn.analysis.generated import read_translations
from fairseq_structattn.analysis.translation_run import SUBSETS

HERE = os.path.dirname(os.path.abspath(__file__))
SEED = 1
PREFIX = "char.modern"
SCORED = ("bleu", "chrf", "signature", "chrf_signature")


class StockModel(Run):
    """fairseq's ``lstm`` (Luong's attention; it always has input feeding, and the encoder's last states to start from)
    in the sizes, and with the training, of softmax."""

    def __init__(self, work: str, *settings):
        super().__init__(f"{PREFIX}.softmax", SEED, work, *settings)
        for option, words in (("--arch", 2), ("--pairwise-l2", 2), ("--decoder-start", 2), ("--input-feeding", 1)):
            place = self.options.index(option)
            del self.options[place : place + words]
        self.options += ["--arch", "lstm"]
        self.folder = os.path.join(work, "recipes", f"lstm-{self.fingerprint}")


class Student(Run):
    """The softmax model, trained on the chain's translations of the training sources in place of the references."""

    def __init__(self, teacher: Run, work: str, *settings):
        super().__init__(f"{PREFIX}.softmax", SEED, work, *settings)
        self.teacher = teacher
        self.folder = os.path.join(work, "recipes", f"student-{self.fingerprint}-of-{teacher.fingerprint}")
        self.taught, self.data = self.data, os.path.join(self.folder, "data")

    def train(self) -> None:
        self.prepare()
        super().train()

    def prepare(self) -> None:
        """Writes the teacher's translations and binarises them; dictionaries and other splits stay as they are."""
        if os.path.exists(os.path.join(self.data, "prepared")):
            return
        generated = os.path.join(self.folder, "train.txt")
        if not os.path.exists(generated):
            self.teacher.translate("train", generated)
        shutil.rmtree(self.data, ignore_errors=True)
        shutil.copytree(self.taught, self.data)
        count = len(read_lines(os.path.join(self.data, "train.ja")))
        write_lines(os.path.join(self.data, "train.en"), read_translations(generated, count).sentences)
        call = [sys.executable, "-m", "fairseq_cli.preprocess", "--source-lang", "ja", "--target-lang", "en"]
        for language, option in (("ja", "--srcdict"), ("en", "--tgtdict")):
            call += [option, os.path.join(self.taught, "bin", f"dict.{language}.txt")]
        call += ["--trainpref", os.path.join(self.data, "train"), "--destdir", os.path.join(self.data, "bin")]
        if subprocess.run(call, stdout=subprocess.DEVNULL).returncode != 0:
            raise InputError(f"{self.data}: could not be binarised, the reason is above")
        write_lines(os.path.join(self.data, "prepared"), [])


class Recipes:
    """The recipes by name, each a function without arguments that returns the scores of both test sets.

    Args:
        work: the folder of run.sh
        kept: folder of the results of the runs, from which settings are chosen
        tiny: as in :class:`~one_run.Run`
    """

    def __init__(self, work: str, kept: str, tiny: bool = False):
        self.settings = (work, kept, tiny)
        self.chain = Run(f"{PREFIX}.chain", SEED, *self.settings)
        self.all: Dict[str, Callable[[], Dict]] = {
            "chain": lambda: self._translated(""),
            "average": self.average,
            "fp16": lambda: self._translated("fp16.", options=["--fp16"]),
            "seeds": lambda: self._translated("seeds.", [self._trained("chain", seed) for seed in (1, 2, 3)]),
            "lstm": lambda: self._scores(StockModel(*self.settings)),
            "chain and lstm": self.with_stock,
            "softmax": lambda: self._scores(Run(f"{PREFIX}.softmax", SEED, *self.settings)),
            "student": self.student,
        }

    def _trained(self, system: str, seed: int) -> str:
        path = Run(f"{PREFIX}.{system}", seed, *self.settings).checkpoint
        if not os.path.exists(path):
            raise InputError(f"{path}: not there; run.sh WORK_DIR {PREFIX}.{system} trains it, with SEEDS={seed}")
        return path

    def _translated(self, name: str, paths: List[str] = (), options: List[str] = ()) -> Dict:
        path = os.pathsep.join(paths or [self._trained("chain", SEED)])
        return {test: self.chain.score(test, path, options, name) for test in SUBSETS}

    def _scores(self, run: Run) -> Dict:
        os.makedirs(run.folder, exist_ok=True)
        run.train()
        return {test: run.score(test) for test in SUBSETS}

    def average(self) -> Dict:
        """The mean of the parameters after each of the last epochs."""
        self._trained("chain", SEED)
        last = len(results.epochs(os.path.join(self.chain.folder, "train.log")))
        averaged = os.path.join(self.chain.folder, "average.pt")
        first = max(1, last + 1 - AVERAGED)
        average_checkpoints([*map(self.chain.checkpoint_of, range(first, last + 1)), "--output", averaged])
        return self._translated("average.", [averaged])

    def with_stock(self) -> Dict:
        stock = StockModel(*self.settings)
        stock.train()
        return self._translated("with_lstm.", [self._trained("chain", SEED), stock.checkpoint])

    def student(self) -> Dict:
        self._trained("chain", SEED)
        return self._scores(Student(self.chain, *self.settings))


def make(recipes: Recipes, names: List[str], path: str) -> None:
    """Adds a line to `path` for each recipe that has no line with these models."""
    rows = {row["recipe"]: row for row in read_rows(path)}
    for name in names:
        if rows.get(name, {}).get("fingerprint") == recipes.chain.fingerprint:
            continue
        print(f"== {name}", flush=True)
        found = {test: {key: scores[key] for key in SCORED} for test, scores in recipes.all[name]().items()}
        about = {"versions": results.versions(), "machine": results.machine()}
        rows[name] = {"recipe": name, "fingerprint": recipes.chain.fingerprint, **found, **about}
        write_lines(path, [json.dumps(rows[known]) for known in recipes.all if known in rows])


def read_rows(path: str) -> List[Dict]:
    """The results of the recipes so far."""
    return [json.loads(line) for _, line in numbered_lines(path)] if os.path.exists(path) else []


@command
def main(arguments=None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="RECIPE", help="chain, average, fp16, … (default: all)")
    parser.add_argument("--work", required=True, metavar="WORK_DIR")
    parser.add_argument("--results", default=HERE, metavar="DIR", help="folder with recipes.jsonl (default: here)")
    parser.add_argument("--tiny", action="store_true", help="as in one_run.py")
    options = parser.parse_args(arguments)
    recipes = Recipes(options.work, os.path.join(options.results, "results"), options.tiny)
    for name in options.names:
        if name not in recipes.all:
            raise InputError(f"unknown recipe {name}; choose from: {', '.join(recipes.all)}")
    make(recipes, options.names or list(recipes.all), os.path.join(options.results, "recipes.jsonl"))


if __name__ == "__main__":
    main()
