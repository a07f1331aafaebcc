"""Unknown words: their replacement by `--replace-unk`."""

import functools

from fairseq import utils
from fairseq.data import data_utils
from fairseq.sequence_generator import SequenceGeneratorWithAlignment
from fairseq.tasks import FairseqTask
from fairseq.tokenizer import tokenize_line

from .deciding import AtFirstUse, put_in_place

# Value of the option if no dictionary follows it: the default of another option, by a mistake of fairseq.
NO_DICTIONARY = "@@ "


def repair_unknown_words():
    """Replacements of unknown words.

    Symptom: `--replace-unk` without a file ends in "No such file or directory: '@@ '"; with one in an IndexError, since
    nothing has been aligned; and with `--print-alignment` in "list indices must be integers or slices, not tuple".
    Detection, at the first use: an unknown word with an alignment cannot be replaced.
    Repair: without a file, the words of the source are copied; translations are aligned; and both kinds of alignment
    are accepted. Positions count the tokens of source and translation, not the words that the tokens are joined to.
    """
    decision = AtFirstUse("replacement of unknown words", cannot_replace)
    put_in_place(utils, "load_align_dict", lambda stock: _without_dictionary(stock, decision))
    put_in_place(utils, "post_process_prediction", lambda stock: _replacing(stock, decision))
    put_in_place(FairseqTask, "build_generator", lambda stock: _aligning(stock, decision))


def cannot_replace():
    try:
        return utils.replace_unk("<unk>", "word", [(0, 0)], {}, "<unk>") != "word"
    except TypeError:
        return True


def _without_dictionary(stock, decision):
    @functools.wraps(stock)
    def load_align_dict(replace_unk):
        return {} if replace_unk == NO_DICTIONARY and decision.is_needed() else stock(replace_unk)

    return load_align_dict


def _aligning(stock, decision):
    @functools.wraps(stock)
    def build_generator(self, models, args, seq_gen_cls=None, extra_gen_cls_kwargs=None, **kwargs):
        options = [getattr(args, name, None) for name in ("print_alignment", "score_reference")]
        is_asked = getattr(args, "replace_unk", None) is not None and seq_gen_cls is None and not any(options)
        if is_asked and decision.is_needed():
            seq_gen_cls = SequenceGeneratorWithAlignment
            extra_gen_cls_kwargs = {**(extra_gen_cls_kwargs or {}), "print_alignment": "hard"}
        return stock(self, models, args, seq_gen_cls, extra_gen_cls_kwargs, **kwargs)

    return build_generator


def _replacing(stock, decision):
    @functools.wraps(stock)
    def post_process_prediction(
        hypo_tokens, src_str, alignment, align_dict, tgt_dict, remove_bpe=None, extra_symbols_to_ignore=None
    ):
        if align_dict is None or not decision.is_needed():
            return stock(hypo_tokens, src_str, alignment, align_dict, tgt_dict, remove_bpe, extra_symbols_to_ignore)
        tokens = tokenize_line(tgt_dict.string(hypo_tokens, extra_symbols_to_ignore=extra_symbols_to_ignore))
        source = tokenize_line(src_str)
        positions = _source_positions(alignment, len(source))
        for place, token in enumerate(tokens):
            if token == tgt_dict.unk_string() and place in positions:
                word = source[positions[place]]
                tokens[place] = align_dict.get(word, word)
        text = data_utils.post_process(" ".join(tokens), remove_bpe)
        return tgt_dict.encode_line(text, add_if_not_exist=True), text, alignment

    return post_process_prediction


def _source_positions(alignment, words):
    """The position of one source word for each aligned target position, from pairs, or from rows of weights as text;
    the last weight of a row is that of `</s>`."""
    if all(isinstance(part, tuple) for part in alignment):
        return {target: source for source, target in alignment if source < words}
    rows = [list(map(float, row[:words])) for row in alignment]
    return {target: row.index(max(row)) for target, row in enumerate(rows) if row}
