"""A run of an experiment with translation: it trains, translates the test sets, and leaves one small file."""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
from typing import Callable, Dict, List, Optional, Sequence, Tuple

from fairseq_structattn.analysis import kept_statistics, results
from fairseq_structattn.analysis.files import InputError, beside, read_lines, write_lines
from fairseq_structattn.analysis.generated import read_translations
from fairseq_structattn.analysis.kept_run import KeptRun

SEARCH = {"beam": 5, "max_len_a": 1.2, "max_len_b": 10}
SUBSETS = {"test": "test", "test2": "test1"}  # as they are called in results, and by fairseq
# Options of fairseq-train beside those of the system.
ALWAYS = [
    *("--criterion", "structattn_label_smoothed_cross_entropy", "--update-epoch-batch-itr", "True"),
    *("--eval-bleu", "--eval-bleu-args", json.dumps(SEARCH), "--eval-tokenized-bleu"),
    *("--best-checkpoint-metric", "bleu", "--maximize-best-checkpoint-metric"),
    *("--num-workers", "0", "--log-format", "json", "--log-interval", "100"),
]


class RunError(InputError):
    """A run failed; the message gives the reason."""


class TranslationRun(KeptRun):
    """One training of the system `name` from `seed`.

    Args:
        name: of the run, without its seed
        seed: of the training
        data: the folder with the prepared data, with a file ``fingerprint``
        work: the folder where checkpoints and logs go
        kept: the folder of the results
        options: of fairseq-train: all that determine the result, except data and seed
        is_final: whether it is scored on the test sets

    Attributes:
        languages: source and target
        user_dir: what fairseq imports
    """

    languages: Tuple[str, str]
    user_dir: str

    def __init__(self, name: str, seed: int, data: str, work: str, kept: str, options: List[str], is_final: bool):
        self.title, self.seed, self.data, self.options, self.is_final = name, seed, data, options, is_final
        self.folder = os.path.join(work, "runs", f"{name}-{seed}")
        self.result = os.path.join(kept, f"{name}-{seed}.json")

    @property
    def fingerprint(self) -> str:
        """The fingerprint of all that determines the outcome except the seed: options, search and data."""
        (data,) = read_lines(os.path.join(self.data, "fingerprint"))
        return hashlib.sha256(json.dumps([self.options, ALWAYS, SEARCH, data]).encode()).hexdigest()[:16]

    @property
    def checkpoint(self) -> str:
        return os.path.join(self.folder, "checkpoint_best.pt")

    def make(self) -> None:
        """Makes the run, unless its file exists."""
        if self.is_done():
            return
        self.start_anew_where_options_changed()
        print(f"== {self.title}, seed {self.seed}: training, log in {self.folder}/train.log", flush=True)
        self.train()
        content = self._about()
        if self.is_final:
            content["test"] = {test: self.score(test) for test in SUBSETS}
            content.update(self.looked_into())
        write_compact(self.result, content)
        self.tidy(len(content["epochs"]))

    def train(self) -> None:
        """Trains; a training that was stopped continues."""
        if os.path.exists(os.path.join(self.folder, "trained")):
            return
        call = ["train", *self._data_and_languages(), *self.options, *ALWAYS, "--seed", str(self.seed)]
        call += ["--save-dir", self.folder, "--log-file", os.path.join(self.folder, "train.log")]
        self._call(call, "console.log", mode="a")
        write_lines(os.path.join(self.folder, "trained"), [])

    def _data_and_languages(self) -> List[str]:
        source, target = self.languages
        data = [os.path.join(self.data, "bin"), "--user-dir", self.user_dir]
        return [*data, "--source-lang", source, "--target-lang", target]

    def _call(self, call: List[str], log: str, mode: str = "w", output=None) -> None:
        path = os.path.join(self.folder, log)
        with open(path, mode, encoding="utf-8") as file:
            words = [sys.executable, "-m", f"fairseq_cli.{call[0]}", *call[1:]]
            done = subprocess.run(words, stdout=output or file, stderr=file)
        if done.returncode != 0:
            with open(path, encoding="utf-8", errors="replace") as file:
                raise RunError("".join(file.readlines()[-20:]) + f"\n{self.title}, seed {self.seed}: see {path}")

    def _about(self) -> Dict:
        return {
            "name": self.title,
            "seed": self.seed,
            "kind": "final" if self.is_final else "trial",
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
                **self.of_epoch(number),
            }
            for number, (training, validation) in enumerate(zip(trained, validated), 1)
        ]

    def of_epoch(self, number: int) -> Dict:
        """What is kept of an epoch beside losses, BLEU and seconds."""
        return {}

    def looked_into(self) -> Dict:
        """What is kept of the trained model beside its scores."""
        return {}

    def tidy(self, epochs: int) -> None:
        """Removes what has no further use: all of a trial."""
        if not self.is_final:
            shutil.rmtree(self.folder)

    def score(self, test: str, path: Optional[str] = None, options: Sequence[str] = (), name: str = "") -> Dict:
        """Scores of translations of one test set.

        Args:
            test: ``test`` or ``test2``
            path: checkpoints, in the form that fairseq-generate expects (default: the best one of this training)
            options: further options of fairseq-generate
            name: prefix of the files of translations, which are not made again
        """
        output = os.path.join(self.folder, f"{name}{test}.txt")
        if not os.path.exists(output):
            self.translate(SUBSETS[test], output, path, options)
        sources, references = (read_lines(f"{self.text_of(test)}.{language}") for language in self.languages)
        return scores(read_translations(output, len(references)).sentences, references, sources)

    def text_of(self, test: str) -> str:
        """The prefix of the files with the words of a test set."""
        return os.path.join(self.data, SUBSETS[test])

    def translate(self, subset: str, output: str, path: Optional[str] = None, options: Sequence[str] = ()) -> None:
        """Writes the output of fairseq-generate for a split, by the name that fairseq has for it."""
        call = ["generate", *self._data_and_languages(), "--gen-subset", subset, "--path", path or self.checkpoint]
        call += ["--max-tokens", "3000", "--num-workers", "0", *options]
        call += [f"--{option.replace('_', '-')}={value}" for option, value in SEARCH.items()]
        with beside(output) as made, open(made, "w", encoding="utf-8") as file:
            self._call(call, "generate.log", output=file)


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


def write_compact(path: str, content: Dict) -> None:
    """Writes JSON with one line for each entry."""
    lines = [
        f"{json.dumps(key)}:{json.dumps(value, ensure_ascii=False, separators=(',', ':'))}"
        for key, value in content.items()
    ]
    write_lines(path, ["{" + ",\n".join(lines) + "}"])


def make_as_asked(make: Callable[[str, int, str, str, bool], TranslationRun], about: str, kept: str, arguments) -> None:
    """The command of an experiment's script: makes one run.

    Args:
        make: from name, seed, folder of the data, folder of the results, and whether it is a dry run
        about: text of ``--help``
        kept: the folder of the results, by default
        arguments: of the command; None for those of the process
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("seed", type=int, metavar="SEED")
    parser.add_argument("--work", required=True, metavar="WORK_DIR")
    parser.add_argument("--results", default=kept, metavar="DIR")
    parser.add_argument("--tiny", action="store_true", help="sizes of 8 and two epochs, for a dry run")
    given = parser.parse_args(arguments)
    make(given.name, given.seed, given.work, given.results, given.tiny).make()
