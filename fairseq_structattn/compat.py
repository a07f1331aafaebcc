"""Repairs for defects of the installed fairseq, and for its misfits with newer versions of torch and numpy.

Every repair looks at what the installed version does, never at its version number, and leaves alone what works.
`apply()` runs them all; it has to run after our models are registered, and before fairseq batches data or loads a
checkpoint.
"""

import argparse
import functools
import io
import pickle
import sys
import types
import warnings

import numpy as np
import torch
from fairseq import utils
from fairseq.data import Dictionary, data_utils, language_pair_dataset, token_block_dataset
from fairseq.dataclass import initialize
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_NAME_REGISTRY
from fairseq.sequence_generator import SequenceGeneratorWithAlignment
from fairseq.sequence_scorer import SequenceScorer
from omegaconf import DictConfig, OmegaConf

# numpy 2 renamed the module whose functions its pickles call; checkpoints with either spelling are about.
NUMPY_PICKLE_MODULES = ("numpy.core.multiarray", "numpy._core.multiarray")
# Stands at the end of a row of weights on its way through fairseq-interactive.
ROW_END = "\0"
# One-letter names that numpy gives to truth values, signed and unsigned integers and floating-point numbers.
NUMBER_KINDS = "biuf"


def apply():
    """Repair whatever needs it. Later calls find a healthy fairseq and change nothing."""
    repair_batch_by_size()
    repair_get_buckets()
    repair_numpy_compat()
    repair_checkpoint_loading()
    repair_hydra_architectures()
    repair_generated_alignment()
    repair_scored_alignment()
    repair_interactive_alignment()


def _replace_everywhere(name, old, new):
    """Rebind `name` wherever fairseq holds `old`: modules that imported it by name would go on using it otherwise."""
    for module_name, module in list(sys.modules.items()):
        if module_name.split(".")[0] in ("fairseq", "fairseq_cli") and vars(module).get(name) is old:
            setattr(module, name, new)


def repair_batch_by_size():
    """Sentences that go missing.

    Symptom: `fairseq-generate` prints 96 of 100 translations, and validation scores are computed on 96 sentences: when
    the last batch is no multiple of `required_batch_size_multiple`, it is thrown away. A data set without sentences
    ends in an IndexError for the same reason.
    Detection: of three sentences in batches of two, the third does not come out.
    Repair: the sentences behind the last batch are added as a batch of their own.
    """
    stock = data_utils.batch_by_size
    if _loses_sentences(stock):
        _replace_everywhere("batch_by_size", stock, _keeping_all(stock))


def _loses_sentences(batch_by_size):
    try:
        batches = batch_by_size([0, 1, 2], lambda index: 1, max_sentences=2, required_batch_size_multiple=2)
    except ImportError:  # a fairseq without its compiled part batches nothing; its own message says what to do
        return False
    return sum(len(batch) for batch in batches) < 3


def _keeping_all(batch_by_size):
    @functools.wraps(batch_by_size)
    def complete(
        indices,
        num_tokens_fn,
        num_tokens_vec=None,
        max_tokens=None,
        max_sentences=None,
        required_batch_size_multiple=1,
        fixed_shapes=None,
    ):
        if not isinstance(indices, np.ndarray):
            indices = np.fromiter(indices, dtype=np.int64)
        if len(indices) == 0:
            return []
        batches = batch_by_size(
            indices,
            num_tokens_fn,
            num_tokens_vec=num_tokens_vec,
            max_tokens=max_tokens,
            max_sentences=max_sentences,
            required_batch_size_multiple=required_batch_size_multiple,
            fixed_shapes=fixed_shapes,
        )
        if fixed_shapes is not None:  # another algorithm, which neither loses sentences nor keeps their order
            return batches
        # Batches are consecutive slices of the indices, so what is missing is what lies behind them.
        rest = indices[sum(len(batch) for batch in batches) :]
        return batches + [rest] if len(rest) else batches

    return complete


