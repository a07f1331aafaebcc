"""What segmentations have beyond the contract: labels and selection of positions, and their relation to chains."""

import itertools
import math

import pytest
import torch
from contract import close, segmentations

from fairseq_structattn.distributions import LinearChain, SemiMarkov

LENGTHS = torch.tensor([4, 0, 2])


def draw(*shape):
    return torch.randn(shape, dtype=torch.double)


def weights(segments, item, length):
    """Weights of all segmentations of an item, as lists of segments (first position, length - 1, label)."""
    longest, labels = segments.max_segment_length, segments.num_labels
    found = {}
    for structure in segmentations(longest, labels)(length):
        of_segments = sum(segments.segment_scores[item][one].item() for one in structure.ones)
        of_edges = sum(segments.pairwise[a, b].item() for _, a, b in structure.edges)
        found[tuple(structure.ones)] = math.exp(of_segments + of_edges)
    return found


def labels_of(structure):
    return [label for _, more, label in structure for _ in range(more + 1)]


def test_segments_of_one_position_are_the_states_of_a_chain():
    unary, pairwise = draw(3, 4, 3), draw(3, 3)
    segments = SemiMarkov(unary.unsqueeze(-2), pairwise, LENGTHS)
    chain = LinearChain(unary, pairwise, LENGTHS, num_states=3)
    for name in ("log_partition", "edge_marginals", "support_size"):
        close(getattr(segments, name), getattr(chain, name), 1e-12)
    close(segments.marginals.squeeze(-2), chain.marginals, 1e-12)
    close(segments.label_marginals, chain.marginals, 1e-12)
    close(segments.kl(SemiMarkov(unary.unsqueeze(-2) * 2, pairwise, LENGTHS)),
          chain.kl(LinearChain(unary * 2, pairwise, LENGTHS, num_states=3)), 1e-12)  # fmt: skip


def test_probabilities_of_labels_are_sums_over_segmentations():
    segments = SemiMarkov(draw(3, 4, 3, 2), draw(2, 2), LENGTHS)
    for item, length in enumerate(LENGTHS.tolist()):
        each = weights(segments, item, length)
        total = sum(each.values())
        close(segments.log_partition[item], math.log(total), 1e-12)
        expected = torch.zeros(4, 2)
        for structure, weight in each.items():
            for position, label in enumerate(labels_of(structure)):
                expected[position, label] += weight / total
        close(segments.label_marginals[item], expected, 1e-6)
        close(segments.position_marginals[item], expected[:, 1], 1e-6)
        for labels in itertools.product((0, 1, -1), repeat=length):
            agree = sum(
                weight
                for structure, weight in each.items()
                if all(known in (-1, label) for known, label in zip(labels, labels_of(structure)))
            )
            given = torch.tensor(list(labels) + [7] * (4 - length)).expand(3, 4)
            close(segments.log_prob_of_labels(given)[item].exp(), agree / total, 1e-9)
        marks = torch.tensor([1.0, 0, 1, 1])
        alone = sum(w for structure, w in each.items() if labels_of(structure) == marks[:length].long().tolist())
        expected = math.log(alone / total) if length else 0
        close(segments.alignment_log_prob(marks.expand(3, 4))[item], expected, 1e-9)
    assert segments.log_prob_of_labels(torch.full((3, 4), 2)).tolist()[::2] == [-math.inf] * 2


def test_scores_of_positions_add_up_and_lengths_have_scores_of_their_own():
    unary, of_lengths, pairwise = draw(2, 5, 2), draw(3, 2), draw(2, 2)
    segments = SemiMarkov.from_unary(unary, of_lengths, pairwise)
    assert segments.segment_scores.shape == (2, 5, 3, 2)
    for first, more, label in ((0, 0, 1), (1, 2, 0), (3, 1, 1)):
        expected = unary[:, first : first + more + 1, label].sum(-1) + of_lengths[more, label]
        close(segments.segment_scores[:, first, more, label], expected, 1e-12)
    scores = draw(2, 5)
    of_attention = SemiMarkov.from_scores(scores, None, of_lengths, pairwise)
    both = torch.stack((torch.zeros_like(scores), scores), -1)
    assert torch.equal(of_attention.segment_scores, SemiMarkov.from_unary(both, of_lengths, pairwise).segment_scores)


