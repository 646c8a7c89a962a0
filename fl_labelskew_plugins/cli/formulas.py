"""Convert the equations of docstrings to plain text for a terminal."""

from __future__ import annotations

import inspect
import re
import textwrap
import unicodedata
from collections.abc import Iterator
from typing import Literal, NamedTuple

SYMBOLS = {
    **{"lambda": "λ", "ell": "ℓ", "sum": "Σ", "prod": "Π", "top": "ᵀ", "leftarrow": "←", "ne": "≠", "ge": "≥"},
    **{"le": "≤", "in": "∈", "times": "×", "cdot": "·", "infty": "∞", "Vert": "‖", "lVert": "‖", "rVert": "‖"},
    **{"quad": "\n", "qquad": "\n", ",": " ", ";": " "},
}
"""LaTeX commands as text, in addition to Greek letters; others become their own name, such as ``log``."""
ACCENTS = {"hat": "\u0302", "bar": "\u0304", "tilde": "\u0303"}
"""LaTeX commands that put an accent on their argument."""
SIZES = {"left", "right", *(size + side for size in ("big", "Big", "bigg", "Bigg") for side in ("", "l", "r"))}
RAISED = str.maketrans("0123456789+-T", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ᵀ")
TOKEN = re.compile(r"\\(?:[A-Za-z]+|.)|\s+|.", re.DOTALL)


class DocPart(NamedTuple):
    """A paragraph of a docstring, or an equation."""

    kind: Literal["text", "math"]
    text: str


def parts(docstring: str | None) -> Iterator[DocPart]:
    r"""The parts after a docstring's first line; equations are its ``.. math::`` directives.

    >>> list(parts("A loss.\n\nEquation 1:\n\n.. math:: a^2\n"))
    [DocPart(kind='text', text='Equation 1:'), DocPart(kind='math', text='a^2')]
    """
    _, *blocks = re.split(r"\n\s*\n", inspect.cleandoc(docstring or ""))
    for block in blocks:
        head, math, formula = block.partition(".. math::")
        yield DocPart("math", textwrap.dedent(formula).strip()) if math and not head else DocPart("text", block)


def plain(latex: str) -> str:
    r"""A LaTeX formula as text, with a line for each equation separated by ``\quad``.

    >>> print(plain(r"\mathcal{L} = -\log \frac{e^{z_y / \tau}}{\sum_c e^{z_c}}, \quad w_k^2"))
    L = -log(e^(z_y / τ) / Σ_c e^(z_c)),
    w_k²
    """
    text = re.sub(r"(log|ln|exp) \(", r"\1(", _sequence(TOKEN.findall(latex)[::-1]))
    return "\n".join(" ".join(line.split()) for line in text.strip().split("\n"))


def _sequence(tokens: list[str]) -> str:
    """Text up to a closing brace; ``tokens`` is reversed."""
    text = ""
    while tokens and (token := tokens.pop()) != "}":
        if token == "{":
            text += _sequence(tokens)
        elif token in "^_":
            text += _script(token, _argument(tokens))
        elif token == r"\frac":
            over, under = _argument(tokens), _argument(tokens)
            whole = f"{_factor(over, ' [-+] ')} / {_factor(under, '^[^Σ].* | [-+] ')}"
            simple = all(re.fullmatch(r"[\w\u0300-\u036f]+", part) for part in (over, under))
            right_side = re.search(r"= $", text) and (not tokens or tokens[-1] in ",}")  # needs no parentheses
            text += whole if right_side else f"{over}/{under}" if simple else f"({whole})"
        elif token == r"\rVert":
            text = text.rstrip() + SYMBOLS["rVert"]
        elif token.startswith("\\"):
            text += _command(token[1:], tokens)
        else:
            text += " " if token.isspace() else token
    return text


def _command(name: str, tokens: list[str]) -> str:
    if name in SIZES:
        return ""
    if name == "lVert":
        _skip_spaces(tokens)
    if name in ("text", "mathcal", "mathrm", "mathbf"):
        return _argument(tokens)
    if name in ACCENTS:
        over = _argument(tokens)
        return unicodedata.normalize("NFC", over[:1] + ACCENTS[name] + over[1:])
    if name in SYMBOLS:
        return SYMBOLS[name]
    try:
        return unicodedata.lookup(f"greek {'capital' if name[0].isupper() else 'small'} letter {name}")
    except KeyError:
        return name


def _skip_spaces(tokens: list[str]) -> None:
    while tokens and tokens[-1].isspace():
        tokens.pop()


def _argument(tokens: list[str]) -> str:
    _skip_spaces(tokens)
    if not tokens:
        return ""
    token = tokens.pop()
    if token == "{":
        return _sequence(tokens)
    return _command(token[1:], tokens) if token.startswith("\\") else token


def _script(sign: str, text: str) -> str:
    if sign == "^" and re.fullmatch(r"[0-9+\-T]|ᵀ|'", text):
        return text.translate(RAISED)
    if re.fullmatch(r"[^\W_]+'?", text):
        return sign + text
    return f"{sign}({text})" if sign == "^" else f"{sign}{{{text}}}"


def _factor(text: str, compound: str) -> str:
    """Add parentheses if the part outside existing parentheses matches ``compound``."""
    outside, inside = text, ""
    while outside != inside:
        outside, inside = re.sub(r"\([^()]*\)|\{[^{}]*\}", "", outside), outside
    return f"({text})" if re.search(compound, outside) else text


def shown(docstring: str | None, width: int) -> list[str]:
    """Format the parts of a docstring as lines for a terminal."""
    lines: list[str] = []
    for part in parts(docstring):
        lines.append("")
        if part.kind == "math":
            for formula in plain(part.text).split("\n"):
                short = textwrap.wrap(formula, width - 8, break_long_words=False, break_on_hyphens=False)
                lines += [" " * (8 if number else 4) + line for number, line in enumerate(short)]
        elif re.search(r"^(?:\s|[-*] )", part.text, re.MULTILINE):  # a list, or a section of arguments
            lines += part.text.splitlines()
        else:
            lines += textwrap.wrap(re.sub(r"``|\*\*", "", part.text), width)
    return lines
