"""Entropy of the attention distribution: how undecided attention is."""

from torch import Tensor

from fairseq_structattn.distributions import StructuredDistribution


def attention_entropy(posterior: StructuredDistribution, counted: Tensor) -> Tensor:
    """Σ_t H(z_t), the exact entropy of the structures at each target step, summed over the batch, in nats.

    H(z) = log Z − ⟨θ, μ⟩ (Wainwright & Jordan, "Graphical Models, Exponential Families, and Variational Inference",
    2008, theorem 3.4). As a penalty it is entropy regularisation (Grandvalet & Bengio, NIPS 2004).

    Args:
        posterior: over source positions, of batch shape ``[batch, tgt_len]``
        counted: which target words there are, boolean ``[batch, tgt_len]``
    """
    return posterior.entropy().masked_fill(~counted, 0).sum()
