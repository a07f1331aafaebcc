"""Trees of records in CoNLL-U, the format of Universal Dependencies (https://universaldependencies.org/format.html).

A model fills four of the ten columns: ID, FORM, HEAD and DEPREL, which is ``root`` for words whose head is the root and
``dep``, an unspecified dependency, for all others. Models trained with ``--tree-roots multi``, the default, may find
several root words; validators require exactly one from their level 2 on.
"""

from typing import Iterable, Iterator

from fairseq_structattn.analysis.attention_records import AttentionRecord, RecordError, without_end
from fairseq_structattn.analysis.files import replaced


def sentence(record: AttentionRecord) -> str:
    """The tree of a record: a block of lines followed by an empty line; nothing for a sentence without words.

    Raises:
        RecordError: the record has no tree, or its heads form no tree
    """
    if record.tree is None:
        raise RecordError(
            f"sentence {record.id}: --conllu needs a single model that was trained with --source-attention "
            "projective-tree or spanning-tree; this one has no tree over the source"
        )
    words, heads = without_end(record.source), record.tree.heads
    if not _is_tree(heads):
        raise RecordError(
            f"sentence {record.id}: the most likely heads {heads} are no tree, which --source-attention softmax does "
            "not ask for; the records have them (`tree`), CoNLL-U cannot"
        )
    for word in words:
        if not word or any(character in word for character in "\t\n\r"):
            raise RecordError(
                f"sentence {record.id}: the token {word!r} is empty or has a tab or line break, which CoNLL-U cannot "
                "say; leave the sentence out with --ids"
            )
    if not words:
        return ""
    lines = [f"# sent_id = {record.id}", f"# text = {' '.join(words)}"]
    for number, (word, head) in enumerate(zip(words, heads), 1):
        relation = "dep" if head else "root"
        lines.append("\t".join([str(number), word, "_", "_", "_", "_", str(head), relation, "_", "_"]))
    return "\n".join(lines) + "\n\n"


def with_conllu(records: Iterable[AttentionRecord], path: str) -> Iterator[AttentionRecord]:
    """Yields the records, and writes the tree of each sentence once, beside `path`; the file is moved into place after
    the last record."""
    last = None
    with replaced(path) as file:
        for record in records:
            if record.id != last:
                file.write(sentence(record))
            last = record.id
            yield record


def _is_tree(heads) -> bool:
    """Whether following the heads leads from every word to the root, 0."""
    above = list(range(1, len(heads) + 1))
    for _ in heads:
        above = [heads[word - 1] if word else 0 for word in above]
    return not any(above)
