"""Decoding of image files, and detection of broken ones."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal, TypeVar, cast

import numpy as np
from fl_labelskew_registry import LabelSkewError, MistakesError, mistake
from numpy.typing import NDArray
from rich.filesize import decimal

from fl_labelskew_plugins.data.files import capped
from fl_labelskew_plugins.machine import log
from fl_labelskew_plugins.machine.files import check_regular
from fl_labelskew_plugins.machine.text import clean, few

if TYPE_CHECKING:
    from PIL.Image import Image

Item = TypeVar("Item")
OnBadSample = Literal["stop", "skip"]
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")  # for others, such as EPS, Pillow starts a program
MAX_PIXELS = 2**26  # in the file and after resizing
MAX_BYTES = 2**29  # pixels of four 16-bit channels


def opened(file: str | Path | IO[bytes], mode: Literal["L", "RGB"] = "RGB", *, draft: int | None = None) -> Image:
    """Decode an image file. Raise LabelSkewError if it is missing, invalid or too large.

    ``draft``: decode a JPEG only as large as needed for sides of this many pixels, which is several times faster.
    """
    from PIL import Image

    where = clean(file, 4096)
    try:
        if isinstance(file, (str, Path)) and (size := check_regular(file)) > MAX_BYTES:
            raise mistake(where, f"is of {decimal(size)}", f"a picture of at most {decimal(MAX_BYTES)}")
        with Image.open(file, formats=FORMATS) as image:
            width, height = image.size
            if width * height > MAX_PIXELS:  # before decoding
                raise mistake(where, f"is of {width} x {height} pixels", f"a picture of at most {MAX_PIXELS} pixels")
            if draft is not None:
                image.draft(mode, (draft, draft))
            if image.mode[0] in "IF":  # more than 8 bits, which convert() would clip at 255
                _, high = cast("tuple[float, float]", image.getextrema())
                if high > 255 or (image.mode == "F" and high <= 1):
                    problem = f"is not an 8-bit image (its values go up to {high:g})"
                    raise LabelSkewError(f"{where}: {problem}; scale it to 0..255")
            converted: Image.Image = image.convert(mode)
            return converted
    except LabelSkewError:
        raise
    except Exception as error:  # Pillow's decoders raise many types
        reason = clean(" ".join(str(error).split()) or type(error).__name__, 4096)
        use = f"a {few(FORMATS)} file that is not damaged"
        raise mistake(where, f"is not a valid image ({reason})", use) from error


def decode(path: Path, *, size: int, channels: int) -> NDArray[np.uint8]:
    """Decode an image as ``(channels, size, size)``: resize the shorter side to ``size``, and crop the centre."""
    from PIL import Image

    grey_or_colour = opened(path, "L" if channels == 1 else "RGB")
    width, height = grey_or_colour.size
    scale = size / min(width, height)
    width, height = max(round(width * scale), size), max(round(height * scale), size)
    if width * height > MAX_PIXELS:
        was = "{} x {}".format(*grey_or_colour.size)
        problem = f"is of {was} pixels, and with a shorter side of {size} it would be of {width} x {height}"
        raise mistake(clean(path, 4096), problem, "an image that is less elongated")
    left, top = (width - size) // 2, (height - size) // 2
    resized = grey_or_colour.resize((width, height), Image.Resampling.BILINEAR)
    pixels = np.asarray(resized.crop((left, top, left + size, top + size)), dtype=np.uint8)
    return pixels.reshape(size, size, channels).transpose(2, 0, 1)


def faults(work: Callable[[Item], object], items: Sequence[Item], task: str) -> list[tuple[Item, str]]:
    """Items for which ``work`` raises LabelSkewError, with messages."""
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import track

    def fault(item: Item) -> str:
        try:
            work(item)
        except LabelSkewError as error:
            return str(error)
        return ""

    console = Console(stderr=True)
    pool = ThreadPoolExecutor(os.cpu_count() or 1)
    try:
        done = pool.map(fault, items)
        shown = track(done, escape(clean(task)), total=len(items), console=console, disable=not console.is_terminal)
        return [(item, wrong) for item, wrong in zip(items, shown, strict=True) if wrong]
    finally:
        pool.shutdown(cancel_futures=True)  # so that Ctrl-C does not wait


def settle(bad: Sequence[str], on_bad_sample: OnBadSample) -> None:
    """Warn about bad samples, or raise MistakesError."""
    lines = capped(bad)
    if lines and on_bad_sample == "stop":
        raise MistakesError([*lines[:-1], f"{lines[-1]}; to skip them: data_args.on_bad_sample: skip"])
    for line in lines:
        log.warn(f"{line}; skipped")
