"""The ``--user-dir`` of this experiment: variants of the chain as published, which have no use beyond it."""

import fairseq_structattn  # noqa: F401  (a user-dir brings the architectures along)

from . import chain_variants, several_heads, uncoupled_chain  # noqa: F401  (importing registers)
