"""analysis/attention_figures.py: what is in the pictures of made-up records."""

import math
import struct

import pytest
from made_records import ARABIC, JAPANESE, record, source_tree, words

pytest.importorskip("matplotlib")
from fairseq_structattn.analysis import attention_figures as figures


def heatmaps(figure):
    return [axes for axes in figure.axes if axes.get_images()]


def patches(axes, kind):
    from matplotlib import patches

    return [patch for patch in axes.patches if isinstance(patch, getattr(patches, kind))]


@pytest.fixture
def figure():
    return figures.draw_figure(
        [
            record(0, words(" ".join("siebenundvierzig")), words("forty seven")),
            record(7, words("e i n s"), words("one")),
        ]
    )


def test_every_token_is_labelled_and_has_the_same_size(figure):
    panels = heatmaps(figure)
    labels = [[label.get_text() for label in axes.get_xticklabels()] for axes in panels]
    assert labels == [list("siebenundvierzig") + ["</s>"], list("eins") + ["</s>"]]
    assert [label.get_text() for label in panels[0].get_yticklabels()] == ["forty", "seven", "</s>"]
    width, height = figure.get_size_inches()
    for axes, (rows, columns) in zip(panels, [(3, 17), (2, 5)]):
        box = axes.get_position()
        assert box.width * width == pytest.approx(columns * figures.CELL)
        assert box.height * height == pytest.approx(rows * figures.CELL)


def test_words_are_turned_and_characters_are_not(figure):
    labels = heatmaps(figure)[0].get_xticklabels()
    assert [label.get_rotation() for label in labels] == [0] * 16 + [90]


def test_a_weight_has_the_same_colour_in_every_sentence_also_above_one():
    from matplotlib import colormaps

    chain = record(0, ["a", "b"], ["x"], [[2.0, 0.5]])
    softmax = record(1, ["a", "b"], ["x"], [[0.5, math.nan]])
    one, other = (axes.get_images()[0].get_array() for axes in heatmaps(figures.draw_figure([chain, softmax])))
    assert one[0, 1].tolist() == other[0, 0].tolist() == list(colormaps["Blues"](0.25, bytes=True))
    assert other[0, 1, 0] > 150 > other[0, 1, 2]  # no number: red
    assert figures.largest_weight([softmax, chain]) == 2.0


def test_all_weights_zero():
    figures.draw_figure([record(0, ["a"], ["x"], [[0.0]])])


def test_segments_are_outlined_in_the_row_of_their_token():
    one = record(0, list("abcdef"), ["x", "y"], segments=[[(0, 2), (4, 5)], []])
    (axes,) = heatmaps(figures.draw_figure([one]))
    boxes = [patch.get_bbox() for patch in patches(axes, "Rectangle")]
    assert [(math.floor(box.x0 + 0.5), math.ceil(box.x1 - 0.5) + 1) for box in boxes] == [(0, 2), (4, 5)]
    assert all(-0.5 < box.y0 < box.y1 < 0.5 for box in boxes)
    grid = max(line.get_zorder() for line in axes.get_xgridlines() + axes.get_ygridlines())
    assert all(patch.get_zorder() > grid for patch in patches(axes, "Rectangle"))


@pytest.mark.parametrize(
    "parts, text",
    [
        ({"segments": [[(0, 2)]]}, "outlined: the most likely selection of the chain"),
        ({"tree": source_tree([0])}, "orange: the most likely tree; an arc is as opaque as it is probable"),
        ({}, None),
    ],
)
def test_a_legend_says_what_is_orange(parts, text):
    figure = figures.draw_figure([record(0, ["a", "</s>"], ["x"], **parts)])
    legends = [written for axes in figure.axes for written in axes.texts if "most likely" in written.get_text()]
    assert [legend.get_text() for legend in legends] == ([text] if text else [])
    assert inside(figure)


def test_a_source_tree_stands_over_its_columns():
    one = record(0, words("the boy went"), words("he"), tree=source_tree([2, 3, 0]))
    figure = figures.draw_figure([one])
    tree, heatmap = [axes for axes in figure.axes if patches(axes, "FancyArrowPatch") or axes.get_images()]
    assert tree.get_xlim() == heatmap.get_xlim() == (-0.5, 3.5)
    above, below = tree.get_position(), heatmap.get_position()
    assert (above.x0, above.x1) == (below.x0, below.x1) and above.y0 > below.y1
    assert len(patches(tree, "FancyArrowPatch")) == 3


