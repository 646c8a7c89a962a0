"""Numbers and names as a sentence has them."""

from __future__ import annotations

from collections.abc import Sequence


def counted(number: int, noun: str, plural: str = "") -> str:
    """A number and its noun.

    >>> counted(1, "class", "classes"), counted(0, "test")
    ('1 class', '0 tests')
    """
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def ranged(numbers: Sequence[int], noun: str, plural: str = "") -> str:
    """Least and most of some numbers, and their noun.

    >>> ranged([50, 50], "sample"), ranged([3, 1, 2], "class", "classes")
    ('50 samples', '1 to 3 classes')
    """
    low, high = min(numbers), max(numbers)
    return counted(low, noun, plural) if low == high else f"{low} to {high} {plural or noun + 's'}"


def few(names: Sequence[str], most: int = 10) -> str:
    """Names on one line, without what cannot be printed; of many, the first ones and the last.

    >>> few(["cat", "dog"]), few(list("abcdefgh"), 4)
    ('cat, dog', 'a, b, c, ... h')
    """
    shown = ["".join(letter if letter.isprintable() else "?" for letter in name)[:40] for name in names]
    return ", ".join(shown if len(shown) <= most else [*shown[: most - 1], f"... {shown[-1]}"])
