"""Repairs for defects of the installed fairseq, and for its incompatibilities with newer versions of torch and numpy.

Every repair tests the behaviour of the installed version, never its version number, and changes only what is broken. If
the test is quick, `apply()` makes it; the other repairs are put in place and make their test at first use
(:mod:`~fairseq_structattn.compat.deciding`). Both write to the log.
"""

import os

from .alignments import repair_generated_alignment, repair_interactive_alignment, repair_scored_alignment
from .architectures import repair_hydra_architectures
from .batches import repair_batch_by_size, repair_get_buckets, repair_numpy_compat
from .checkpoints import repair_checkpoint_loading
from .deciding import announce, logger
from .generation import repair_diverse_beams, repair_ngram_blocking, repair_sampling, repair_source_length
from .processes import repair_processes_on_cpu
from .unknown_words import repair_unknown_words

ENVIRONMENT_VARIABLE = "STRUCTATTN_COMPAT"
AT_ONCE = {
    "sentences lost in batches": repair_batch_by_size,
    "length buckets": repair_get_buckets,
    "numpy.compat": repair_numpy_compat,
    "loading of checkpoints": repair_checkpoint_loading,
}
WHEN_USED = (
    repair_hydra_architectures,
    repair_generated_alignment,
    repair_scored_alignment,
    repair_interactive_alignment,
    repair_ngram_blocking,
    repair_diverse_beams,
    repair_sampling,
    repair_source_length,
    repair_unknown_words,
    repair_processes_on_cpu,
)


def apply():
    """Applies the repairs that are needed, before fairseq batches data or loads a checkpoint. Later calls find nothing
    to repair. With ``STRUCTATTN_COMPAT=0`` in the environment nothing is tested, and nothing changed.

    Raises:
        ValueError: ``STRUCTATTN_COMPAT`` is neither 0 nor 1
    """
    if not _is_wanted():
        logger.info(f"{ENVIRONMENT_VARIABLE}=0: fairseq is left as it is")
        return
    made = [name for name, repair in AT_ONCE.items() if repair()]
    for repair in WHEN_USED:
        repair()
    if made:
        announce(*made)


def _is_wanted():
    value = os.environ.get(ENVIRONMENT_VARIABLE, "1")
    if value not in ("0", "1"):
        raise ValueError(f"{ENVIRONMENT_VARIABLE}={value}: write 0 to leave fairseq as it is, or 1, the default")
    return value == "1"
