"""analysis/tree_figures.py: which arcs are drawn, where, and how strongly."""

import pytest
from made_records import source_tree

from fairseq_structattn.analysis import tree_figures as trees


def test_arcs_of_the_best_tree_come_last_and_improbable_ones_not_at_all():
    marginals = [[0.9, 0.01, 0.0], [0.0, 0.6, 0.3], [0.1, 0.0, 0.7], [0.0, 0.39, 0.0]]
    arcs = list(trees.arcs_of([0, 1, 2], marginals))
    assert arcs == [
        (0, 2, 0.3, False),
        (1, 0, 0.1, False),
        (2, 1, 0.39, False),
        (None, 0, 0.9, True),
        (0, 1, 0.6, True),
        (1, 2, 0.7, True),
    ]


def test_a_best_tree_alone():
    assert list(trees.arcs_of([2, 0])) == [(1, 0, 1.0, True), (None, 1, 1.0, True)]


def test_longer_arcs_are_higher_but_not_in_proportion():
    near, far = (trees.arc_height(trees.Arc(0, word, 1.0, True)) for word in (1, 100))
    assert near < far < 25 * near
    assert trees.tree_height([0] + [1] * 99) > trees.tree_height([0, 1]) > trees.ROOM


def test_lines_go_from_the_head_to_the_word():
    pytest.importorskip("matplotlib")
    right, left = (trees.arc_path(trees.Arc(*ends, 1.0, True), 9.0).vertices.tolist() for ends in ((2, 5), (5, 2)))
    assert [right[0], right[-1]] == [[2 + trees.SIDESTEP, 0], [5, 0]]
    assert [left[0], left[-1]] == [[5 - trees.SIDESTEP, 0], [2, 0]]
    assert trees.arc_path(trees.Arc(None, 3, 1.0, True), 9.0).vertices.tolist() == [[3, 9], [3, 0]]


def test_a_curve_rises_to_the_height_of_its_arc():
    pytest.importorskip("matplotlib")
    arc = trees.Arc(0, 7, 1.0, True)
    assert trees.arc_path(arc, 9.0).get_extents().y1 == pytest.approx(trees.arc_height(arc))


@pytest.fixture
def arrows():
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    axes = Figure().add_subplot()
    tree = source_tree([2, 0, 2], others=0.3)
    trees.draw_tree(axes, 4, tree.heads, tree.marginals)
    assert axes.get_xlim() == (-0.5, 3.5)
    return axes.patches


def test_opacity_is_the_probability_and_the_best_tree_has_its_colour(arrows):
    from matplotlib.colors import to_rgba

    others, best = arrows[:-3], arrows[-3:]
    assert {round(arrow.get_alpha(), 6) for arrow in others} == {0.15}
    assert [arrow.get_alpha() for arrow in best] == pytest.approx([0.7] * 3)
    assert {arrow.get_edgecolor()[:3] for arrow in best} == {to_rgba(trees.BEST_COLOUR)[:3]}
    assert {arrow.get_edgecolor()[:3] for arrow in others} == {to_rgba(trees.COLOUR)[:3]}


def test_an_improbable_best_tree_can_be_seen():
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    axes = Figure().add_subplot()
    trees.draw_tree(axes, 1, [0], [[0.001], [0.0]])
    assert [arrow.get_alpha() for arrow in axes.patches] == [trees.FAINTEST_BEST]