def test_masked_positions_are_not_selected_and_padding_may_hold_anything():
    scores = torch.tensor([[1.0, -1e9, 2.0, math.nan], [-math.inf, 1.0, -1e9, 0.0]], requires_grad=True)
    tables = {name: draw(*shape) for name, shape in SemiMarkov.parameter_shapes(max_segment_length=3).items()}
    segments = SemiMarkov.from_scores(scores, torch.tensor([3, 4]), **tables)
    selected = segments.position_marginals
    assert selected[0, 1] == selected[0, 3] == selected[1, 0] == selected[1, 2] == 0 and (selected[0, [0, 2]] > 0).all()
    (gradient,) = torch.autograd.grad(selected.square().sum(), scores)
    assert gradient.isfinite().all() and gradient[0, 3] == 0 and gradient[0, 0] != 0


def test_heads_have_tables_of_their_own():
    scores, lengths = draw(2, 3, 4, 5), torch.tensor([5, 3]).view(2, 1, 1)
    tables = {"length_scores": draw(3, 2, 2), "pairwise": draw(3, 2, 2)}
    together = SemiMarkov.from_head_scores(scores, lengths, **tables)
    for head in range(3):
        own = {name: table[head] for name, table in tables.items()}
        alone = SemiMarkov.from_scores(scores[:, head], lengths[:, 0], **own)
        close(together.position_marginals[:, head], alone.position_marginals, 1e-12)


def test_structures_select_positions_and_are_written_as_integers():
    segments = SemiMarkov(torch.zeros(5, 2, 2), torch.zeros(2, 2), validate_args=True)
    structure = torch.zeros(5, 2, 2)
    structure[0, 1, 1] = structure[2, 0, 0] = structure[3, 1, 1] = 1
    assert segments.as_integers(structure).tolist() == [3, 1, 2, 3, 1]
    assert segments.selected_positions(structure).tolist() == [1, 1, 0, 1, 1]
    assert torch.equal(segments.as_indicators(torch.tensor([3, 1, 2, 3, 1])), structure)
    # A segment of three positions, one that goes on with another label, and none at the beginning.
    for wrong in ([3, 1, 1, 3, 1], [3, 0, 2, 3, 1], [1, 1, 2, 3, 1]):
        indicators = segments.as_indicators(torch.tensor(wrong))
        assert segments.log_prob_of_labels(torch.tensor(wrong) % 2).isfinite()
        with pytest.raises(ValueError, match="none of the segmentations of 5 positions into segments of at most 2"):
            segments.log_prob(indicators)


TABLE = torch.zeros(2, 2)


@pytest.mark.parametrize(
    "error, message, build",
    [
        (TypeError, "segment_scores is a list", lambda: SemiMarkov([0.0], TABLE)),
        (ValueError, r"segment_scores has shape \(4, 2\); it must be", lambda: SemiMarkov(torch.zeros(4, 2), TABLE)),
        (ValueError, r"L and K of 1 or more", lambda: SemiMarkov(torch.zeros(4, 0, 2), TABLE)),
        (ValueError, r"pairwise has shape \(2, 2\); it must be \(3, 3\)", lambda: SemiMarkov(draw(4, 2, 3), TABLE)),
        (ValueError, r"lengths has values from 5", lambda: SemiMarkov(draw(4, 2, 2), TABLE, torch.tensor(5))),
        (TypeError, "length_scores is a list", lambda: SemiMarkov.from_unary(draw(4, 2), [0.0], TABLE)),
        (ValueError, r"unary has shape \(4, 3\) and length_scores \(5, 2\)",
         lambda: SemiMarkov.from_unary(draw(4, 3), draw(5, 2), TABLE)),
        (ValueError, r"labels has shape \(3,\)",
         lambda: SemiMarkov(draw(4, 2, 2), TABLE).log_prob_of_labels(torch.zeros(3).long())),
    ],
)  # fmt: skip
def test_errors_name_what_is_wrong(error, message, build):
    with pytest.raises(error, match=message):
        build()


def test_equal_scores_count_segmentations():
    # Of equal scores, log Z is the logarithm of the number of segmentations.
    segments = SemiMarkov(torch.zeros(3, 40, 7, 2), torch.zeros(2, 2), torch.tensor([40, 0, 13]))
    close(segments.log_partition, segments.support_size.log(), 1e-6)
    close(segments.entropy(), segments.support_size.log(), 1e-6)
