"""Makes one run: trains, translates both test sets, and writes what the report needs into one small file.

    python scripts/experiments/enja/one_run.py NAME SEED --work WORK_DIR

A run is not repeated if its file exists and was made with the same options from the same data; a training that was
stopped continues. The file, results/NAME-SEED.json, has about 25 kB of text.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from typing import Dict, List, Optional, Sequence

import kept_statistics
import segments
from settings import SEARCH, parse_name, train_options

from fairseq_structattn.analysis import results
from fairseq_structattn.analysis.attention_records import AttentionRecord
from fairseq_structattn.analysis.files import InputError, beside, command, read_lines, write_lines
from fairseq_structattn.analysis.generated import read_translations
from fairseq_structattn.analysis.kept_run import KeptRun

HERE = os.path.dirname(os.path.abspath(__file__))
USER_DIR = os.path.join(HERE, "attention_variants")
SUBSETS = {"test": "test", "test2": "test1"}  # as they are called here, and by fairseq
DRAWN = (12, 17, 21, 24, 26)  # sentences of the first test set
AVERAGED = 3  # epochs whose checkpoints stay
ALWAYS = [
    *("--criterion", "structattn_label_smoothed_cross_entropy", "--update-epoch-batch-itr", "True"),
    *("--eval-bleu", "--eval-bleu-args", json.dumps(SEARCH), "--eval-tokenized-bleu"),
    *("--best-checkpoint-metric", "bleu", "--maximize-best-checkpoint-metric"),
    *("--num-workers", "0", "--log-format", "json", "--log-interval", "100"),
]


class RunError(InputError):
    """A run failed; the message gives the reason."""


class Run(KeptRun):
    """One training of the system `name` from `seed`.

    Args:
        name: SIDE.MODEL.SYSTEM, with the settings of a trial behind @ if it is one
        seed: of the training
        work: the folder with the prepared data, where checkpoints and logs go
        kept: the folder of the results
        tiny: sizes of 8 and two epochs, for a dry run
    """

    def __init__(self, name: str, seed: int, work: str, kept: str, tiny: bool = False):
        self.name, self.seed = parse_name(name), seed
        self.data = os.path.join(work, self.name.side)
        self.folder = os.path.join(work, "runs", f"{self.name}-{seed}")
        self.result = os.path.join(kept, f"{self.name}-{seed}.json")
        self.options = train_options(self.name, kept, tiny)

    @property
    def fingerprint(self) -> str:
        """The fingerprint of all that determines the outcome except the seed: options, search and data."""
        (data,) = read_lines(os.path.join(self.data, "fingerprint"))
        return hashlib.sha256(json.dumps([self.options, ALWAYS, SEARCH, data]).encode()).hexdigest()[:16]

    def make(self) -> None:
        """Makes the run, unless its file exists."""
        if self.is_done():
            return
        self.start_anew_where_options_changed()
        print(f"== {self.name}, seed {self.seed}: training, log in {self.folder}/train.log", flush=True)
        self.train()
        content = self._about()
        if self.name.is_final:
            content["test"] = {test: self.score(test) for test in SUBSETS}
            content.update(self._looked_into())
        write_compact(self.result, content)
        self._tidy(len(content["epochs"]))

    def _tidy(self, epochs: int) -> None:
        """Removes the checkpoints that have no further use: the best one stays, and the last ones, to be averaged."""
        if not self.name.is_final:
            shutil.rmtree(self.folder)
            return
        for number in range(1, epochs + 1 - AVERAGED):
            os.remove(self.checkpoint_of(number))

    def checkpoint_of(self, epoch: int) -> str:
        return os.path.join(self.folder, f"checkpoint{epoch}.pt")

    def train(self) -> None:
        """Trains; a training that was stopped continues."""
        if os.path.exists(os.path.join(self.folder, "trained")):
            return
        call = [sys.executable, "-m", "fairseq_cli.train", os.path.join(self.data, "bin"), "--user-dir", USER_DIR]
        call += ["--source-lang", "ja", "--target-lang", "en", *self.options, *ALWAYS, "--seed", str(self.seed)]
        call += ["--save-dir", self.folder, "--log-file", os.path.join(self.folder, "train.log")]
        self._call(call, "console.log", mode="a")
        write_lines(os.path.join(self.folder, "trained"), [])

    def _call(self, call: List[str], log: str, mode: str = "w", output=None) -> None:
        path = os.path.join(self.folder, log)
        with open(path, mode, encoding="utf-8") as file:
            done = subprocess.run(call, stdout=output or file, stderr=file)
        if done.returncode != 0:
            with open(path, encoding="utf-8", errors="replace") as file:
                raise RunError("".join(file.readlines()[-20:]) + f"\n{self.name}, seed {self.seed}: see {path}")

    def _about(self) -> Dict:
        return {
            "name": str(self.name),
            "seed": self.seed,
            "kind": "final" if self.name.is_final else "trial",
            "fingerprint": self.fingerprint,
            "options": " ".join(self.options),
            "versions": results.versions(),
            "machine": results.machine(),
            "epochs": self._epochs(),
        }

    def _epochs(self) -> List[Dict]:
        log = os.path.join(self.folder, "train.log")
        trained, validated = results.epochs(log), results.epochs(log, "valid_bleu")
        return [
            {
                "train_nll": float(training["train_nll_loss"]),
                "valid_nll": float(validation["valid_nll_loss"]),
                "valid_bleu": float(validation["valid_bleu"]),
                "seconds": round(float(training["train_train_wall"])),
                "pairwise": pairwise(self.checkpoint_of(number)),
            }
            for number, (training, validation) in enumerate(zip(trained, validated), 1)
        ]

    def score(self, test: str, path: Optional[str] = None, options: Sequence[str] = (), name: str = "") -> Dict:
        """Scores of translations of one test set.

        Args:
            test: ``test`` or ``test2``
            path: checkpoints, in the form that fairseq-generate expects (default: the best one of this training)
            options: further options of fairseq-generate
            name: prefix of the files of translations, which are not made again
        """
        subset, output = SUBSETS[test], os.path.join(self.folder, f"{name}{test}.txt")
        if not os.path.exists(output):
            self.translate(subset, output, path, options)
        references = read_lines(os.path.join(self.data, f"{subset}.en"))
        sources = read_lines(os.path.join(self.data, f"{subset}.ja"))
        return scores(read_translations(output, len(references)).sentences, references, sources)

    def translate(self, subset: str, output: str, path: Optional[str] = None, options: Sequence[str] = ()) -> None:
        call = [sys.executable, "-m", "fairseq_cli.generate", os.path.join(self.data, "bin")]
        call += ["--user-dir", USER_DIR, "--source-lang", "ja", "--target-lang", "en", "--gen-subset", subset]
        call += ["--path", path or self.checkpoint, "--max-tokens", "3000", "--num-workers", "0", *options]
        call += [f"--{option.replace('_', '-')}={value}" for option, value in SEARCH.items()]
        with beside(output) as made, open(made, "w", encoding="utf-8") as file:
            self._call(call, "generate.log", output=file)

    @property
    def checkpoint(self) -> str:
        return os.path.join(self.folder, "checkpoint_best.pt")

    def _looked_into(self) -> Dict:
        """Attention of a few translations and, for characters, the boundaries of segments."""
        from fairseq.dataclass.configs import GenerationConfig

        from fairseq_structattn.analysis.export_attention import export, load_dataset, load_models

        models, task = load_models(self.checkpoint, os.path.join(self.data, "bin"), USER_DIR, cpu=True)
        test = load_dataset(task, "test")
        drawn = [number for number in DRAWN if number < len(test)]
        found = export(models, task, test, drawn, search=GenerationConfig(**SEARCH), log_format="none")
        content = {"attention": [compact(record) for record in found]}
        if self.name.side == "char":
            forced = {
                subset: list(export(models, task, load_dataset(task, subset), forced=True, log_format="none"))
                for subset in ("valid", "test1")
            }
            raw = os.path.join(self.data, "..", "raw")
            words = {"valid": read_lines(f"{raw}/valid.ja"), "test1": read_lines(f"{raw}/test2.ja")}
            content["boundaries"] = boundaries(forced, words)
        return content


def scores(hypotheses: List[str], references: List[str], sources: List[str]) -> Dict:
    """BLEU, chrF, and the statistics for comparisons with other systems and by length."""
    from sacrebleu.metrics import BLEU, CHRF

    bleu, chrf = BLEU(tokenize="none", force=True), CHRF()
    return {
        "bleu": round(bleu.corpus_score(hypotheses, [references]).score, 3),
        "signature": str(bleu.get_signature()),
        "chrf": round(chrf.corpus_score(hypotheses, [references]).score, 3),
        "chrf_signature": str(chrf.get_signature()),
        "source_lengths": kept_statistics.encode([len(line.split()) for line in sources]),
        "reference_lengths": kept_statistics.encode([len(line.split()) for line in references]),
        "statistics": kept_statistics.encode_translations(hypotheses, references),
    }


def boundaries(forced: Dict[str, List[AttentionRecord]], words: Dict[str, List[str]]) -> Dict:
    """Boundaries on the second test set. Where a system has no segments, they are runs of positions above the threshold
    that is best on the validation set."""
    threshold = 0.0
    if forced["valid"][0].segments is None:
        threshold = segments.best_threshold(forced["valid"], words["valid"])
    found = segments.measure(forced["test1"], words["test1"], threshold)
    return {"threshold": threshold, **{kind: [round(number, 1) for number in total] for kind, total in found.items()}}


def compact(record: AttentionRecord) -> Dict:
    """The fields of a record that the pictures show."""
    weights = [[round(weight, 3) for weight in row] for row in record.weights]
    own = {"id": record.id, "score": round(record.score, 3), "source": record.source, "target": record.target}
    return {**own, "weights": weights, "segments": record.segments}


def pairwise(checkpoint: str) -> List[List[float]]:
    """The table of pairwise potentials in a checkpoint of fairseq; None without one."""
    from fairseq import checkpoint_utils

    import fairseq_structattn  # noqa: F401  (lets checkpoints load)

    if not os.path.exists(checkpoint):
        raise RunError(f"{checkpoint}: no such file; remove {os.path.dirname(checkpoint)} and run again")
    model = checkpoint_utils.load_checkpoint_to_cpu(checkpoint)["model"]
    tables = [value for name, value in model.items() if re.search(r"tables\.pairwise$", name)]
    return [[round(number, 4) for number in row] for row in tables[0].tolist()] if tables else None


def write_compact(path: str, content: Dict) -> None:
    """Writes JSON with one line for each entry."""
    lines = [
        f"{json.dumps(key)}:{json.dumps(value, ensure_ascii=False, separators=(',', ':'))}"
        for key, value in content.items()
    ]
    write_lines(path, ["{" + ",\n".join(lines) + "}"])


@command
def main(arguments=None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("seed", type=int, metavar="SEED")
    parser.add_argument("--work", required=True, metavar="WORK_DIR")
    parser.add_argument("--results", default=os.path.join(HERE, "results"), metavar="DIR")
    parser.add_argument("--tiny", action="store_true", help="sizes of 8 and two epochs, for a dry run")
    options = parser.parse_args(arguments)
    Run(options.name, options.seed, options.work, options.results, options.tiny).make()


if __name__ == "__main__":
    main()
