"""Packages of plugins of one's own: a method is the example ``third_party_method``, all others are of templates."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

from fl_labelskew_registry import LabelSkewError, catalog, mistake

from fl_labelskew_plugins.data.fakes import whole
from fl_labelskew_plugins.front.new.kinds import KINDS
from fl_labelskew_plugins.machine.text import clean
from fl_labelskew_plugins.recipe import shipped

LINK = re.compile(r"\[([^]]*)\]\(\.\./\.\./([^)]*)\)")
"""To a document that is not copied."""


def package(kind: str, name: str, out: Path) -> list[str]:
    """Write the package; returns the commands to type first.

    Args:
        kind: one of :data:`.kinds.KINDS`.
        name: as recipes will have it.
        out: a new or empty folder.

    Raises:
        LabelSkewError: the name is none or is taken, or the folder is not new or empty.
    """
    what = f"{kind} {clean(name, 40)}"
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,39}", name):
        rule = "must start with a lowercase letter and contain only lowercase letters, digits and _"
        raise LabelSkewError(f"{what}: {rule}")
    there = [entry.distribution for entry in catalog.entries(KINDS[kind][0]) if entry.name == name]
    if there or find_spec(f"labelskew_{name}"):
        raise mistake(what, f"is installed already{f', by {there[0]}' if there else ''}", "another name")
    cls = "".join(word.capitalize() for word in name.split("_"))
    files = _files(kind, name, cls)
    if any(re.search(rf"\b{cls}\b", text) for file, text in _files(kind, "", "").items() if file.endswith(".py")):
        raise mistake(what, f"its class would be {cls}, a name that its code needs", "another name")
    with whole(out) as part:
        for file, text in files.items():
            (part / file).write_text(text, encoding="utf-8")
    return ["pip install -e . pytest", f"pytest test_{name}.py", f"labelskew run {name}_digits.yaml"]


def _files(kind: str, name: str, cls: str) -> dict[str, str]:
    return _example(name, cls) if kind == "method" else _made(kind, name, cls)


def _example(name: str, cls: str) -> dict[str, str]:
    """The files of the example method under another name."""
    example = shipped.folder("examples") / "third_party_method"
    texts = {file.name: file.read_text("utf-8") for file in example.iterdir() if file.is_file()}
    return {
        file.replace("ldam", name): LINK.sub(r"\1 (\2 of fl-labelskew-plugins)", text)
        .replace("ldam", name)
        .replace("LDAM", cls)
        for file, text in texts.items()
    }


def _made(kind: str, name: str, cls: str) -> dict[str, str]:
    """The files of another kind, with the example's pyproject.toml."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    group, noun, key = KINDS[kind]
    templates = Environment(
        loader=FileSystemLoader(Path(__file__).with_name("plugins")),
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # no HTML
    )
    facts = {
        "verb": "partitions" if kind == "partition" else group,
        "kind": kind,
        "name": name,
        "cls": cls,
        "group": group,
        "noun": noun,
        "key": key,
    }
    sources = {
        f"labelskew_{name}.py": f"{kind}.py.j2",
        f"test_{name}.py": "test.py.j2",
        f"{name}_digits.yaml": "recipe.yaml.j2",
        "README.md": "README.md.j2",
    }
    made = {file: templates.get_template(source).render(facts) for file, source in sources.items()}
    project = _example(name, cls)["pyproject.toml"].replace("fl_labelskew.methods", catalog.namespace(group))
    return made | {"pyproject.toml": project.replace(KINDS["method"][1], noun)}