def repair_get_buckets():
    """Length buckets under numpy 2.

    Symptom: `--num-batch-buckets` ends in "percentile() got an unexpected keyword argument 'interpolation'".
    Detection: buckets for three sizes raise that TypeError.
    Repair: the same quantiles by the argument's new name, `method`.
    """
    stock = data_utils.get_buckets
    try:
        stock(np.array([1, 2, 3]), 2)
    except TypeError:
        _replace_everywhere("get_buckets", stock, functools.wraps(stock)(_length_quantiles))


def _length_quantiles(sizes, num_buckets):
    # The quantile at 0 would be a bucket for the shortest sentences alone; fairseq has none.
    shares = np.linspace(0, 100, num_buckets + 1)[1:]
    return np.unique(np.percentile(sizes, shares, method="lower"))


def repair_numpy_compat():
    """Data sets that ask for `numpy.compat.long`.

    Symptom: with a numpy that no longer has `numpy.compat`, `--num-batch-buckets` ends in an AttributeError, and so
    does `--sample-break-mode eos` of language models.
    Detection: the `np` of the two modules which ask for it doesn't know it.
    Repair: these two modules see numpy with the missing name added; numpy itself stays as it is for everyone else.
    """
    for module in (language_pair_dataset, token_block_dataset):
        if not hasattr(getattr(module.np, "compat", None), "long"):
            module.np = _NumpyWithLong("numpy")


class _NumpyWithLong(types.ModuleType):
    compat = types.SimpleNamespace(long=int)

    def __getattr__(self, name):
        return getattr(np, name)


def repair_checkpoint_loading():
    """Checkpoints that torch refuses.

    Symptom: `fairseq-generate`, or `fairseq-train` when it resumes, ends in an UnpicklingError, since torch loads
    nothing but tensors and plain containers by default and a fairseq checkpoint has a little more in it.
    Detection: a checkpoint with no more than that little is refused.
    Repair: exactly that is declared safe, and the protection stays on for everything else. It is

    * `argparse.Namespace`: the options of models and tasks which have no dataclass;
    * numpy's arrays and scalars of numbers: meters in the extra state, the n-gram counts of `--eval-bleu` for instance.

    A namespace is harmless: loading creates it and sets attributes, which calls nothing. What numpy's pickles name is
    not: `numpy.ndarray` builds an array of objects from raw bytes, which are then followed as pointers, and the state
    of a `numpy.dtype` sets its flags unchecked. So these names lead to the stand-ins below, which make numbers and
    nothing else. Never put here what calls, imports or looks up something that the checkpoint chooses:
    `builtins.getattr`, `eval`, `type`, `functools.partial`, `operator.attrgetter` and the like.

    This guards the loading of the file, no more: fairseq evaluates some options of a checkpoint as Python code when it
    builds the model or the optimizer (`--adam-betas`, the layers of `fconv`), so strangers' checkpoints stay a risk.
    """
    if _refuses_checkpoints():
        torch.serialization.add_safe_globals(_safe_globals())


