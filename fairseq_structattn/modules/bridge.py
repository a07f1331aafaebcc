"""The start state of the decoder."""

import torch
from torch import Tensor, nn

from fairseq_structattn.modules.recurrent import State


class ZeroStart(nn.Module):
    """Starts from zeros, as the released code of Kim et al. 2017 does."""

    def __init__(self, source_dim: int, hidden_dim: int, source_layers: int, layers: int, state_size: int):
        super().__init__()
        self.shape, self.state_size = (layers, hidden_dim), state_size

    def forward(self, finals: Tensor) -> State:
        """Zeros of the batch size, device and dtype of the encoder's final states."""
        layers, hidden_dim = self.shape
        zeros = finals.new_zeros(layers, finals.size(0), hidden_dim)
        return (zeros,) * self.state_size


class BridgedStart(nn.Module):
    """A learned map from the encoder's final states: hidden states ``tanh(W h + b)``, cells ``W h + b``.

    Layers are paired from the top: with equal numbers of layers, each decoder layer starts from its counterpart. The
    lower layers of a deeper encoder are not used; the lowest layer of a shallower encoder serves several.

    Args:
        source_dim: size of a final state of the encoder
        hidden_dim: units of a decoder layer
        source_layers: layers of the encoder
        layers: layers of the decoder
        state_size: 2 for an LSTM (hidden states and cells), 1 for a GRU
    """

    def __init__(self, source_dim: int, hidden_dim: int, source_layers: int, layers: int, state_size: int):
        super().__init__()
        self.counterparts = [max(0, layer + source_layers - layers) for layer in range(layers)]
        self.state_size = state_size
        self.projections = nn.ModuleList(nn.Linear(source_dim, state_size * hidden_dim) for _ in range(layers))

    def forward(self, finals: Tensor) -> State:
        """From final states ``[batch, source_layers, source_dim]`` to tensors ``[layers, batch, hidden_dim]``."""
        projected = [project(finals[:, layer]) for project, layer in zip(self.projections, self.counterparts)]
        hidden, *cells = torch.stack(projected).chunk(self.state_size, -1)
        return (torch.tanh(hidden), *cells)


class BackwardStart(BridgedStart):
    """``s₀ = tanh(W h₁)`` of the backward encoder's state at the first word (Bahdanau et al. 2015, appendix A.2.2)."""

    def __init__(self, source_dim: int, hidden_dim: int, source_layers: int, layers: int, state_size: int):
        super().__init__(source_dim // 2, hidden_dim, source_layers, layers, state_size)

    def forward(self, finals: Tensor) -> State:
        return super().forward(finals.chunk(2, -1)[1])


STARTS = {"bridge": BridgedStart, "zero": ZeroStart, "backward": BackwardStart}
