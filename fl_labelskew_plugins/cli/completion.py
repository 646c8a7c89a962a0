"""Shell completion of recipes, plugins and keys, without importing plugins."""

import json
from collections.abc import Callable, Iterable

import click
from click.shell_completion import CompletionItem
from fl_labelskew_registry import Kind, catalog

from fl_labelskew_plugins.recipe import shipped

Items = list[CompletionItem]
Complete = Callable[[click.Context, click.Parameter, str], Items]


def plugins(kind: Kind) -> Complete:
    """Complete the name of a plugin."""
    return lambda context, parameter, word: _matching(sorted({one.name for one in catalog.entries(kind)}), word)


def recipes(context: click.Context, parameter: click.Parameter, word: str) -> Items:
    """Complete a recipe's name, or the path of its file."""
    return [*shipped_names(context, parameter, word), CompletionItem(word, type="file")]


def shipped_names(context: click.Context, parameter: click.Parameter, word: str) -> Items:
    """Complete the name of a package's recipe."""
    papers = [paper for paper in shipped.papers() if f"{paper}/".startswith(word) or word.startswith(f"{paper}/")]
    rows = shipped.table(papers[0]).cells if len(papers) == 1 else [""]
    return _matching([*shipped.files(), *(f"{paper}/{row}" for paper in papers for row in rows)], word)


def settings(context: click.Context, parameter: click.Parameter, word: str) -> Items:
    """Complete ``section.key=``: first the section, then the key."""
    schema = json.loads((shipped.folder() / shipped.SCHEMA).read_text("utf-8"))
    sections = schema["$defs"]["recipe"]["properties"]
    near = [section for section in sections if f"{section}.".startswith(word) or word.startswith(f"{section}.")]
    if len(near) != 1:
        return _matching([f"{section}." for section in near], word)
    parts = (sections[near[0]], *(rule["then"] for rule in sections[near[0]].get("allOf", ())))
    keys = {
        key: value.get("description", "")
        for part in parts
        for key, value in part.get("properties", {}).items()
        if "title" in value and value.get("type") != "object" and f"{near[0]}.{key}".startswith(word)
    }
    return [CompletionItem(f"{near[0]}.{key}=", help=text.partition("\n")[0]) for key, text in keys.items()]


def _matching(words: Iterable[str], word: str) -> Items:
    return [CompletionItem(value) for value in dict.fromkeys(words) if value.startswith(word)]
