"""Makes one run: trains, translates both test sets, and writes what the report needs into one small file.

    python scripts/experiments/transformer/one_run.py NAME SEED --work WORK_DIR

A run is not repeated if its file exists and was made with the same options from the same data; a training that was
stopped continues. The file is results/NAME-SEED.json; it has no text of the corpora.
"""

import os
from typing import Optional, Sequence

from transformer_settings import CORPORA, parse_name, text_folder, train_options

from fairseq_structattn.analysis import PLUGIN
from fairseq_structattn.analysis.files import command
from fairseq_structattn.analysis.translation_run import TranslationRun, make_as_asked

HERE = os.path.dirname(os.path.abspath(__file__))


class Run(TranslationRun):
    """One training of the system `name` from `seed`.

    Args:
        name: CORPUS.SYSTEM, with the settings of a trial behind @ if it is one
        seed: of the training
        work: the folder with the prepared data, where checkpoints and logs go
        kept: the folder of the results
        tiny: sizes of 8 and twelve updates, for a dry run
    """

    user_dir = PLUGIN

    def __init__(self, name: str, seed: int, work: str, kept: str, tiny: bool = False):
        self.name = parse_name(name)
        self.corpus, self.text = CORPORA[self.name.corpus], text_folder(self.name.corpus, work)
        self.languages = self.corpus.languages
        data, options = os.path.join(work, self.corpus.data), train_options(self.name, kept, tiny)
        super().__init__(str(self.name), seed, data, work, kept, options, self.name.trial is None)

    def text_of(self, test: str) -> str:
        """Scores are of words, whatever the model reads and writes."""
        return os.path.join(self.text, test)

    def translate(self, subset: str, output: str, path: Optional[str] = None, options: Sequence[str] = ()) -> None:
        super().translate(subset, output, path, [*self.corpus.generation, *options])


@command
def main(arguments=None) -> None:
    make_as_asked(Run, __doc__, os.path.join(HERE, "results"), arguments)


if __name__ == "__main__":
    main()
