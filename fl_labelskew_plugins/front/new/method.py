"""Generate a method's package from the example ``third_party_method``."""

import re
from importlib.util import find_spec
from pathlib import Path

from fl_labelskew_registry import LabelSkewError, catalog, mistake

from fl_labelskew_plugins.data.fakes import all_or_nothing
from fl_labelskew_plugins.machine.text import clean
from fl_labelskew_plugins.recipe import shipped

LINK = re.compile(r"\[([^]]*)\]\(\.\./\.\./([^)]*)\)")  # to a document that is not copied


def package(name: str, out: Path) -> list[str]:
    """Write a package; return the next commands; raise LabelSkewError for an invalid name or folder."""
    where = f"method {clean(name, 40)}"
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,39}", name):
        rule = "must start with a lowercase letter and contain only lowercase letters, digits and _"
        raise LabelSkewError(f"{where}: {rule}")
    installed = [entry.distribution for entry in catalog.entries("methods") if entry.name == name]
    if installed or find_spec(f"labelskew_{name}"):
        raise mistake(where, f"is installed already{f', by {installed[0]}' if installed else ''}", "another name")
    cls = "".join(word.capitalize() for word in name.split("_"))
    example = shipped.folder("examples") / "third_party_method"
    texts = {file.name: file.read_text("utf-8") for file in example.iterdir() if file.is_file()}
    if any(re.search(rf"\b{cls}\b", text) for file, text in texts.items() if file.endswith(".py")):
        raise mistake(where, f"its class would be {cls}, a name that its code needs", "another name")
    with all_or_nothing(out) as part:
        for file, text in texts.items():
            copied = LINK.sub(r"\1 (\2 of fl-labelskew-plugins)", text).replace("NotTrue", cls)
            (part / file.replace("not_true", name)).write_text(copied.replace("not_true", name), encoding="utf-8")
    return ["pip install -e . pytest", f"pytest test_{name}.py", f"labelskew run {name}_digits.yaml"]
