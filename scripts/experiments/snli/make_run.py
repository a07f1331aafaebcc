"""Makes one run: trains, tests, and writes what the report needs into one small file.

    python scripts/experiments/snli/make_run.py NAME SEED --work WORK_DIR

A run is not repeated if its file exists and was made with the same options from the same data; a training that was
stopped continues. The file is results/NAME-SEED.json.
"""

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
from typing import Dict, List, Optional, Tuple

from systems import WITH_TREES, data_of, teacher, train_options

from fairseq_structattn.analysis import PLUGIN, results
from fairseq_structattn.analysis.files import InputError, beside, command, read_lines, write_json, write_lines
from fairseq_structattn.analysis.kept_run import KeptRun

HERE = os.path.dirname(os.path.abspath(__file__))
METRICS = {"parser": "uas", "pairs": "accuracy", "published": "accuracy", "translation": "bleu"}


class Run(KeptRun):
    """One training of the system `name` from `seed`.

    Args:
        name: one of :func:`systems.runs`
        seed: of the training
        work: the folder with the prepared data, where checkpoints and logs go
        kept: the folder of the results
        vectors: file of word vectors, for ``published``
        tiny: sizes of 8 and two epochs, for a dry run

    Raises:
        InputError: a published run without word vectors
    """

    def __init__(self, name: str, seed: int, work: str, kept: str, vectors: Optional[str] = None, tiny: bool = False):
        self.name, self.seed, self.work = name, seed, work
        self.kind, _, self.system = name.partition(".")
        self.data = os.path.join(work, data_of(name))
        self.folder = os.path.join(work, "runs", f"{name}-{seed}")
        self.result = os.path.join(kept, f"{name}-{seed}.json")
        self.options = train_options(name, tiny)
        if self.kind == "published" and not (tiny or vectors):
            raise InputError(f"{name}: the published setting has fixed word vectors: name their file, --vectors FILE")
        self.vectors = vectors if self.kind == "published" else None
        self.teacher = train_options(teacher(name), tiny) if teacher(name) else []

    @property
    def fingerprint(self) -> str:
        """The fingerprint of all that determines the outcome except the seed: options, those of the parser whose trees
        are given, and data."""
        (data,) = read_lines(os.path.join(self.data, "fingerprint"))
        decides = [self.options, self.teacher, data, self.vectors is not None]
        return hashlib.sha256(json.dumps(decides).encode()).hexdigest()[:16]

    @property
    def checkpoint(self) -> str:
        return os.path.join(self.folder, "checkpoint_best.pt")

    def make(self, needs_checkpoint: bool = False) -> None:
        """Makes the run, unless its file exists; if another run needs the checkpoint, trains even then."""
        if self.is_done() and not (needs_checkpoint and not os.path.exists(self.checkpoint)):
            return
        self.start_anew_where_options_changed()
        print(f"== {self.name}, seed {self.seed}: training, log in {self.folder}/train.log", flush=True)
        self._train()
        if self.is_done():
            return
        content = {**self._about(), "test": getattr(self, f"_test_{self.kind}")()}
        write_json(self.result, content)

    def _train(self) -> None:
        if os.path.exists(os.path.join(self.folder, "trained")):
            return
        call = ["train", os.path.join(self.data, "bin"), "--user-dir", PLUGIN, *self.options]
        call += ["--embed-path", self.vectors] if self.vectors else []
        call += ["--seed", str(self.seed), "--update-epoch-batch-itr", "True"]
        call += ["--save-dir", self.folder, "--log-file", os.path.join(self.folder, "train.log")]
        self._call(call, "console.log", mode="a")
        write_lines(os.path.join(self.folder, "trained"), [])

    def _call(self, call: List[str], log: str, mode: str = "w", output=None) -> None:
        path = os.path.join(self.folder, log)
        with open(path, mode, encoding="utf-8") as file:
            done = subprocess.run(
                [sys.executable, "-m", f"fairseq_cli.{call[0]}", *call[1:]], stdout=output or file, stderr=file
            )
        if done.returncode != 0:
            with open(path, encoding="utf-8", errors="replace") as file:
                raise InputError("".join(file.readlines()[-20:]) + f"\n{self.name}, seed {self.seed}: see {path}")

    def _about(self) -> Dict:
        return {
            "name": self.name,
            "seed": self.seed,
            "fingerprint": self.fingerprint,
            "options": " ".join(self.options),
            "versions": results.versions(),
            "machine": results.machine(),
            "parameters": self._parameters(),
            "epochs": self._epochs(),
        }

    def _parameters(self) -> Dict[str, int]:
        """Numbers of trained parameters in the checkpoint: all, and all except word embeddings."""
        from fairseq import checkpoint_utils

        import fairseq_structattn  # noqa: F401  (lets checkpoints load)

        weights = checkpoint_utils.load_checkpoint_to_cpu(self.checkpoint)["model"]
        sizes = {
            name: value.numel() for name, value in weights.items() if not (self.vectors and "embed_tokens" in name)
        }
        tables = sum(size for name, size in sizes.items() if "embed_tokens" in name)
        return {"all": sum(sizes.values()), "without_embeddings": sum(sizes.values()) - tables}

    def _epochs(self) -> List[Dict]:
        log, metric = os.path.join(self.folder, "train.log"), f"valid_{METRICS[self.kind]}"
        trained, validated = results.epochs(log), results.epochs(log, metric)
        return [
            {
                "train_loss": float(training["train_loss"]),
                metric: float(validation[metric]),
                "seconds": round(float(training["train_train_wall"])),
            }
            for training, validation in zip(trained, validated)
        ]

    def _test_parser(self) -> Dict:
        return {**self._attachment(self.data, self.name.endswith(".lower")), **self._chance()}

    def _chance(self) -> Dict:
        """Attachment scores of the baselines without a model."""
        from fairseq_structattn.analysis.attachment_scores import chance

        found = chance(_test_set(self.data)[1], "single")
        return {name: {kind: round(value, 2) for kind, value in of.items()} for name, of in found.items()}

    def _attachment(self, treebank: str, lowercase: bool) -> Dict:
        """Attachment scores on a test set of trees."""
        from fairseq_structattn.analysis.attachment_scores import of_model
        from fairseq_structattn.analysis.parsers import load_parser

        sentences, gold = _test_set(treebank, lowercase)
        found = of_model(load_parser(self.checkpoint, os.path.join(self.data, "bin")), sentences, gold)
        return {name: {kind: round(value, 2) for kind, value in of.items()} for name, of in found.items()}

    def _test_pairs(self) -> Dict:
        right = self._right_pairs()
        content = {"accuracy": round(100 * sum(right) / len(right), 2), "right": pack(right)}
        treebank = os.path.join(self.work, "treebank.projective.cased")
        if self.system in WITH_TREES and os.path.exists(treebank):
            lowercase = self.kind == "pairs"
            content["trees"] = self._attachment(treebank, lowercase)
            content["unknown_words"] = self._unknown_words(_test_set(treebank, lowercase)[0])
        return content

    def _unknown_words(self, sentences: List[List[str]]) -> float:
        """Percentage of the words that are ``<unk>`` for the model."""
        from fairseq.data import Dictionary

        known = Dictionary.load(os.path.join(self.data, "bin", "dict.premise.txt"))
        words = [word for sentence in sentences for word in sentence]
        return round(100 * sum(word not in known for word in words) / len(words), 1)

    _test_published = _test_pairs

    def _right_pairs(self) -> List[bool]:
        """Whether the label of each pair of the test set is predicted."""
        import torch
        from fairseq import checkpoint_utils

        import fairseq_structattn  # noqa: F401  (registers models and tasks)

        (model,), _, task = checkpoint_utils.load_model_ensemble_and_task(
            [self.checkpoint], arg_overrides={"data": os.path.join(self.data, "bin")}
        )
        task.load_dataset("test")
        data, right = task.dataset("test"), [False] * len(task.dataset("test"))
        order = sorted(range(len(data)), key=data.num_tokens)
        with torch.no_grad():
            for start in range(0, len(order), 100):
                batch = data.collater([data[index] for index in order[start : start + 100]])
                found = model.eval()(**batch["net_input"])[0].argmax(-1) == batch["target"]
                for index, is_right in zip(batch["id"].tolist(), found.tolist()):
                    right[index] = is_right
        return right

    def _test_translation(self) -> Dict:
        from sacrebleu.metrics import BLEU

        from fairseq_structattn.analysis.generated import read_translations

        output = os.path.join(self.folder, "test.txt")
        if not os.path.exists(output):
            call = ["generate", os.path.join(self.data, "bin"), "--user-dir", PLUGIN, "--path", self.checkpoint]
            call += "--source-lang en --target-lang de --beam 5 --max-tokens 3000 --num-workers 0".split()
            with beside(output) as made, open(made, "w", encoding="utf-8") as file:
                self._call(call, "generate.log", output=file)
        references = read_lines(os.path.join(self.data, "test.de"))
        bleu = BLEU(tokenize="none", force=True)
        score = bleu.corpus_score(read_translations(output, len(references)).sentences, [references])
        return {"bleu": round(score.score, 2), "signature": str(bleu.get_signature())}


