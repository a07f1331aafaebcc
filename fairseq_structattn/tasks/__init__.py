"""Tasks; importing this package registers them with fairseq."""

from fairseq_structattn.tasks.babi_qa import BabiTask
from fairseq_structattn.tasks.parsing import ParsingTask
from fairseq_structattn.tasks.sentence_pair import SentencePairTask
from fairseq_structattn.tasks.translation_with_heads import TranslationWithHeadsTask

__all__ = ["BabiTask", "ParsingTask", "SentencePairTask", "TranslationWithHeadsTask"]
