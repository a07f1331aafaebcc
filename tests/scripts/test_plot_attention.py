"""scripts/analysis/plot_attention.py: the picture, on made-up weights, and what is said when there is none to make."""

import struct

import pytest
import torch
from helpers_scripts import load_script

plot_attention = load_script("analysis/plot_attention.py")


def translation(sentence_id, source, target, weights=None):
    if weights is None:
        weights = torch.rand(len(target), len(source)).softmax(-1)
    return plot_attention.Translation(sentence_id, source, target, weights, -0.1)


def png_size(path):
    return struct.unpack(">II", path.read_bytes()[16:24])


@pytest.fixture
def figure():
    pytest.importorskip("matplotlib")
    return plot_attention.draw_figure(
        [
            translation(0, list("siebenundvierzig") + ["</s>"], ["forty", "seven", "</s>"]),
            translation(7, list("eins") + ["</s>"], ["one", "</s>"]),
        ]
    )


def test_every_token_is_labelled_and_has_the_same_size(figure):
    panels = [axes for axes in figure.axes if axes.get_images()]
    labels = [[label.get_text() for label in axes.get_xticklabels()] for axes in panels]
    assert labels == [list("siebenundvierzig") + ["</s>"], list("eins") + ["</s>"]]
    assert [label.get_text() for label in panels[0].get_yticklabels()] == ["forty", "seven", "</s>"]
    width, height = figure.get_size_inches()
    for axes, (rows, columns) in zip(panels, [(3, 17), (2, 5)]):
        box = axes.get_position()
        assert box.width * width == pytest.approx(columns * plot_attention.CELL)
        assert box.height * height == pytest.approx(rows * plot_attention.CELL)


def test_the_picture_is_written_whole(figure, tmp_path):
    path = tmp_path / "new" / "attention.png"
    plot_attention.save_figure(figure, str(path))
    width, height = png_size(path)
    assert 500 < width < 3000 and 200 < height < 2000
    assert [entry.name for entry in path.parent.iterdir()] == ["attention.png"]


def test_unknown_kind_of_picture_is_refused(figure, tmp_path):
    with pytest.raises(plot_attention.PlotError, match="attention.doc.*png"):
        plot_attention.save_figure(figure, str(tmp_path / "attention.doc"))


def test_colours_mean_the_same_in_every_heatmap(figure):
    assert len({axes.get_images()[0].get_clim() for axes in figure.axes if axes.get_images()}) == 1


class Dictionary:
    def __getitem__(self, index):
        return "<pad>" if index == self.pad() else str(index)

    def pad(self):
        return 1


class Task:
    source_dictionary = target_dictionary = Dictionary()


def test_padding_is_stripped_on_either_side():
    attention = torch.arange(8.0).view(4, 2)
    hypothesis = {"attention": attention, "tokens": torch.tensor([7, 2]), "score": torch.tensor(-0.5)}
    one = plot_attention.as_translation(3, torch.tensor([1, 5, 2, 1]), hypothesis, Task())
    assert one.source == ["5", "2"] and one.target == ["7", "2"]
    assert one.weights.tolist() == [[2.0, 4.0], [3.0, 5.0]]


def test_a_model_without_attention_is_refused():
    hypothesis = {"attention": torch.empty(0), "tokens": torch.tensor([2]), "score": torch.tensor(0.0)}
    with pytest.raises(plot_attention.PlotError, match="returns no attention"):
        plot_attention.as_translation(0, torch.tensor([5, 2]), hypothesis, Task())


def test_missing_glyphs_are_warned_about_once():
    pytest.importorskip("matplotlib")
    with pytest.warns(UserWarning, match="no installed font") as caught:
        plot_attention.choose_fonts(["\ue123\ue124", "a"])  # private use: no font has them
    assert len(caught) == 1


def test_missing_matplotlib_names_the_extra(monkeypatch):
    monkeypatch.setitem(plot_attention.sys.modules, "matplotlib", None)
    with pytest.raises(SystemExit, match="extra `plot`"):
        plot_attention.main(["--path", "a.pt", "--data", "bin", "--output", "a.png"])


def test_missing_checkpoint_is_named(tmp_path):
    pytest.importorskip("fairseq")
    pytest.importorskip("matplotlib")
    with pytest.raises(SystemExit, match="--path .*nowhere.pt: no such checkpoint"):
        plot_attention.main(["--path", str(tmp_path / "nowhere.pt"), "--data", str(tmp_path), "--output", "a.png"])
