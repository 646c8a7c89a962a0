"""Opens picture files, for all data sets of pictures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fl_labelskew_registry import LabelSkewError

if TYPE_CHECKING:
    from PIL.Image import Image


def opened(file: str | Path, mode: Literal["L", "RGB"] = "RGB", *, draft: int | None = None) -> Image:
    """A file's picture, decoded to its end.

    Args:
        file: any format that Pillow knows.
        mode: grey or colour.
        draft: decode a JPEG no larger than needed for sides of this many pixels, which is several times faster.

    Raises:
        LabelSkewError: it is not there, or no sound picture.
    """
    from PIL import Image

    try:
        with Image.open(file) as image:
            if draft is not None:
                image.draft(mode, (draft, draft))
            converted: Image.Image = image.convert(mode)
            return converted
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
        raise LabelSkewError(f"{file}: is not a sound image ({' '.join(str(error).split())})") from error