def _test_set(treebank: str, lowercase: bool = False) -> Tuple[List[List[str]], List[List[int]]]:
    """The sentences of the test set and the heads of their words."""
    from fairseq_structattn.analysis.parsers import read_gold

    sentences, gold = read_gold(*(os.path.join(treebank, f"test{name}") for name in (".words", ".heads.words")))
    return ([[word.lower() for word in words] for words in sentences] if lowercase else sentences), gold


def pack(bits: List[bool]) -> str:
    """The number of bits, and the bits as hexadecimal digits, the first bit first."""
    text = "".join("1" if bit else "0" for bit in bits)
    return f"{len(bits)}:" + (f"{int(text, 2):0{(len(bits) + 3) // 4}x}" if bits else "")


def unpack(text: str) -> List[bool]:
    """The inverse of :func:`pack`."""
    match = re.match(r"^(\d+):([0-9a-f]*)$", text)
    if match is None:
        raise InputError(f"{text[:20]}…: not as make_run.py writes correct pairs")
    count = int(match.group(1))
    return [bit == "1" for bit in f"{int(match.group(2), 16):0{count}b}"] if count else []


def write_heads(parser: Run, words: str, output: str) -> None:
    """Parses a file of sentences, unless `output` exists."""
    from fairseq_structattn.analysis.parsers import load_parser, parse

    if not os.path.exists(output):
        sentences = [line.split() for line in read_lines(words)]
        found = parse(load_parser(parser.checkpoint, os.path.join(parser.data, "bin")), sentences, "risk")
        write_lines(output, [" ".join(map(str, heads)) for heads in found])


