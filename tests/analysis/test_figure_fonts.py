"""analysis/figure_fonts.py: every script has a font, is joined and is set in its direction."""

import sys

import pytest
from made_records import ARABIC

pytest.importorskip("matplotlib")
from fairseq_structattn.analysis import figure_fonts as fonts


def test_missing_glyphs_are_warned_about_once_with_a_package():
    with pytest.warns(UserWarning, match="no installed font.*fonts-noto-cjk") as caught:
        fonts.font_families(["\ue123\ue124", "a"])  # private use: no font has them
    assert len(caught) == 1


def test_settings_of_matplotlib_are_left_alone():
    from matplotlib import rcParams

    before = list(rcParams["font.family"])
    assert fonts.font_families(["abc"]) == before
    with pytest.warns(UserWarning):
        assert fonts.font_families(["\ue123"]) == before
    assert list(rcParams["font.family"]) == before


def test_fonts_are_added_until_all_scripts_are_covered(monkeypatch):
    """One font for two scripts rather than one for either, and another for the third."""
    from matplotlib import font_manager

    has = {"default": "a", "both.ttf": "漢字한", "hangul.ttf": "한", "ideographs.ttf": "漢字", "thai.ttf": "ก"}

    def candidates(paths, characters):
        return [fonts.Candidate(path, set(has[path]) & characters, True, True) for path in paths]

    monkeypatch.setattr(fonts, "candidates", candidates)
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: sorted(has))
    monkeypatch.setattr(font_manager.fontManager, "addfont", lambda path: None)
    monkeypatch.setattr(font_manager, "FontProperties", FontNamedAsItsFile)
    monkeypatch.setattr(font_manager, "findfont", lambda properties: "default")
    assert fonts.font_families(["漢字", "한", "ก", "a"])[1:] == ["both.ttf", "thai.ttf"]


class FontNamedAsItsFile:
    def __init__(self, fname=None, family=None):
        self.name = fname

    def get_name(self):
        return self.name


def test_candidates_are_fonts_with_some_of_the_characters(tmp_path):
    from matplotlib import font_manager

    (tmp_path / "broken.ttf").write_bytes(b"no font")
    own = font_manager.findfont("DejaVu Sans")
    found = list(fonts.candidates([str(tmp_path / "broken.ttf"), own], {"a", "\ue123"}))
    assert found == [fonts.Candidate(own, {"a"}, upright=True, sans_serif=True)]
    assert not list(fonts.candidates([own], {"\ue123"}))


def test_a_font_like_that_of_the_rest_is_preferred():
    plain, bold, serif = fonts.Candidate("", {"誰"}, True, True), ("", {"誰"}, False, True), ("", {"誰"}, True, False)
    others = [fonts.Candidate(*other) for other in (bold, serif)]
    assert all(fonts._merit(plain, {"誰"}) > fonts._merit(other, {"誰"}) for other in others)


def test_right_to_left_is_told_by_letters():
    assert [fonts.is_right_to_left(text) for text in (ARABIC[0], "שלום", "誰", "</s>", "42")] == [True] * 2 + [
        False
    ] * 3


def test_latin_text_is_never_changed():
    assert fonts.displayed("</s>") == "</s>"


def test_older_matplotlib_is_given_joined_letters_in_the_order_of_the_eye(monkeypatch):
    pytest.importorskip("arabic_reshaper")
    pytest.importorskip("bidi")
    from matplotlib import ft2font

    monkeypatch.delattr(ft2font, "__libraqm_version__", raising=False)
    shown = fonts.displayed(ARABIC[0])
    assert shown == "\ufe90\ufeeb\ufeab"  # the last letter first: ب final, ه initial, ذ alone


def test_older_matplotlib_without_help_is_warned_about(monkeypatch):
    from matplotlib import ft2font

    monkeypatch.delattr(ft2font, "__libraqm_version__", raising=False)
    monkeypatch.setitem(sys.modules, "arabic_reshaper", None)
    with pytest.warns(UserWarning, match="matplotlib 3.11.*arabic-reshaper"):
        assert fonts.displayed(ARABIC[0]) == ARABIC[0]


def test_widths_are_those_of_the_glyphs():
    narrow, wide = fonts.text_widths(["iiii", "mmmm"], 9)
    assert 0 < 2 * narrow < wide < 1
