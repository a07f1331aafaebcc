"""Repairs for defects of the installed fairseq, and for its misfits with newer versions of torch and numpy.

Every repair looks at what the installed version does, never at its version number, and leaves alone what works.
`apply()` runs them all; it has to run after our models are registered, and before fairseq batches data or loads a
checkpoint.
"""

from .alignments import repair_generated_alignment, repair_interactive_alignment, repair_scored_alignment
from .architectures import repair_hydra_architectures
from .batches import repair_batch_by_size, repair_get_buckets, repair_numpy_compat
from .checkpoints import repair_checkpoint_loading
from .generation import repair_diverse_beams, repair_ngram_blocking, repair_sampling, repair_source_length


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
    repair_ngram_blocking()
    repair_diverse_beams()
    repair_sampling()
    repair_source_length()
