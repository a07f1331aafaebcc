"""Tasks without translation: one dictionary for all that is read."""

from fairseq.data import Dictionary
from fairseq.tasks import FairseqTask


class OneDictionaryTask(FairseqTask):
    """A task that keeps its words in ``dictionary``. Generic parts of fairseq ask for a source and a target dictionary;
    its criterions want the padding symbol of the latter."""

    dictionary: Dictionary

    @property
    def source_dictionary(self) -> Dictionary:
        """Of all words."""
        return self.dictionary

    @property
    def target_dictionary(self) -> Dictionary:
        """The same."""
        return self.dictionary
