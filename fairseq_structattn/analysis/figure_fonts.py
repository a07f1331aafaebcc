"""Tokens of any language in matplotlib: fonts with their glyphs, joined letters, right-to-left scripts, text widths."""

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
    """An installed font, and the requested characters that it has."""

    path: str
    characters: Set[str]
    upright: bool
    sans_serif: bool


def font_families(tokens: Iterable[str]) -> List[str]:
    """matplotlib's font families, followed by installed fonts for the glyphs that these lack.

    Characters that no font has cause a warning, which names the package to install; matplotlib draws empty boxes.
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

    Files that are no fonts are left out, and so are bitmap fonts (colour emoji), which matplotlib cannot draw.
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
    """Sort key: fonts with more of the missing characters, then fonts like matplotlib's: upright, without serifs."""
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
    """The text with escapes such as \\x07 for control characters, byte order marks, and code points without character.

    These are invisible, SVG cannot contain them, and a tab or line break would move the text that follows.
    """
    return "".join(map(_visible, text))


def _visible(character: str) -> str:
    number = ord(character)
    unseen = unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") or character == BYTE_ORDER_MARK
    if unseen or 0xFDD0 <= number <= 0xFDEF or number & 0xFFFE == 0xFFFE:
        return character.encode("unicode_escape", "surrogatepass").decode("ascii")
    return character


def displayed(text: str) -> str:
    """The text in the form that matplotlib draws correctly: :func:`visible`, right-to-left scripts in visual order,
    Arabic letters joined.

    matplotlib shapes text itself from 3.11 on; arabic-reshaper and python-bidi do so for older versions.
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
    """Whether the text has letters of a right-to-left script such as Arabic or Hebrew."""
    return any(unicodedata.bidirectional(character) in ("R", "AL") for character in text)


def text_widths(texts: Sequence[str], font_size: float) -> List[float]:
    """Widths of single lines in inches, in the font families of matplotlib's current settings."""
    from matplotlib.font_manager import FontProperties

    renderer = _renderer()
    font = FontProperties(size=font_size)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # font_families warns once, for all glyphs
        points = [renderer.get_text_width_height_descent(displayed(text), font, ismath=False)[0] for text in texts]
    return [width / POINTS_PER_INCH for width in points]


@lru_cache(maxsize=None)
def _renderer():
    """A renderer that measures text, at one dot per point."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    return FigureCanvasAgg(Figure(dpi=POINTS_PER_INCH)).get_renderer()
