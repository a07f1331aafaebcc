"""Recurrent networks over padded batches: one call for all layers and directions, or one for each, without packing.

One call needs the lengths on the host. On a GPU, where the two directions of a layer then run side by side, that is
worth waiting for once, at the beginning of a batch; a CPU has no fast kernel for sentences of several lengths. What
follows in a batch runs layer by layer, and no length is read: a forward network reads the padding on the right only
after the end of a sentence, and so does a backward network if each sentence is reversed within its own length.
"""

from functools import partial
from typing import Any, Callable, List, Optional, Sequence, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_structattn.modules.cells import STEPS, LayerState, Step
from fairseq_structattn.modules.gru import GRU, gru_layer, is_small
from fairseq_structattn.modules.lstm import LSTM, lacks_kernel
from fairseq_structattn.modules.packing import Packing

CELLS = {"lstm": LSTM, "gru": GRU}

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


def reads_packed(device: torch.device) -> bool:
    """Whether packed sentences are read faster, layers and directions together, than padded ones one by one. CPUs have
    fast kernels for padded sentences only."""
    return device.type == "cuda"


class SentenceRNN(nn.Module):
    """Stacked LSTM or GRU over whole sentences, in one direction or in both.

    Args:
        cell: ``"lstm"`` or ``"gru"``
        input_dim: size of an input
        hidden_dim: units per layer and direction
        layers: number of layers; with 0 the states are the inputs, without information on their order
        bidirectional: each layer reads the sentence in both directions
        dropout: probability, applied between layers
        reads_lengths: a GPU may be waited for, so that all layers and directions run as one call. This is for the first
            network that reads a batch, before which a GPU has little to do (default: False)

    Attributes:
        final_dim: `hidden_dim`, or twice that if `bidirectional`
        output_dim: `final_dim`, or `input_dim` without layers
    """

    def __init__(
        self,
        cell: str,
        input_dim: int,
        hidden_dim: int,
        layers: int,
        bidirectional: bool,
        dropout: float,
        reads_lengths: bool = False,
    ):
        super().__init__()
        self.cell, self.hidden_dim = cell, hidden_dim
        self.final_dim = hidden_dim * (2 if bidirectional else 1)
        self.output_dim = self.final_dim if layers else input_dim
        input_dims = [input_dim, *[self.final_dim] * (layers - 1)][:layers]
        self.forward_layers = nn.ModuleList(CELLS[cell](dim, hidden_dim) for dim in input_dims)
        self.backward_layers = nn.ModuleList(CELLS[cell](dim, hidden_dim) for dim in input_dims if bidirectional)
        self.dropout = dropout
        # A single layer that reads forward is one call in any case.
        self.reads_lengths = reads_lengths and len(self.forward_layers) + len(self.backward_layers) > 1

    def forward(self, inputs: Tensor, lengths: Tensor) -> Tuple[Tensor, Tensor]:
        """Reads a batch of sentences.

        Args:
            inputs: ``[src_len, batch, input_dim]``, right-padded
            lengths: ``[batch]``

        Returns:
            states of the top layer ``[src_len, batch, output_dim]``, 0 on padding, and the final states of all layers
            ``[batch, layers, final_dim]``: the forward state at the last word and the backward state at the first
        """
        known = self._read_lengths(inputs, lengths)
        if known is not None and bool((known == inputs.size(0)).all()):
            return self._one_call(inputs, None)
        if known is not None and reads_packed(inputs.device):
            # The padding of a sentence without words counts as a word, as it does layer by layer.
            packing = Packing.of(known.clamp(min=1), inputs.device)
            states, finals = self._one_call(packing.pack(inputs), packing.batch_sizes)
            states, finals = packing.unpack(states, inputs.size(0)), finals.index_select(0, packing.places)
        else:
            states, finals = self._layer_by_layer(inputs, lengths)
        padding = torch.arange(inputs.size(0), device=inputs.device).unsqueeze(1) >= lengths.unsqueeze(0)
        return states.masked_fill(padding.unsqueeze(-1), 0.0), finals

    def _read_lengths(self, inputs: Tensor, lengths: Tensor) -> Optional[Tensor]:
        """The lengths on the host, if one call could use them."""
        # PyTorch's kernel for the CPU is one of LSTMs.
        one_call = inputs.device.type == "cpu" and self.cell == "lstm" and not lacks_kernel()
        return lengths.cpu() if self.reads_lengths and (one_call or reads_packed(inputs.device)) else None

    def _one_call(self, inputs: Tensor, batch_sizes: Optional[Tensor]) -> Tuple[Tensor, Tensor]:
        """States and final states of sentences that are packed, or all of one length if `batch_sizes` is None."""
        layers, bidirectional = len(self.forward_layers), len(self.backward_layers) > 0
        sentences = inputs.size(1) if batch_sizes is None else int(batch_sizes[0])
        zeros = inputs.new_zeros(layers * (1 + bidirectional), sentences, self.hidden_dim)
        start = (zeros, zeros) if self.cell == "lstm" else zeros
        batch = (inputs, start) if batch_sizes is None else (inputs, batch_sizes, start)
        options = (True, layers, self.dropout if layers > 1 else 0.0, self.training, bidirectional)
        run: Callable[..., Tuple[Tensor, ...]] = torch.lstm if self.cell == "lstm" else torch.gru
        states, hidden = run(*batch, self._weights(), *options, *[False] * (batch_sizes is None))[:2]
        return states, hidden.view(layers, -1, *zeros.shape[1:]).permute(2, 0, 1, 3).flatten(2)

    def _weights(self) -> List[Tensor]:
        """All weights, in the order of PyTorch's RNNs: both directions of a layer, then those of the next."""
        both = (self.forward_layers, self.backward_layers) if len(self.backward_layers) else (self.forward_layers,)
        return [weight for layer in zip(*both) for direction in layer for weight in direction.all_weights[0]]

    def _apply(self, fn, *args, **kwargs):
        super()._apply(fn, *args, **kwargs)
        if self.reads_lengths and reads_packed(self._weights()[0].device):
            self._flatten()
        return self

    def _flatten(self) -> None:
        """Moves the weights to one block of memory, which cuDNN would otherwise fill at every call."""
        weights, bidirectional = self._weights(), len(self.backward_layers) > 0
        sizes = weights[0].size(1), self.hidden_dim, len(self.forward_layers)
        block: Any = CELLS[self.cell](*sizes, bidirectional=bidirectional, device="meta")
        block._flat_weights = weights
        block.flatten_parameters()

    def _layer_by_layer(self, inputs: Tensor, lengths: Tensor) -> Tuple[Tensor, Tensor]:
        finals = []
        for layer in range(len(self.forward_layers)):
            if layer > 0:
                inputs = F.dropout(inputs, self.dropout, self.training)
            inputs, final = self._layer(layer, inputs, lengths)
            finals.append(final)
        none = inputs.new_zeros(inputs.size(1), 0, self.final_dim)
        return inputs, torch.stack(finals, 1) if finals else none

    def _layer(self, layer: int, inputs: Tensor, lengths: Tensor) -> Tuple[Tensor, Tensor]:
        directions = [inputs]
        if len(self.backward_layers):
            directions.append(reverse_by_length(inputs, lengths))
        states, *backward_states = self._run_directions(layer, directions)
        last = (lengths - 1).clamp(min=0).view(1, -1, 1).expand(1, -1, states.size(-1))
        final = states.gather(0, last).squeeze(0)
        for reversed_states in backward_states:
            backward = reverse_by_length(reversed_states, lengths)
            states, final = torch.cat((states, backward), -1), torch.cat((final, backward[0]), -1)
        return states, final

    def _run_directions(self, layer: int, inputs: List[Tensor]) -> Sequence[Tensor]:
        modules: Any = [direction[layer] for direction in (self.forward_layers, self.backward_layers) if len(direction)]
        if self.cell == "gru" and is_small(inputs[0], self.hidden_dim):
            return gru_layer(inputs, [module.all_weights[0] for module in modules])
        return [module(part)[0] for module, part in zip(modules, inputs)]


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

    def one_step(self, inputs: Tensor, state: List[LayerState]) -> List[LayerState]:
        """The state after one step, from its whole input ``[batch, input_dim]``; for states see :meth:`for_steps`."""
        following: List[LayerState] = []
        for layer, weights in enumerate(self.rnn.all_weights):
            if layer > 0:
                inputs = F.dropout(inputs, self.rnn.dropout, self.training)
            if self.state_size == 2:
                following.append(torch.lstm_cell(inputs, state[layer], *weights))
            else:
                following.append((torch.gru_cell(inputs, *state[layer], *weights),))
            inputs = following[-1][0]
        return following

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
