"""Let ``fedml run RECIPE.yaml`` run a recipe, although FedML's command line has no plugin hook.

A ``.pth`` file calls :func:`install` at every interpreter start, so this module imports only loaded modules.
``FL_LABELSKEW_NO_HOOK=1`` disables the hook.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # importing typing takes longer than this module
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any, NoReturn

CLI = "fedml.cli.cli"  # of the script fedml
COMMAND = "fl_labelskew_plugins.cli.run"
OWN = ("labelskew", "fl_labelskew_plugins.cli.main")  # our command's script and module
STOCK = ("list", "logs", "status", "stop")
"""Commands of ``fedml run``; a similar word is a misspelt command, not a misspelt recipe."""
FILES = (".yaml", ".yml")
PACKAGE = os.path.dirname(os.path.dirname(__file__))


def install() -> None:
    """In our commands, replace FedML's slow command line by :func:`cli`, and call :func:`end_in_a_line`."""
    if not _is_ours():
        return
    end_in_a_line()
    _quiet_imports()
    if _command()[0] == "fedml":
        stand_in: Any = type(sys)(CLI)
        stand_in.cli = cli
        sys.modules[CLI] = stand_in


def end_in_a_line() -> None:
    """Make Ctrl-C call :func:`end` in our commands, unless Ctrl-C is ignored."""
    import _signal  # type: ignore[import-not-found]  # signal would import more modules

    if _is_ours() and _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, end)


def end(signum: int, frame: FrameType | None) -> NoReturn:
    """End this process with one line."""
    for action in (lambda: print(end="", flush=True), lambda: os.write(2, b"interrupted\n")):
        try:
            action()
        except Exception:
            continue
    os._exit(130)


def _is_ours() -> bool:
    script, *words = _command()
    if script != "fedml":
        return script in OWN
    if words[:1] != ["run"] or len(words) == 1:
        return False
    first, *rest = words[1:]
    if first.startswith("--resume") or is_recipe(first):
        return True
    if first.startswith("-"):  # an option of ours or of FedML
        return any(word.startswith("--resume") or is_recipe(word) for word in rest) and not {*STOCK} & {*rest}
    from difflib import get_close_matches

    return not get_close_matches(first, STOCK)  # our command suggests the nearest recipe


def _command() -> list[str]:
    """The script's name and its arguments."""
    given = sys.orig_argv[1:]
    while given and given[0].startswith("-"):  # the interpreter's own options
        given.pop(0)
    return [given[0].rpartition("/")[2], *given[1:]] if given else [""]


def is_recipe(word: str) -> bool:
    """Whether a word is a recipe's file, a row of a table, or a recipe of the package."""
    places = (PACKAGE, os.path.dirname(PACKAGE))  # in a checkout, recipes are next to the package
    known = (os.path.isfile(os.path.join(place, "recipes", f"{word}.yaml")) for place in places)
    return word.lower().endswith(FILES) or "/" in word.rstrip("/") or any(known)


def _quiet_imports() -> None:
    import warnings

    for module in ("requests", "fedml"):
        warnings.filterwarnings("ignore", module=module)


def cli() -> Any:
    """Run our command; or FedML's, with an error message, if ours cannot be imported."""
    from importlib import import_module

    del sys.modules[CLI]
    try:
        command = import_module(COMMAND).run_command
    except Exception as error:
        print(f"fl-labelskew-plugins cannot run {sys.argv[2]}: {type(error).__name__}: {error}", file=sys.stderr)
        return import_module(CLI).cli()
    return command.main(sys.argv[2:], prog_name="fedml run")
