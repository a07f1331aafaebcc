"""Makes one run: trains, translates both test sets, and writes what the report needs into one small file.

    python scripts/experiments/enja/one_run.py NAME SEED --work WORK_DIR

A run is not repeated if its file exists and was made with the same options from the same data; a training that was
stopped continues. The file, results/NAME-SEED.json, has about 25 kB of text.
"""

import os
import re
from typing import Dict, List

import segments
from settings import LANGUAGES, parse_name, train_options

from fairseq_structattn.analysis.attention_records import AttentionRecord
from fairseq_structattn.analysis.files import command, read_lines
from fairseq_structattn.analysis.translation_run import SEARCH, RunError, TranslationRun, make_as_asked

HERE = os.path.dirname(os.path.abspath(__file__))
DRAWN = (12, 17, 21, 24, 26)  # sentences of the first test set
AVERAGED = 3  # epochs whose checkpoints stay


class Run(TranslationRun):
    """One training of the system `name` from `seed`.

    Args:
        name: SIDE.MODEL.SYSTEM, with the settings of a trial behind @ if it is one
        seed: of the training
        work: the folder with the prepared data, where checkpoints and logs go
        kept: the folder of the results
        tiny: sizes of 8 and two epochs, for a dry run
    """

    languages = LANGUAGES
    user_dir = os.path.join(HERE, "attention_variants")

    def __init__(self, name: str, seed: int, work: str, kept: str, tiny: bool = False):
        self.name = parse_name(name)
        data = os.path.join(work, self.name.side)
        options = train_options(self.name, kept, tiny)
        super().__init__(str(self.name), seed, data, work, kept, options, self.name.is_final)

    def checkpoint_of(self, epoch: int) -> str:
        return os.path.join(self.folder, f"checkpoint{epoch}.pt")

    def of_epoch(self, number: int) -> Dict:
        return {"pairwise": pairwise(self.checkpoint_of(number))}

    def tidy(self, epochs: int) -> None:
        """Removes the checkpoints that have no further use: the best one stays, and the last ones, to be averaged."""
        super().tidy(epochs)
        for number in range(1, epochs + 1 - AVERAGED if self.is_final else 0):
            os.remove(self.checkpoint_of(number))

    def looked_into(self) -> Dict:
        """Attention of a few translations and, for characters, the boundaries of segments."""
        from fairseq.dataclass.configs import GenerationConfig

        from fairseq_structattn.analysis.export_attention import export, load_dataset, load_models

        models, task = load_models(self.checkpoint, os.path.join(self.data, "bin"), self.user_dir, cpu=True)
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


@command
def main(arguments=None) -> None:
    make_as_asked(Run, __doc__, os.path.join(HERE, "results"), arguments)


if __name__ == "__main__":
    main()
