"""Tasks other than translation: one dictionary for all text."""

from fairseq.data import Dictionary
from fairseq.tasks import FairseqTask


class OneDictionaryTask(FairseqTask):
    """A task with a single ``dictionary``. Generic parts of fairseq need a source and a target dictionary; its
    criterions need the padding symbol of the target dictionary."""

    dictionary: Dictionary

    @property
    def source_dictionary(self) -> Dictionary:
        """The dictionary of all words."""
        return self.dictionary

    @property
    def target_dictionary(self) -> Dictionary:
        """The same dictionary."""
        return self.dictionary
