"""Format numbers and names for messages."""

import csv
import io
import re
import shutil
import sys
import textwrap
from collections.abc import Sequence
from datetime import datetime, timezone

NUMBER = re.compile(r"[-+]?([\d.]+(e[-+]?\d+)?( ± [\d.]+)?( ?%)?)?|[-+](inf|nan)", re.IGNORECASE)
BLANKS = "\u2800\u3164\u115f\u1160\uffa0\U0001d159"  # printable for Python, but invisible
TERMS = 8  # loss terms in a line or a plot; silos may send more


def counted(number: int, noun: str, plural: str = "") -> str:
    """A number and its noun.

    >>> counted(1, "class", "classes"), counted(0, "test")
    ('1 class', '0 tests')
    """
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def ranged(numbers: Sequence[int], noun: str, plural: str = "") -> str:
    """Minimum and maximum with their noun, such as ``1 to 3 classes``, or a single number."""
    low, high = min(numbers), max(numbers)
    return counted(low, noun, plural) if low == high else f"{low} to {high} {plural or noun + 's'}"


def percent(share: float | None, digits: int = 2) -> str:
    """A share in per cent, without the unit; ``-`` for None."""
    return "-" if share is None else f"{100 * share:.{digits}f}"


def clean(text: object, max_letters: int = 200) -> str:
    """Untrusted text on one line of at most ``max_letters``, with ``?`` for unprintable ones."""
    text = str(text)
    cut = text if len(text) <= max_letters else text[: max_letters - 3] + "..."
    return "".join(letter if letter.isprintable() and letter not in BLANKS else "?" for letter in cut)


def failure(error: BaseException) -> str:
    """An exception's type and text on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def csv_cell(value: object) -> object:
    """A value for a CSV file; an apostrophe precedes text like a formula (OWASP)."""
    formula = isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") and not NUMBER.fullmatch(value)
    return f"'{value}" if formula else value


def comma_separated(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Format CSV with a header."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([*map(csv_cell, row)] for row in (head, *rows))
    return text.getvalue().rstrip("\n")


def few(names: Sequence[str], max_names: int = 10) -> str:
    """Names on one line; many names as ``a, b, c, ... h``."""
    shown = [clean(name, 40) for name in names]
    return ", ".join(shown if len(shown) <= max_names else [*shown[: max_names - 1], f"... {shown[-1]}"])


def utc() -> str:
    """The current time, as ``2026-03-01T09:30:00.123Z``."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def room() -> int:
    """Letters per line; no limit in a pipe or a file."""
    return shutil.get_terminal_size((sys.maxsize, 24)).columns


def wrapped(text: str, indent: str = "") -> str:
    """Text in lines of at most 120 letters that fit the terminal; in a pipe or file, one line."""
    width = room() if room() == sys.maxsize else min(room(), 120)
    text = text.replace(" %", "\xa0%")  # a non-breaking space, at which textwrap does not break
    text = textwrap.fill(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return text.replace("\xa0%", " %")


def shortened(name: str, limit: int) -> str:
    """A name shortened in the middle.

    >>> shortened("p10c2-fedlc-seed0", 12), shortened("seed0", 12)
    ('p10...-seed0', 'seed0')
    """
    return name if len(name) <= limit else f"{name[: limit - limit // 2 - 3]}...{name[-(limit // 2) :]}"
