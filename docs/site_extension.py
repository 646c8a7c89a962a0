"""What Sphinx lacks for this site: links that also hold in a checkout, and formulas.

Formulas become pictures, so that a browser needs neither a script nor a font from elsewhere for them.
"""

from __future__ import annotations

import html
import os
import re
from pathlib import Path
from typing import Any

from docutils import nodes
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath
from matplotlib.transforms import Affine2D

DOCS = Path(__file__).parent
ROOT = DOCS.parent
LINK = re.compile(r"(!?)\[([^\[\]]*)\]\(([^()#\s]+)(#[^()\s]*)?\)")
PAGES = {
    ROOT / "README.md": DOCS / "index.md",
    ROOT / "CHANGELOG.md": DOCS / "changelog.md",
    ROOT / "CONTRIBUTING.md": DOCS / "contributing.md",
    ROOT / "examples/hospitals": DOCS / "tutorials/hospitals.md",
    ROOT / "examples/third_party_method": DOCS / "adding-a-method.md",
    ROOT / "examples/fedml_script/README.md": DOCS / "fedml.md",
}
"""Where in the site something is that lies outside of this folder."""


def relinked(text: str, file: Path, page: Path) -> str:
    """A file's text with the links that it needs as a ``page`` of the site; what the site has not is no link there."""

    def link(found: re.Match[str]) -> str:
        picture, words, target, anchor = found[1], found[2], found[3], found[4] or ""
        path = (file.parent / target).resolve()
        if not path.exists():
            return found[0]  # an address, or a link that is broken, which the build tells
        path = PAGES.get(path, path)
        if not path.is_relative_to(DOCS):
            return words
        # without words of its own, a link to a page has the page's title
        words = "" if words == target and path.suffix == ".md" else words
        return f"{picture}[{words}]({os.path.relpath(path, page.parent)}{anchor})"

    return LINK.sub(link, text)


SPELLINGS = {
    r"\\[bB]igl(?![a-zA-Z])": r"\\left",
    r"\\[bB]igr(?![a-zA-Z])": r"\\right",
    r"\\[lr]?Vert(?![a-zA-Z])": r"\\|",
    r"\\ge(?![a-zA-Z])": r"\\geq",
    r"\\ne(?![a-zA-Z])": r"\\neq",
    r"\\(sqrt|mathcal) (\w)": r"\\\1{\2}",
    r"\\frac(\\\w+|\d)\{?(\w+)\}?": r"\\frac{\1}{\2}",
    r"\\frac\b": r"\\dfrac",
    r"\\sum((?:[_^](?:\{[^{}]*\}|\w))*)": r"\\,\\sum\1\\,",
}
"""LaTeX that Matplotlib does not read, and how it would."""


def drawn(formula: str) -> str:
    """A formula as SVG, in the colour and size of the text around it."""
    tex = " ".join(formula.split())
    for latex, spelling in SPELLINGS.items():
        tex = re.sub(latex, spelling, tex)
    path = TextPath((0, 0), f"${tex}$", size=100, prop=FontProperties(math_fontfamily="stix"))
    steps = [
        "Z" if code == path.CLOSEPOLY else " MLQC"[code] + " ".join(f"{x:.0f}" for x in points)
        for points, code in path.transformed(Affine2D().scale(1, -1)).iter_segments()
    ]
    box = path.get_extents().padded(5)
    return (
        f'<svg role="img" aria-label="{html.escape(tex)}" fill="currentColor" width="{box.width / 90:.2f}em" '
        f'viewBox="{box.x0:.0f} {-box.y1:.0f} {box.width:.0f} {box.height:.0f}" '
        f'style="vertical-align: {box.y0 / 90:.2f}em"><path d="{"".join(steps)}"/></svg>'
    )


def _inline(self: Any, node: nodes.Element) -> None:
    self.body.append(drawn(node.astext()))
    raise nodes.SkipNode


def _display(self: Any, node: nodes.Element) -> None:
    self.body.append(f'<p style="overflow-x: auto; white-space: nowrap">{drawn(node.astext())}</p>')
    raise nodes.SkipNode


def setup(app: Any) -> dict[str, bool]:
    """Called by Sphinx."""

    def source_read(app: Any, docname: str, content: list[str]) -> None:
        page = Path(app.env.doc2path(docname))
        content[0] = relinked(content[0], page, page)

    def include_read(app: Any, path: Path, parent: str, content: list[str]) -> None:
        # MyST gives only the last part of the page's name as its parent
        content[0] = relinked(content[0], (DOCS / path).resolve(), Path(app.env.doc2path(app.env.docname)))

    app.connect("source-read", source_read)
    app.connect("include-read", include_read)
    app.add_html_math_renderer("drawn", (_inline, None), (_display, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
