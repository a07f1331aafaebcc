"""Terms of the loss beside the cross entropy: their interface and their registration.

A term is one file, in this folder or in a ``--user-dir``: a subclass of :class:`Term`, decorated with
:func:`register_term`. ``--criterion structattn_label_smoothed_cross_entropy`` then has its options, adds the term to
the loss and logs it.
"""

from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple, Type

from torch import Tensor, nn

from fairseq_structattn.distributions.registry import Registry

# Name, type, default and help text of an option.
Option = Tuple[str, type, Any, str]


class Term:
    """Interface of a term. The criterion adds the value of a term, times its weight, to the loss.

    Args:
        task: the fairseq task
        options: by name, the options of all terms, and ``sentence_avg``

    Attributes:
        name: in the log, and of the option of its weight (default 0); underscores between words
        description: help text of that option
        further_options: other options of the term
        needs_distribution: whether the model returns its distributions in ``extra``
        may_be_negative: whether the weight may be negative

    Raises:
        ValueError: a negative weight
    """

    name: str
    description: str
    further_options: Sequence[Option] = ()
    needs_distribution = False
    may_be_negative = False

    def __init__(self, task, options: Mapping[str, Any]):
        self.task, self.options, self.weight = task, options, options[self.name]
        if self.weight < 0 and not self.may_be_negative:
            raise ValueError(f"{self.flag()} {self.weight}: must be 0 or greater")

    def value(self, model: nn.Module, sample: dict, extra: dict) -> Tuple[Tensor, Tensor]:
        """The value of the term for a batch, without its weight: a sum over words, and the number of these words.

        Every batch has a value, which may be 0 over no words: processes add up their logs, which must have the same
        entries.

        Args:
            model: in training or evaluation mode
            sample: a batch of fairseq
            extra: output of the model beside its scores: ``"attn"`` and, if a term needs distributions,
                ``"posterior"`` and ``"source_attention"``, see
                :meth:`~fairseq_structattn.models.rnn.RNNDecoder.forward`
        """
        raise NotImplementedError

    @classmethod
    def skipped(cls, task) -> None:
        """Called instead of the constructor where the weight is 0."""

    @classmethod
    def flag(cls) -> str:
        """The option of its weight."""
        return "--" + cls.name.replace("_", "-")

    def attended(self, attention):
        """Returns `attention`, weights or a distribution of the model; ValueError if it is None."""
        if attention is None:
            raise ValueError(
                f"{self.flag()}: the model returns no attention: choose an --attention-distribution, not none, or "
                "leave out --no-cross-attention"
            )
        return attention


def nothing(target: Tensor) -> Tuple[Tensor, Tensor]:
    """The value of a term that counts no word of the batch."""
    return target.new_zeros(()).float(), target.new_zeros(())


_TERMS: Registry[Term] = Registry("term of the loss", Term)
_LISTENERS: List[Callable[[], None]] = []


def register_term(cls: Type[Term]) -> Type[Term]:
    """Class decorator: makes a :class:`Term` part of the loss, its options among those of the criterion.

    Raises:
        TypeError: the decorated object is not a subclass of :class:`Term`
        ValueError: another term has the same name
    """
    _TERMS.register(getattr(cls, "name", ""))(cls)
    for tell in _LISTENERS:
        tell()
    return cls


def when_registered(tell: Callable[[], None]) -> None:
    """Calls `tell` now, and again after each later registration of a term."""
    _LISTENERS.append(tell)
    tell()


def term_names() -> List[str]:
    """Names of all terms, sorted."""
    return _TERMS.names()


def term_options() -> List[Option]:
    """Options of all terms."""
    found: List[Option] = []
    for cls in map(_TERMS.get, term_names()):
        found.append((cls.name, float, 0.0, cls.description))
        found.extend(cls.further_options)
    return found


def build_terms(task, sentence_avg: bool, given: Mapping[str, Any]) -> List[Term]:
    """The terms whose weight is not 0.

    Args:
        task: the fairseq task
        sentence_avg: whether losses are averaged over sentences, not over words
        given: options of terms by name; all other options have their defaults

    Raises:
        TypeError: an option that no term has
        ValueError: values that a term refuses
    """
    options: Dict[str, Any] = {name: default for name, _, default, _ in term_options()}
    unknown = sorted(set(given) - set(options))
    if unknown:
        raise TypeError(f"no term of the loss has an option {unknown[0]!r}; there are: {', '.join(sorted(options))}")
    options.update(given, sentence_avg=sentence_avg)
    terms = []
    for cls in map(_TERMS.get, term_names()):
        if options[cls.name]:
            terms.append(cls(task, options))
        else:
            cls.skipped(task)
    return terms