def test_a_target_tree_stands_beside_its_rows():
    trees = {"tree": source_tree([2, 3, 0]), "target_tree": source_tree([0, 1, 1, 3], others=0.3)}
    one = record(5, words("the boy went"), words("he went to bed"), label="neutral", predicted="entailment", **trees)
    figure = figures.draw_figure([one])
    above, heatmap, beside = [axes for axes in figure.axes if patches(axes, "FancyArrowPatch") or axes.get_images()]
    assert beside.get_ylim() == heatmap.get_ylim() == (4.5, -0.5) and above.get_ylim()[0] == 0
    places = [axes.get_position() for axes in (heatmap, beside)]
    assert places[1].x0 == pytest.approx(places[0].x1)
    assert (places[1].y0, places[1].y1) == pytest.approx((places[0].y0, places[0].y1))
    assert len(patches(beside, "FancyArrowPatch")) == 16  # each word has three other heads, and the best
    assert figure.texts[0].get_text() == "pair 5: neutral, taken for entailment (probability 0.61)"
    assert inside(figure)


def test_each_target_token_has_the_tree_that_the_decoder_saw():
    one = record(0, words("the boy went"), words("he went"), trees=[[2, 3, 0], [0, 1, 1], [0, 0, 0]])
    figure = figures.draw_figure([one])
    trees = [axes for axes in figure.axes if patches(axes, "FancyArrowPatch")]
    assert [axes.texts[0].get_text() for axes in trees] == ["he", "went", "</s>"]
    bottoms = [axes.get_position().y1 for axes in heatmaps(figure) + trees]
    assert bottoms == sorted(bottoms, reverse=True)


def inside(figure):
    """Whether all that is drawn lies on the page."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    page, drawn = figure.bbox, figure.get_tightbbox(FigureCanvasAgg(figure).get_renderer())
    width, height = figure.get_size_inches()
    return page.x0 <= drawn.x0 and page.y0 <= drawn.y0 and drawn.x1 <= width and drawn.y1 <= height


@pytest.mark.parametrize(
    "one",
    [
        record(123456, ["</s>"], ["</s>"]),
        record(1, words("yes"), words("ja"), forced=True),
        record(2, words("w " * 150), words("a-rather-long-word-for-a-label " * 3), rank=4),
        record(3, words("antidisestablishmentarianism " * 2), words("x"), tree=source_tree([0, 0], others=0.5)),
        record(4, JAPANESE, ARABIC),
        record(5, ARABIC, JAPANESE),
        record(6, ["$x$", "$", "$\\frac{$", "_a^", "</s>"], ["$_$", "%", "</s>"]),
    ],
    ids=["no words", "one word", "150 tokens", "long words", "Japanese", "Arabic", "mathematics"],
)
@pytest.mark.filterwarnings("ignore:no installed font")
def test_all_of_it_is_on_the_page(one):
    assert inside(figures.draw_figure([one]))


def test_titles_tell_references_and_hypotheses_apart():
    titles = [figures.title(record(3, ["a"], ["x"], **kind)) for kind in ({}, {"rank": 2}, {"forced": True})]
    assert titles == [
        "sentence 3, score -0.500",
        "sentence 3, hypothesis 3, score -0.500",
        "sentence 3, reference, score -0.500",
    ]


@pytest.mark.parametrize("score, shown", [(-0.0001, "0.000"), (-0.0, "0.000"), (-0.0006, "-0.001"), (0.25, "0.250")])
def test_no_score_of_zero_has_a_sign(score, shown):
    assert figures.title(record(3, ["a"], ["x"], score=score)) == f"sentence 3, score {shown}"


def test_too_many_sentences_are_refused_with_a_way_out():
    with pytest.raises(figures.FigureError, match="300 sentences.*--ids.*html"):
        figures.draw_figure([record(i, ["a", "b"], ["x"] * 3) for i in range(300)])
    with pytest.raises(figures.FigureError, match="no sentence"):
        figures.draw_figure([])


def png_size(path):
    return struct.unpack(">II", path.read_bytes()[16:24])


def test_the_picture_is_written_whole(figure, tmp_path):
    path = tmp_path / "new" / "attention.png"
    figures.save_figure(figure, str(path))
    width, height = png_size(path)
    assert 500 < width < 3000 and 200 < height < 2000
    assert [entry.name for entry in path.parent.iterdir()] == ["attention.png"]


@pytest.mark.parametrize("kind, start", [("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_vector_pictures(figure, tmp_path, kind, start):
    figures.save_figure(figure, str(tmp_path / f"attention.{kind}"))
    assert (tmp_path / f"attention.{kind}").read_bytes().startswith(start)


def test_unknown_kind_of_picture_is_refused(figure, tmp_path):
    with pytest.raises(figures.InputError, match="attention.doc.*png"):
        figures.save_figure(figure, str(tmp_path / "attention.doc"))
    assert not list(tmp_path.iterdir())