def listen_to_teacher(run: Run, arguments: argparse.Namespace) -> None:
    """Trains the parser whose trees a run is given, seed 1, and writes the heads that it finds."""
    parser = Run(teacher(run.name), 1, arguments.work, arguments.results, None, arguments.tiny)
    parser.make(needs_checkpoint=True)
    binarised = os.path.join(run.data, "bin")
    for split in ("train", "valid", "test"):
        if run.kind == "translation":
            write_heads(parser, os.path.join(run.data, f"{split}.en"), os.path.join(binarised, f"{split}.heads.en"))
        else:
            for side in ("premise", "hypothesis"):
                words = os.path.join(run.data, f"{split}.{side}.cased")
                write_heads(parser, words, os.path.join(binarised, f"{split}.heads.{side}"))


@command
def main(arguments=None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("seed", type=int, metavar="SEED")
    parser.add_argument("--work", required=True, metavar="WORK_DIR")
    parser.add_argument("--results", default=os.path.join(HERE, "results"), metavar="DIR")
    parser.add_argument("--vectors", metavar="FILE", help="word vectors, for published runs")
    parser.add_argument("--tiny", action="store_true", help="sizes of 8 and two epochs, for a dry run")
    options = parser.parse_args(arguments)
    run = Run(options.name, options.seed, options.work, options.results, options.vectors, options.tiny)
    if teacher(run.name) and not run.is_done():
        listen_to_teacher(run, options)
    run.make()


if __name__ == "__main__":
    main()
