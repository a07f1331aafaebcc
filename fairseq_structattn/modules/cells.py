"""LSTM and GRU layers that run step by step, for decoders in which an input depends on the previous output.

Work that does not depend on earlier steps is done for all steps at once: the known part of the inputs is multiplied
before the first step, and the gradients of the weights are computed after the last
(:mod:`~fairseq_structattn.modules.repeated_product`). All gates of a step take two products, one with the input and one
with the state.
"""

from typing import Callable, Dict, List, Tuple, Union

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_structattn.modules.repeated_product import RepeatedProduct

# One tensor [batch, hidden] for a GRU, hidden state and cell for an LSTM.
LayerState = Tuple[Tensor, ...]


class LSTMSteps:
    """A layer with the weights of :class:`torch.nn.LSTM`.

    Args:
        weights: of the input ``[4 · hidden_dim, input_dim]`` and of the state ``[4 · hidden_dim, hidden_dim]``; biases
        known: number of leading columns of the input that are known beforehand
    """

    def __init__(self, weights: List[Tensor], known: int = 0):
        of_input, of_state, input_bias, state_bias = weights
        self._of_known, self._bias = of_input[:, :known], input_bias + state_bias
        self._of_input, self._of_state = RepeatedProduct(of_input[:, known:].t()), RepeatedProduct(of_state.t())

    def gates(self, known: Tensor) -> Tensor:
        """Terms of the gates from inputs ``[..., known]`` and biases, ``[..., 4 · hidden_dim]``."""
        return F.linear(known, self._of_known, self._bias)

    def __call__(self, gates: Tensor, inputs: Tensor, state: LayerState) -> LayerState:
        """The next state, from :meth:`gates` and the rest of the input."""
        hidden, cell = state
        of_input, of_state = gates + self._of_input(inputs), self._of_state(hidden)
        if of_input.is_cuda:
            # The fused kernel that PyTorch's own layers use.
            return torch._thnn_fused_lstm_cell(of_input, of_state, cell)[:2]  # type: ignore[attr-defined]
        write, keep, content, read = (of_input + of_state).chunk(4, -1)
        cell = torch.sigmoid(keep) * cell + torch.sigmoid(write) * torch.tanh(content)
        return torch.sigmoid(read) * torch.tanh(cell), cell


class GRUSteps:
    """A layer with the weights of :class:`torch.nn.GRU`; see :class:`LSTMSteps`, but with three gates."""

    def __init__(self, weights: List[Tensor], known: int = 0):
        of_input, of_state, self._bias, self._state_bias = weights
        self._of_known = of_input[:, :known]
        self._of_input, self._of_state = RepeatedProduct(of_input[:, known:].t()), RepeatedProduct(of_state.t())

    def gates(self, known: Tensor) -> Tensor:
        """Terms of the gates from inputs ``[..., known]`` and their bias, ``[..., 3 · hidden_dim]``."""
        return F.linear(known, self._of_known, self._bias)

    def __call__(self, gates: Tensor, inputs: Tensor, state: LayerState) -> LayerState:
        """The next state, from :meth:`gates` and the rest of the input."""
        (hidden,) = state
        # The reset gate multiplies the term of the state, so the two terms stay separate.
        of_input, of_state = gates + self._of_input(inputs), self._of_state(hidden) + self._state_bias
        if of_input.is_cuda:
            return torch._thnn_fused_gru_cell(of_input, of_state, hidden)[:1]  # type: ignore[attr-defined]
        reset, update = torch.sigmoid(of_input + of_state).chunk(3, -1)[:2]
        content = torch.tanh(of_input.chunk(3, -1)[2] + reset * of_state.chunk(3, -1)[2])
        return (content + update * (hidden - content),)


STEPS: Dict[str, Callable[..., Union[LSTMSteps, GRUSteps]]] = {"lstm": LSTMSteps, "gru": GRUSteps}

# From the rest of an input [batch, input_dim - known] and the state of each layer to the next state.
Step = Callable[[Tensor, List[LayerState]], List[LayerState]]
