"""Tokens of any language in matplotlib: fonts that have their glyphs, joined letters, right-to-left script, widths."""

import unicodedata
import warnings
from functools import lru_cache
from typing import Iterable, Iterator, List, NamedTuple, Sequence, Set

POINTS_PER_INCH = 72
WARNING_CHARACTERS = 10
SANS_SERIF = ("sans", "gothic")
UPRIGHT = ("regular", "book", "roman")
BYTE_ORDER_MARK = "\ufeff"


class Candidate(NamedTuple):
    """An installed font and the characters it has of those that were asked for."""

    path: str
    characters: Set[str]
    upright: bool
    sans_serif: bool


def font_families(tokens: Iterable[str]) -> List[str]:
    """matplotlib's font families, then as many installed fonts as the glyphs that those lack call for.

    What none of them has is warned about, with the package to install; matplotlib draws an empty box for it.
    """
    from matplotlib import font_manager, rcParams

    tokens = [visible(token) for token in tokens]
    families = list(rcParams["font.family"])
    default = font_manager.findfont(font_manager.FontProperties(family=families))
    missing = {character for token in tokens for character in token}
    missing -= {character for font in candidates([default], missing) for character in font.characters}
    installed = list(candidates(sorted(font_manager.findSystemFonts()), missing)) if missing else []
    while installed and missing:
        best = max(installed, key=lambda font: _merit(font, missing))
        if not best.characters & missing:
            break
        font_manager.fontManager.addfont(best.path)
        families.append(font_manager.FontProperties(fname=best.path).get_name())
        missing -= best.characters
    if missing:
        _warn_of_missing(missing)
    return families


def candidates(font_paths: Iterable[str], characters: Set[str]) -> Iterator[Candidate]:
    """The fonts that have any of the characters.

    Left out are files that are no fonts, and fonts of bitmaps (colour emoji), which matplotlib cannot draw.
    """
    from matplotlib.ft2font import FT2Font

    for path in font_paths:
        try:
            font = FT2Font(path)
        except (OSError, RuntimeError):
            continue
        found = {character for character in characters if font.get_char_index(ord(character))}
        if found and font.scalable:
            sans_serif = any(word in font.family_name.lower() for word in SANS_SERIF)
            yield Candidate(path, found, font.style_name.lower() in UPRIGHT, sans_serif)


def _merit(font: Candidate, missing: Set[str]) -> tuple:
    """Of two fonts with the same characters, the one that resembles matplotlib's own: upright, without serifs."""
    return len(font.characters & missing), font.upright, font.sans_serif


def _warn_of_missing(characters: Set[str]) -> None:
    example = "".join(sorted(characters)[:WARNING_CHARACTERS])
    names = sorted({unicodedata.name(character, "unnamed").split()[0].lower() for character in characters})
    warnings.warn(
        f"no installed font can show {example} ({', '.join(names)}), empty boxes stand for them; install a font that "
        "has them (on Debian: fonts-noto-cjk for Chinese, Japanese and Korean, fonts-noto-core for other scripts)",
        stacklevel=3,
    )


def visible(text: str) -> str:
    """The text with escapes such as \\x07 for control characters, byte order marks, and what is no character at all.

    Nothing would be seen of them, SVG cannot hold them, and a tab or line break would move what follows.
    """
    return "".join(map(_visible, text))


def _visible(character: str) -> str:
    number = ord(character)
    unseen = unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") or character == BYTE_ORDER_MARK
    if unseen or 0xFDD0 <= number <= 0xFDEF or number & 0xFFFE == 0xFFFE:
        return character.encode("unicode_escape", "surrogatepass").decode("ascii")
    return character


def displayed(text: str) -> str:
    """The text as matplotlib has to be given it: all of it :func:`visible`, right-to-left scripts to be read rightly,
    Arabic letters joined.

    matplotlib shapes text itself from 3.11 on; for older ones arabic-reshaper and python-bidi do it.
    """
    from matplotlib import ft2font

    text = visible(text)
    if hasattr(ft2font, "__libraqm_version__") or not is_right_to_left(text):
        return text
    try:
        from arabic_reshaper import reshape
        from bidi.algorithm import get_display
    except ImportError:
        warnings.warn(
            "this matplotlib does not shape right-to-left script: install matplotlib 3.11 or newer, or arabic-reshaper "
            "and python-bidi (pip install -e '.[plot]' does what fits your Python)",
            stacklevel=2,
        )
        return text
    return get_display(reshape(text))


def is_right_to_left(text: str) -> bool:
    """Whether it has letters of a script such as Arabic or Hebrew."""
    return any(unicodedata.bidirectional(character) in ("R", "AL") for character in text)


def text_widths(texts: Sequence[str], font_size: float) -> List[float]:
    """Widths of single lines in inches, in the font families of matplotlib's settings at that moment."""
    from matplotlib.font_manager import FontProperties

    renderer = _renderer()
    font = FontProperties(size=font_size)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # font_families has said so, once for all of them
        points = [renderer.get_text_width_height_descent(displayed(text), font, ismath=False)[0] for text in texts]
    return [width / POINTS_PER_INCH for width in points]


@lru_cache(maxsize=None)
def _renderer():
    """What measures text, with one dot to the point."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    return FigureCanvasAgg(Figure(dpi=POINTS_PER_INCH)).get_renderer()
