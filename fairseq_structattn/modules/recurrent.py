"""Recurrent networks over padded batches, without packing.

Packing needs the lengths on the host, which stalls a GPU, and prevents the fast kernels of the CPU. It is not needed: a
forward network reads the padding on the right only after the end of a sentence, and so does a backward network if each
sentence is reversed within its own length.
"""

from functools import partial
from typing import List, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_structattn.modules.cells import STEPS, LayerState, Step
from fairseq_structattn.modules.lstm import LSTM

CELLS = {"lstm": LSTM, "gru": nn.GRU}

# One tensor [layers, batch, hidden] for a GRU, hidden states and cells for an LSTM.
State = Tuple[Tensor, ...]


def reverse_by_length(states: Tensor, lengths: Tensor) -> Tensor:
    """Reverses each sentence within its own length; padding stays where it is.

    Args:
        states: ``[src_len, batch, dim]``, right-padded
        lengths: ``[batch]``
    """
    length, batch = states.shape[:2]
    position = torch.arange(length, device=states.device).unsqueeze(1)
    mirrored = lengths.unsqueeze(0) - 1 - position
    row = torch.where(mirrored >= 0, mirrored, position) * batch + torch.arange(batch, device=states.device)
    # Copying whole rows is many times faster than gathering element by element.
    return states.flatten(0, 1).index_select(0, row.flatten()).view_as(states)


class SentenceRNN(nn.Module):
    """Stacked LSTM or GRU over whole sentences, in one direction or in both.

    Args:
        cell: ``"lstm"`` or ``"gru"``
        input_dim: size of an input
        hidden_dim: units per layer and direction
        layers: number of layers; with 0 the states are the inputs, without information on their order
        bidirectional: each layer reads the sentence in both directions
        dropout: probability, applied between layers

    Attributes:
        final_dim: `hidden_dim`, or twice that if `bidirectional`
        output_dim: `final_dim`, or `input_dim` without layers
    """

    def __init__(self, cell: str, input_dim: int, hidden_dim: int, layers: int, bidirectional: bool, dropout: float):
        super().__init__()
        self.final_dim = hidden_dim * (2 if bidirectional else 1)
        self.output_dim = self.final_dim if layers else input_dim
        input_dims = [input_dim, *[self.final_dim] * (layers - 1)][:layers]
        self.forward_layers = nn.ModuleList(CELLS[cell](dim, hidden_dim) for dim in input_dims)
        self.backward_layers = nn.ModuleList(CELLS[cell](dim, hidden_dim) for dim in input_dims if bidirectional)
        self.dropout = dropout

    def forward(self, inputs: Tensor, lengths: Tensor) -> Tuple[Tensor, Tensor]:
        """Reads a batch of sentences.

        Args:
            inputs: ``[src_len, batch, input_dim]``, right-padded
            lengths: ``[batch]``

        Returns:
            states of the top layer ``[src_len, batch, output_dim]``, 0 on padding, and the final states of all layers
            ``[batch, layers, final_dim]``: the forward state at the last word and the backward state at the first
        """
        finals = []
        for layer in range(len(self.forward_layers)):
            if layer > 0:
                inputs = F.dropout(inputs, self.dropout, self.training)
            inputs, final = self._layer(layer, inputs, lengths)
            finals.append(final)
        padding = torch.arange(inputs.size(0), device=inputs.device).unsqueeze(1) >= lengths.unsqueeze(0)
        none = inputs.new_zeros(inputs.size(1), 0, self.final_dim)
        return inputs.masked_fill(padding.unsqueeze(-1), 0.0), torch.stack(finals, 1) if finals else none

    def _layer(self, layer: int, inputs: Tensor, lengths: Tensor) -> Tuple[Tensor, Tensor]:
        states, _ = self.forward_layers[layer](inputs)
        last = (lengths - 1).clamp(min=0).view(1, -1, 1).expand(1, -1, states.size(-1))
        final = states.gather(0, last).squeeze(0)
        if not len(self.backward_layers):
            return states, final
        backward_states, _ = self.backward_layers[layer](reverse_by_length(inputs, lengths))
        backward_states = reverse_by_length(backward_states, lengths)
        return torch.cat((states, backward_states), -1), torch.cat((final, backward_states[0]), -1)


class DecoderRNN(nn.Module):
    """Stacked LSTM or GRU that runs over a whole sequence at once or one step at a time, with the same parameters.

    Args:
        cell: ``"lstm"`` or ``"gru"``
        input_dim: size of an input
        hidden_dim: units per layer
        layers: number of layers
        dropout: probability, applied between layers
    """

    def __init__(self, cell: str, input_dim: int, hidden_dim: int, layers: int, dropout: float):
        super().__init__()
        self.rnn: nn.RNNBase = CELLS[cell](input_dim, hidden_dim, layers, dropout=dropout if layers > 1 else 0.0)
        self.state_size = 2 if cell == "lstm" else 1
        self.steps = STEPS[cell]

    def forward(self, inputs: Tensor, state: State) -> Tuple[Tensor, State]:
        """All steps in one call.

        Args:
            inputs: ``[tgt_len, batch, input_dim]``
            state: tensors ``[layers, batch, hidden_dim]``

        Returns:
            states of the top layer ``[tgt_len, batch, hidden_dim]`` and the state after the last step
        """
        state = tuple(part.contiguous() for part in state)
        outputs, final = self.rnn(inputs, state if self.state_size == 2 else state[0])
        return outputs, final if self.state_size == 2 else (final,)

    def for_steps(self, known: Tensor) -> Step:
        """A function for loops in which an input depends on the output before it.

        Args:
            known: the first columns of the inputs of all steps, ``[tgt_len, batch, known_dim]``

        Returns:
            a function to be called once for each step, from the rest of its input ``[batch, input_dim - known_dim]``
            and the state to the next state. A state is a list over layers of tensors ``[batch, hidden_dim]``;
            ``state[-1][0]`` is the hidden state of the top layer
        """
        first, *others = self.rnn.all_weights
        # No inputs of the upper layers are known beforehand.
        layers = [self.steps(first, known), *(self.steps(weights, known[..., :0]) for weights in others)]
        return partial(self._step, layers)

    def _step(self, layers: List, inputs: Tensor, state: List[LayerState]) -> List[LayerState]:
        following: List[LayerState] = []
        for number, layer in enumerate(layers):
            if number > 0:
                inputs = F.dropout(following[-1][0], self.rnn.dropout, self.training)
            following.append(layer(inputs, state[number]))
        return following


def unstack_state(state: State) -> List[LayerState]:
    """From tensors ``[layers, batch, hidden]`` to a list over layers, as used by :meth:`DecoderRNN.for_steps`."""
    return list(zip(*(part.unbind(0) for part in state)))


def stack_state(state: List[LayerState]) -> State:
    """The inverse of :func:`unstack_state`."""
    return tuple(torch.stack(parts) for parts in zip(*state))
