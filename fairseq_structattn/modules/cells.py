"""LSTM and GRU layers that run step by step, for decoders in which an input depends on the previous output.

Work that does not depend on earlier steps is done for all steps at once: the known part of the inputs is multiplied
before the first step, and the gradients of the weights are computed after the last
(:mod:`~fairseq_structattn.modules.repeated_product`). All gates of a step take one product with input and state side by
side (LSTM), or two (GRU).
"""

from typing import Callable, Dict, List, Optional, Tuple, Union

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_structattn.modules.repeated_product import RepeatedProduct, in_dtype

# One tensor [batch, hidden] for a GRU, hidden state and cell for an LSTM.
LayerState = Tuple[Tensor, ...]


class LSTMSteps:
    """A layer with the weights of :class:`torch.nn.LSTM`.

    Args:
        weights: of the input ``[4 · hidden_dim, input_dim]`` and of the state ``[4 · hidden_dim, hidden_dim]``; biases
        known: the leading columns of the inputs of all steps, those that are known beforehand, ``[steps, batch,
            known_dim]``
    """

    def __init__(self, weights: List[Tensor], known: Tensor):
        of_input, of_state, input_bias, state_bias = weights
        steps, batch, known_dim = known.shape
        of_known, of_rest = _split(of_input, known_dim)
        gates = _gates_of_known(known, of_known, input_bias + state_bias)
        matrix = torch.cat((of_rest, of_state), 1) if of_rest.size(1) else of_state
        self._gates = RepeatedProduct(matrix.t(), steps, batch, gates)
        self._nothing: Optional[Tensor] = None

    def __call__(self, inputs: Tensor, state: LayerState) -> LayerState:
        """The state after the next step, from the rest of its input and the state before it."""
        hidden, cell = state
        gates = self._gates(torch.cat((inputs, hidden), -1) if inputs.size(-1) else hidden)
        if self._nothing is None and gates.is_cuda:
            self._nothing = torch.zeros_like(gates, requires_grad=False)
        return lstm_cell(gates, self._nothing, cell)


class GRUSteps:
    """A layer with the weights of :class:`torch.nn.GRU`; see :class:`LSTMSteps`, but with three gates."""

    def __init__(self, weights: List[Tensor], known: Tensor):
        of_input, of_state, input_bias, state_bias = weights
        steps, batch, known_dim = known.shape
        of_known, of_rest = _split(of_input, known_dim)
        gates = _gates_of_known(known, of_known, input_bias)
        # The reset gate multiplies the term of the state, so the two terms stay separate.
        self._of_state = RepeatedProduct(of_state.t(), steps, batch, state_bias)
        self._of_input: Optional[RepeatedProduct] = None
        if of_rest.size(1):
            self._of_input = RepeatedProduct(of_rest.t(), steps, batch, gates)
        else:
            self._of_known = iter(gates.expand(steps, batch, -1).unbind(0))

    def __call__(self, inputs: Tensor, state: LayerState) -> LayerState:
        """The state after the next step, from the rest of its input and the state before it."""
        (hidden,) = state
        of_input = next(self._of_known) if self._of_input is None else self._of_input(inputs)
        return (gru_cell(of_input, self._of_state(hidden), hidden),)


def lstm_cell(gates: Tensor, nothing: Optional[Tensor], cell: Tensor) -> LayerState:
    """Hidden state and cell ``[batch, hidden_dim]`` after a step.

    Args:
        gates: their sum of all terms, ``[batch, 4 · hidden_dim]``
        nothing: zeros of the same shape, which the kernel of a GPU reads
        cell: the cell before the step
    """
    if gates.is_cuda:
        # The fused kernel that PyTorch's own layers use; it adds two terms.
        return torch._thnn_fused_lstm_cell(gates, nothing, cell)[:2]  # type: ignore[attr-defined]
    write, keep, content, read = gates.chunk(4, -1)
    cell = torch.addcmul(torch.sigmoid(keep) * cell, torch.sigmoid(write), torch.tanh(content))
    return torch.sigmoid(read) * torch.tanh(cell), cell


def gru_cell(of_input: Tensor, of_state: Tensor, hidden: Tensor) -> Tensor:
    """The hidden state ``[..., hidden_dim]`` after a step, in its dtype.

    Args:
        of_input, of_state: terms of the gates from the input and from the state, ``[..., 3 · hidden_dim]``
        hidden: the state before the step
    """
    of_input, of_state = in_dtype(of_input, hidden.dtype), in_dtype(of_state, hidden.dtype)
    if of_input.is_cuda:
        parts = (part.flatten(0, -2) for part in (of_input, of_state, hidden))
        return torch._thnn_fused_gru_cell(*parts)[0].view_as(hidden)  # type: ignore[attr-defined]
    width = hidden.size(-1)
    gates_of_input, content_of_input = of_input.split((2 * width, width), -1)
    gates_of_state, content_of_state = of_state.split((2 * width, width), -1)
    reset, update = torch.sigmoid(gates_of_input + gates_of_state).chunk(2, -1)
    content = torch.tanh(torch.addcmul(content_of_input, reset, content_of_state))
    return torch.lerp(content, hidden, update)


def _split(of_input: Tensor, known_dim: int) -> Tuple[Tensor, Tensor]:
    """The weights of the known part of the inputs and of the rest. Two slices would have two gradients of full size."""
    of_known, of_rest = of_input.split((known_dim, of_input.size(1) - known_dim), 1)
    return of_known, of_rest


def _gates_of_known(known: Tensor, of_known: Tensor, bias: Tensor) -> Tensor:
    """The terms of the gates that are known beforehand, ``[steps, batch, gates]`` or the bias alone."""
    return F.linear(known, of_known, bias) if known.size(-1) else bias


STEPS: Dict[str, Callable[..., Union[LSTMSteps, GRUSteps]]] = {"lstm": LSTMSteps, "gru": GRUSteps}

# From the rest of the next input [batch, input_dim - known_dim] and the state of each layer to the next state.
Step = Callable[[Tensor, List[LayerState]], List[LayerState]]
