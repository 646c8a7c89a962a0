"""Lets ``fedml run RECIPE.yaml`` run a recipe, though FedML's command line has no plugin hook.

A ``.pth`` file next to this package calls :func:`install` when the interpreter starts. If the interpreter was started
as ``fedml run`` with a recipe or ``--resume``, the script ``fedml`` gets :func:`cli` in place of FedML's command line,
which would import all of FedML, for seconds. Any other command of FedML's stays as it is. From then on Ctrl-C ends a
command of ours with one line, however much is still to be imported. ``FL_LABELSKEW_NO_HOOK=1`` switches the hook off.

This module is read at every interpreter start, so it imports nothing but what is loaded already.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # typing's own costs more than this whole module
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Any, NoReturn

CLI = "fedml.cli.cli"
"""The module from which the script ``fedml`` imports its command line."""
COMMAND = "fl_labelskew_plugins.cli.run"
OWN = ("labelskew", "fl_labelskew_plugins.cli.main")
"""Our own command, by its script and by its module."""
STOCK = ("list", "logs", "status", "stop")
"""Commands of ``fedml run``; what is nearly one of them is a misspelt command, not a misspelt recipe."""
FILES = (".yaml", ".yml")
PACKAGE = os.path.dirname(os.path.dirname(__file__))


def install() -> None:
    """Put :func:`cli` in place of FedML's command line, if the interpreter was started with a command of ours."""
    if not _is_ours(sys.orig_argv):
        return
    end_in_a_line()
    _quiet_imports()
    if _typed(sys.orig_argv)[0] == "fedml":
        stand_in: Any = type(sys)(CLI)
        stand_in.cli = cli
        sys.modules[CLI] = stand_in


def end_in_a_line() -> None:
    """Let :func:`end` have Ctrl-C where the command is ours, unless it is ignored."""
    import _signal  # type: ignore[import-not-found]  # signal itself would import more, and so come later

    if _is_ours(sys.orig_argv) and _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, end)


def end(signum: int, frame: FrameType | None) -> NoReturn:
    """A handler of Ctrl-C that ends this process with a line: for while there is nothing to lose."""
    _quietly(lambda: print(end="", flush=True))
    _quietly(lambda: os.write(2, b"interrupted\n"))
    os._exit(130)


def _is_ours(argv: list[str]) -> bool:
    """Whether the interpreter was started as ``labelskew``, or as ``fedml run`` with a recipe or ``--resume``."""
    script, *words = _typed(argv)
    if script != "fedml":
        return script in OWN
    if words[:1] != ["run"] or len(words) == 1:
        return False
    first, *rest = words[1:]
    if first.startswith("--resume") or is_recipe(first):
        return True
    if first.startswith("-"):  # an option of ours, or of FedML's
        return any(word.startswith("--resume") or is_recipe(word) for word in rest) and not {*STOCK} & {*rest}
    from difflib import get_close_matches

    return not get_close_matches(first, STOCK)  # our command suggests the nearest recipe


def _typed(argv: list[str]) -> list[str]:
    """The name of the script, and what was typed after it."""
    given = argv[1:]
    while given and given[0].startswith("-"):  # the interpreter's own options
        given.pop(0)
    return [given[0].rpartition("/")[2], *given[1:]] if given else [""]


def is_recipe(word: str) -> bool:
    """Whether a word can only mean a recipe: a file, a row of a table, or one that came with the package, by name."""
    places = (PACKAGE, os.path.dirname(PACKAGE))  # in a checkout, recipes lie beside the package
    known = (os.path.isfile(os.path.join(place, "recipes", f"{word}.yaml")) for place in places)
    return word.lower().endswith(FILES) or "/" in word.rstrip("/") or any(known)


def _quiet_imports() -> None:
    """Leave out what the host's imports warn of, its own dependencies: a recipe's user can do nothing about them."""
    import warnings

    for module in ("requests", "fedml"):
        warnings.filterwarnings("ignore", module=module)


def cli() -> Any:
    """The command line of ``fedml run RECIPE``; FedML's own, after a line on the reason, if ours cannot be imported."""
    from importlib import import_module

    del sys.modules[CLI]
    try:
        command = import_module(COMMAND).run_command
    except Exception as error:
        print(f"fl-labelskew-plugins cannot run {sys.argv[2]}: {type(error).__name__}: {error}", file=sys.stderr)
        return import_module(CLI).cli()
    return command.main(sys.argv[2:], prog_name="fedml run")


def _quietly(action: Callable[[], object]) -> None:
    try:
        action()
    except Exception:
        return
