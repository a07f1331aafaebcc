"""Files of pictures: the suffix of the name is the image format."""

import os
import warnings
from typing import Optional, Sequence

from fairseq_structattn.analysis.files import InputError, beside

DOTS_PER_INCH = 150
KINDS = ("eps", "jpg", "pdf", "png", "svg", "tif", "webp")


def kind_of(path: str) -> str:
    return os.path.splitext(path)[1].lstrip(".").lower()


def check_picture(option: str, path: Optional[str], others: Sequence[str] = ()) -> None:
    """Refuses a picture that could not be written.

    Args:
        option: the option that names the picture
        path: of the picture; None for no picture
        others: suffixes of other files that the script can write

    Raises:
        InputError: the suffix is no image format, or matplotlib is not installed
    """
    if path is None:
        return
    if kind_of(path) not in KINDS:
        known = ", ".join("." + kind for kind in (*KINDS, *others))
        raise InputError(f"{option} {path}: the name must end in one of {known}")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise InputError("matplotlib is not installed; install the extra `plot`: pip install -e '.[plot]'") from None


def save_picture(figure, path: str, dpi: float = DOTS_PER_INCH) -> None:
    """Writes a figure of matplotlib beside `path` and moves it into place."""
    with beside(path) as made, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # font_families warns once, for all glyphs
        figure.savefig(made, dpi=dpi, format=kind_of(path))
