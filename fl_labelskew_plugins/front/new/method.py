"""The package of a method of one's own, made of the example ``third_party_method``."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

from fl_labelskew_registry import catalog, mistake

from fl_labelskew_plugins.data.fakes import whole
from fl_labelskew_plugins.machine.text import clean
from fl_labelskew_plugins.recipe import shipped

LINK = re.compile(r"\[([^]]*)\]\(\.\./\.\./([^)]*)\)")
"""To a document that is not copied."""


def method(name: str, out: Path) -> list[str]:
    """Write the package; returns the commands to type first.

    Args:
        name: as recipes will have it.
        out: a new or empty folder.

    Raises:
        LabelSkewError: the name is none or is taken, or the folder is not new or empty.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,39}", name):
        use = "small letters, digits and _, a letter first"
        raise mistake(f"method {clean(name, 40)}", "is no name that Python and recipes both take", use)
    there = [entry.distribution for entry in catalog.entries("methods") if entry.name == name]
    if there or find_spec(f"labelskew_{name}"):
        raise mistake(f"method {name}", f"is installed already{f', by {there[0]}' if there else ''}", "another name")
    example = shipped.folder("examples") / "third_party_method"
    cls = "".join(word.capitalize() for word in name.split("_"))
    if re.search(rf"\b{cls}\b", (example / "labelskew_ldam.py").read_text("utf-8")):
        raise mistake(f"method {name}", f"its class would be {cls}, a name that its code needs", "another name")
    with whole(out) as part:
        for file in filter(Path.is_file, example.iterdir()):
            text = LINK.sub(r"\1 (\2 of fl-labelskew-plugins)", file.read_text("utf-8"))
            text = text.replace("ldam", name).replace("LDAM", cls)
            (part / file.name.replace("ldam", name)).write_text(text, encoding="utf-8")
    return ["pip install -e . pytest", f"pytest test_{name}.py", f"labelskew run {name}_digits.yaml"]
