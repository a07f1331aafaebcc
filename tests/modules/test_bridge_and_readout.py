"""Start states and readouts against their formulas."""

import torch

from fairseq_structattn.modules.bridge import BackwardStart, BridgedStart, ZeroStart
from fairseq_structattn.modules.readout import MaxoutReadout, TanhReadout

FINALS = torch.randn(2, 3, 6, generator=torch.Generator().manual_seed(0))


def test_bridge_maps_hidden_states_and_cells():
    start = BridgedStart(6, 4, source_layers=3, layers=3, state_size=2)
    hidden, cells = start(FINALS)
    for layer, project in enumerate(start.projections):
        projected = project(FINALS[:, layer])
        torch.testing.assert_close(hidden[layer], torch.tanh(projected[:, :4]))
        torch.testing.assert_close(cells[layer], projected[:, 4:])


def test_bridge_lets_top_layers_face_each_other():
    assert BridgedStart(6, 4, source_layers=3, layers=1, state_size=1).counterparts == [2]
    assert BridgedStart(6, 4, source_layers=1, layers=3, state_size=1).counterparts == [0, 0, 0]
    assert BridgedStart(6, 4, source_layers=2, layers=3, state_size=1).counterparts == [0, 0, 1]


def test_backward_start_reads_the_backward_half():
    start = BackwardStart(6, 4, source_layers=3, layers=1, state_size=1)
    (hidden,) = start(FINALS)
    torch.testing.assert_close(hidden[0], torch.tanh(start.projections[0](FINALS[:, 2, 3:])))


def test_zero_start():
    hidden, cells = ZeroStart(6, 4, source_layers=3, layers=2, state_size=2)(FINALS)
    assert hidden.shape == cells.shape == (2, 2, 4)
    assert not hidden.any() and not cells.any()


def test_tanh_readout():
    readout = TanhReadout(3, 2, 5, 4)
    assert readout.output_dim == 3
    state, context, embedded = torch.randn(7, 3), torch.randn(7, 2), torch.randn(7, 5)
    weight = readout.projection.weight
    expected = torch.tanh(context @ weight[:, :2].t() + state @ weight[:, 2:].t())
    torch.testing.assert_close(readout(state, context, embedded), expected)


def test_maxout_readout_takes_the_larger_of_neighbours():
    readout = MaxoutReadout(3, 2, 5, 4)
    assert readout.output_dim == 4
    state, context, embedded = torch.randn(7, 3), torch.randn(7, 2), torch.randn(7, 5)
    pieces = readout.projection(torch.cat((state, context, embedded), -1))
    expected = torch.maximum(pieces[:, 0::2], pieces[:, 1::2])
    torch.testing.assert_close(readout(state, context, embedded), expected)
