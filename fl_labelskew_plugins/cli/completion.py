"""``labelskew completion``: the script by which a shell completes words, and what a word may go on with.

Answers come from names, files and the schema that lies beside the recipes alone: a shell asks at every Tab. Where one
name is left it is followed by what may stand behind it, so that no shell ends the word there.
"""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import click
from click.shell_completion import BashComplete, CompletionItem, add_completion_class, get_completion_class
from click.shell_completion import split_arg_string as split
from fl_labelskew_registry import Kind, catalog

from fl_labelskew_plugins.cli.exits import guarded
from fl_labelskew_plugins.recipe import shipped

Items = list[CompletionItem]
Complete = Callable[[click.Context, click.Parameter, str], Items]

NAME = "labelskew"
PLACES = {
    "bash": f"""echo 'eval "$({NAME} completion bash)"' >> ~/.bashrc""",
    "zsh": f"""echo 'eval "$({NAME} completion zsh)"' >> ~/.zshrc   # below compinit""",
    "fish": f"{NAME} completion fish > ~/.config/fish/completions/{NAME}.fish",
}
"""How a shell gets its script for good."""


HELP = """Print the script by which a shell completes words of labelskew.

It knows commands, options, recipes, plugins, run folders, and the keys and values of --set. To have it in every new
shell:

\b
""" + "\n".join(PLACES.values())


@click.command("completion", help=HELP)
@click.argument("shell", type=click.Choice([*PLACES]))
@click.pass_context
@guarded
def completion_command(context: click.Context, shell: str) -> None:
    """See :data:`HELP`."""
    complete: Any = get_completion_class(shell)
    script = complete(context.find_root().command, {}, NAME, f"_{NAME.upper()}_COMPLETE").source()
    click.echo(f"{script.rstrip()}\n# for every new shell: {PLACES[shell]}")


class Bash(BashComplete):
    """Bash, which cuts words at ``=`` and wants the last piece alone."""

    def get_completion_args(self) -> tuple[list[str], str]:
        """The words before the one to complete, and that one."""
        number = int(os.environ["COMP_CWORD"])
        words: list[str] = []
        for piece in (pieces := split(os.environ["COMP_WORDS"])[: number + 1]):
            if words and (piece == "=" or words[-1].endswith("=")):
                words[-1] += piece
            else:
                words.append(piece)
        word = words.pop() if len(pieces) > number else ""
        self._cut = word[: word.rfind("=") + 1]
        return words[1:], word

    def format_completion(self, item: CompletionItem) -> str:
        """A line of the answer."""
        return f"{item.type},{item.value.removeprefix(self._cut)}"


add_completion_class(Bash)


def plugins(kind: Kind) -> Complete:
    """Completes the name of a plugin."""
    return lambda context, parameter, word: _matching(_names(kind), word)


def recipes(context: click.Context, parameter: click.Parameter, word: str) -> Items:
    """Completes a recipe's name, or the file of one."""
    files = [file for deep in ("*", "*/*") for file in sorted(glob.glob(f"{glob.escape(word)}{deep}.y*ml"))]
    return _matching([*shipped_recipes(word), *files], word) or [CompletionItem(word, type="file")]


def shipped_names(context: click.Context, parameter: click.Parameter, word: str) -> Items:
    """Completes the name of a recipe that came with the package."""
    return _matching(shipped_recipes(word), word)


def shipped_recipes(word: str) -> list[str]:
    """Names of recipes, and the papers' as ``PAPER/`` until one paper is left."""
    papers = [paper for paper in shipped.papers() if f"{paper}/".startswith(word) or word.startswith(f"{paper}/")]
    rows = [f"{paper}/" for paper in papers]
    if len(papers) == 1:
        rows = [f"{papers[0]}/{row}" for row in shipped.table(papers[0]).cells]
    return [*shipped.files(), *rows]


def runs(context: click.Context, parameter: click.Parameter, word: str) -> Items:
    """Completes the folder of a run."""
    places = (f"{glob.escape(word)}{deep}/recipe.yaml" for deep in ("*", "*/*"))
    folders = [os.path.dirname(file) for place in places for file in sorted(glob.glob(place))]
    return _matching(folders, word) or [CompletionItem(word, type="dir")]


def settings(context: click.Context, parameter: click.Parameter, word: str) -> Items:
    """Completes ``section.key=value``: first the section, then the key, then a value where there is a choice."""
    name, equals, _ = word.partition("=")
    schema = json.loads((shipped.folder() / shipped.SCHEMA).read_text("utf-8"))
    sections = schema["$defs"]["recipe"]["properties"]
    near = [section for section in sections if f"{section}.".startswith(name) or name.startswith(f"{section}.")]
    if len(near) != 1:
        return _matching([f"{section}." for section in near], word)
    section, keys = near[0], dict(_keys(sections[near[0]]))
    matching = [key for key in keys if f"{section}.{key}".startswith(name)]
    if not equals and len(matching) != 1:
        return [CompletionItem(f"{section}.{key}=", help=_line(keys[key])) for key in matching]
    key = name.removeprefix(f"{section}.") if equals else matching[0]
    values = [f"{section}.{key}={value}" for value in _choices(section, key, keys.get(key, {}), schema["$defs"])]
    return _matching([f"{section}.{key}=", *values] if not equals else values, word)


def _keys(section: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """A section's keys and what the schema says of them, those of its plugins, too."""
    for part in (section, *(rule["then"] for rule in section.get("allOf", ()))):
        for key, value in part.get("properties", {}).items():
            if "title" in value and value.get("type") != "object":
                yield key, value


def _choices(section: str, key: str, part: dict[str, Any], defs: dict[str, Any]) -> list[str]:
    """Values to choose from, or the default alone."""
    from fl_labelskew_plugins.recipe.model import PLUGGED

    if section in PLUGGED and PLUGGED[section].key == key:
        return _names(PLUGGED[section].kind)
    forms = [defs.get(form.get("$ref", "").rpartition("/")[2], form) for form in (part, *part.get("anyOf", ()))]
    values = [value for form in forms for value in form.get("enum", (True, False) if _is_switch(form) else ())]
    return list(map(_value, values or ([part["default"]] if "default" in part else [])))


def _is_switch(form: dict[str, Any]) -> bool:
    return form.get("type") == "boolean"


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def _line(part: dict[str, Any]) -> str | None:
    return part.get("description", "").partition("\n")[0] or None


def _names(kind: Kind) -> list[str]:
    return sorted({entry.name for entry in catalog.entries(kind)})


def _matching(words: Iterable[str], word: str) -> Items:
    return [CompletionItem(value) for value in dict.fromkeys(words) if value.startswith(word)]