def _refuses_checkpoints():
    buffer = io.BytesIO()
    torch.save([argparse.Namespace(a=1), np.ones(1), np.float64(1)], buffer)
    buffer.seek(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some versions load it, and announce that their successors won't
        try:
            torch.load(buffer)
        except pickle.UnpicklingError:
            return True
    return False


def _safe_globals():
    found = [argparse.Namespace, (_NumberArray, "numpy.ndarray"), (_NumberType, "numpy.dtype")]
    for module in NUMPY_PICKLE_MODULES:
        found += [(_new_array, module + "._reconstruct"), (_number, module + ".scalar")]
    return found


class _NumberType:
    """Takes the place of `numpy.dtype` in a checkpoint, and knows the types of numbers only."""

    def __init__(self, code, align=False, copy=False):
        self.dtype = np.dtype(code) if isinstance(code, str) else None
        if self.dtype is None or self.dtype.kind not in NUMBER_KINDS:
            raise pickle.UnpicklingError(f"the checkpoint has a numpy type other than numbers: {code!r}")

    def __setstate__(self, state):
        # Of the state, only the byte order tells anything about a number.
        self.dtype = self.dtype.newbyteorder(state[1])


class _NumberArray(np.ndarray):
    """Takes the place of `numpy.ndarray` in a checkpoint: an array that is filled from bytes, and with numbers only.

    It behaves, and is saved again, as the plain array that it is.
    """

    def __new__(cls, *shape_or_content):
        if shape_or_content:
            raise pickle.UnpicklingError("the checkpoint has a numpy array that is not stored the usual way")
        return super().__new__(cls, (0,), np.int8)

    def __setstate__(self, state):
        version, shape, number_type, is_fortran, data = state
        super().__setstate__((version, shape, _checked(number_type), is_fortran, data))

    def __reduce__(self):
        return self.view(np.ndarray).__reduce__()


def _new_array(array_class, shape, code):
    """Takes the place of the function with which numpy's pickles begin an array; all else comes with its state."""
    return _NumberArray()


def _number(number_type, data):
    """Takes the place of the function with which numpy's pickles make a scalar."""
    return np.frombuffer(data, dtype=_checked(number_type), count=1)[0]


def _checked(number_type):
    if not isinstance(number_type, _NumberType):
        raise pickle.UnpicklingError("the checkpoint has something else where a numpy type belongs")
    return number_type.dtype


def repair_hydra_architectures():
    """Architectures that `fairseq-hydra-train` overlooks.

    Symptom: with `_name: structattn_rnn_crf` it trains a `structattn_rnn`: whatever the user leaves open gets the
    model's own defaults before the architecture is asked for those that it stands for.
    Detection: the defaults of `structattn_rnn_vanilla`, which has no attention, come out with attention.
    Repair: the architecture is asked first. This is for architectures of our model only; others, fairseq's own among
    them, have been trained with what they got.
    """
    stock = initialize.add_defaults
    if _overlooks_architectures(stock):
        _replace_everywhere("add_defaults", stock, _asking_the_architecture(stock))


def _overlooks_architectures(add_defaults):
    config = OmegaConf.create({"model": {"_name": "structattn_rnn_vanilla"}})
    add_defaults(config)
    return config.model.get("attention_distribution", "none") != "none"


def _asking_the_architecture(add_defaults):
    @functools.wraps(add_defaults)
    def with_architecture(config):
        model = config.get("model")
        name = model.get("_name") if isinstance(model, DictConfig) else None
        if ARCH_MODEL_NAME_REGISTRY.get(name) == "structattn_rnn":
            ARCH_CONFIG_REGISTRY[name](model)
        add_defaults(config)

    return with_architecture


def repair_generated_alignment():
    """Alignments of translations that end in an IndexError.

    Symptom: `--print-alignment` ends in "list index out of range" when a search finds fewer translations of a sentence
    than the beam is wide, and in "Dimension out of range" for a model without attention.
    Detection: a search of width 4 for one word of a vocabulary without words, where there are but two answers, ends so.
    Repair: the translations that there are, are aligned, and a model without attention is told about. Models that
    align by a second pass (`transformer_align`) are left to fairseq.
    """
    stock = SequenceGeneratorWithAlignment.generate
    if _counts_on_full_beams():
        SequenceGeneratorWithAlignment.generate = _aligning_what_is_there(stock)


class _Anyword(torch.nn.Module):
    """A model that finds all words equally likely, and attends to all of the source."""

    def __init__(self, words):
        super().__init__()
        self.words = words

    def forward(self, tokens=None, prev_output_tokens=None, src_tokens=None):
        tokens = prev_output_tokens if tokens is None else tokens
        attention = torch.ones(*tokens.shape, 1 if src_tokens is None else src_tokens.size(1))
        return torch.zeros(*tokens.shape, self.words), {"attn": [attention]}

    def get_normalized_probs(self, output, log_probs, sample=None):
        return output[0]


def _counts_on_full_beams():
    words = Dictionary()
    generator = SequenceGeneratorWithAlignment([_Anyword(len(words))], words, beam_size=4, max_len_b=1)
    source = torch.tensor([[words.eos()]])
    try:
        generator.generate(None, {"net_input": {"src_tokens": source, "src_lengths": torch.tensor([1])}})
    except IndexError:
        return True
    return False


def _aligning_what_is_there(stock):
    @functools.wraps(stock)
    @torch.no_grad()
    def generate(self, models, sample, **kwargs):
        if any(getattr(model, "full_context_alignment", False) for model in self.model.models):
            return stock(self, models, sample, **kwargs)
        found = self._generate(sample, **kwargs)
        for source, hypotheses in zip(sample["net_input"]["src_tokens"].cpu(), found):
            for hypothesis in hypotheses:
                attention, target = hypothesis["attention"].cpu(), hypothesis["tokens"].cpu()
                if attention.dim() != 2:
                    raise _no_alignment()
                # The generator has the weights as [src_len, tgt_len], and for a model without attention an empty list.
                hypothesis["alignment"] = self.extract_alignment(attention.t(), source, target, self.pad, self.eos)
        return found

    return generate


def _no_alignment():
    return ValueError("--print-alignment: the model has no attention, so nothing is aligned; leave the option out")


def repair_scored_alignment():
    """Soft alignments of references.

    Symptom: `--score-reference --print-alignment soft` ends in "expected str instance, int found"; and with a model
    without attention, `--score-reference --print-alignment` ends in "'NoneType' object is not iterable".
    Detection: asked for a soft alignment, the scorer answers with pairs of integers.
    Repair: rows of weights, as the generator gives them; a model without attention is told about.
    """
    stock = SequenceScorer.generate
    if _scores_with_hard_alignments():
        SequenceScorer.generate = _with_soft_alignments(stock)


def _scores_with_hard_alignments():
    words = Dictionary()
    tokens = torch.tensor([[words.unk(), words.eos()]])
    sample = {"net_input": {"src_tokens": tokens, "prev_output_tokens": tokens.flip(1)}, "target": tokens}
    ((hypothesis,),) = SequenceScorer(words, compute_alignment="soft").generate([_Anyword(len(words))], sample)
    return hypothesis["alignment"] == [(0, 0)]


def _with_soft_alignments(stock):
    @functools.wraps(stock)
    def generate(self, models, sample, **kwargs):
        scored = stock(self, models, sample, **kwargs)
        if not self.compute_alignment:
            return scored
        for row, (hypothesis,) in enumerate(scored):
            if hypothesis["attention"] is None:
                raise _no_alignment()
            if self.compute_alignment == "soft":
                source, target = sample["net_input"]["src_tokens"][row], sample["target"][row]
                weights = hypothesis["attention"], source, target
                hypothesis["alignment"] = utils.extract_soft_alignment(*weights, self.pad, self.eos)
        return scored

    return generate


def repair_interactive_alignment():
    """Soft alignments in `fairseq-interactive`.

    Symptom: with `--print-alignment soft` it ends in "too many values to unpack".
    Detection: its `main` prints alignments, but knows no soft ones: the word is not among its constants.
    Repair: what it prints as a pair is a row and a mark, and what it prints with loses the marks. The module is one
    that is running already, under its own name or as `__main__`; where it is not loaded there is nothing to do.
    """
    for module in list(sys.modules.values()):
        name = getattr(getattr(module, "__spec__", None), "name", None)
        if name == "fairseq_cli.interactive" and "soft" not in module.main.__code__.co_consts:
            module.utils = _UtilsWithRows("utils")
            module.print = _print_without_marks


class _UtilsWithRows(types.ModuleType):
    def __getattr__(self, name):
        return getattr(utils, name)

    @staticmethod
    def post_process_prediction(*args, **kwargs):
        tokens, text, alignment = utils.post_process_prediction(*args, **kwargs)
        is_soft = isinstance(alignment, list) and any(isinstance(row, list) for row in alignment)
        return tokens, text, [(",".join(row), ROW_END) for row in alignment] if is_soft else alignment


def _print_without_marks(text, *args, **kwargs):
    print(text.replace("-" + ROW_END, "") if isinstance(text, str) else text, *args, **kwargs)
