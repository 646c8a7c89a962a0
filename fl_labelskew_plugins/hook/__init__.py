"""Lets ``fedml run RECIPE.yaml`` run a recipe, though FedML's command line has no plugin hook.

A ``.pth`` file beside this package calls :func:`install` when the interpreter starts. That only puts a finder in front
of the import system; it waits for ``fedml.cli.modules.run`` and then gives its click group one more way in. Everything
else that ``fedml run`` does stays as it is. From then on Ctrl-C ends a command of ours with one line, however much is
still to be imported. ``FL_LABELSKEW_NO_HOOK=1`` switches the hook off.

The host's command line imports all of the host, for seconds, before it looks at what was typed. If the first word after
``fedml run`` is a recipe or ``--resume``, the script ``fedml`` gets :func:`cli` in its place, which runs our command.

This module is read at every interpreter start, so it imports nothing but what is loaded already.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # typing's own costs more than this whole module
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import FrameType, ModuleType
    from typing import Any, NoReturn

    import click

TARGET = "fedml.cli.modules.run"
CLI = "fedml.cli.cli"
"""What the script ``fedml`` imports its command line from."""
COMMAND = "fl_labelskew_plugins.cli.run"
OWN = ("labelskew", "fl_labelskew_plugins.cli.main")
"""Our own command, by its script and by its module."""
FILES = (".yaml", ".yml")
PACKAGE = os.path.dirname(os.path.dirname(__file__))
EPILOG = (
    "Label-skew recipes: 'fedml run RECIPE.yaml', or a recipe's name, trains one on this machine, 'fedml run --resume "
    "RUN_DIR' continues one, 'fedml run RECIPE.yaml --help' lists the options (fl-labelskew-plugins)."
)


class Finder:
    """Finds one module in the ordinary way and patches it once it has run; every other module is passed by."""

    @classmethod
    def find_spec(cls, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The ordinary spec of :data:`TARGET`, with a loader that calls :func:`patch` at its end."""
        if name != TARGET:
            return None
        try:
            sys.meta_path.remove(cls)
            from importlib.util import find_spec

            spec = find_spec(name)
            if spec is None or spec.loader is None:
                return None
            loader: Any = spec.loader
            run_module = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                del loader.exec_module
                run_module(module)
                _quietly(lambda: patch(module.fedml_run))

            loader.exec_module = exec_module
        except Exception:
            return None  # the stock finders come next
        return spec


def install() -> None:
    """Put the finder in front of the import system, once."""
    if Finder not in sys.meta_path and TARGET not in sys.modules:
        end_in_a_line()
        sys.meta_path.insert(0, Finder)
        if _is_ours(sys.orig_argv):
            _quiet_imports()
        if _is_quick(sys.orig_argv):
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
    return "run" in words and any(
        word.startswith("--resume") if word.startswith("-") else is_recipe(word) for word in words[words.index("run") :]
    )


def _is_quick(argv: list[str]) -> bool:
    """Whether ``fedml run`` is followed by a recipe or ``--resume``, so that the host is not asked at all."""
    script, *words = _typed(argv)
    return (script, words[:1]) == ("fedml", ["run"]) and any(
        word.startswith("--resume") or is_recipe(word) for word in words[1:2]
    )


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
    """The command line of ``fedml run RECIPE``; the host's own if our command cannot be imported."""
    del sys.modules[CLI]
    if (command := _our_command()) is not None:
        return command.main(sys.argv[2:], prog_name="fedml run")
    from importlib import import_module

    return import_module(CLI).cli()


def patch(group: click.Group) -> None:
    """Give the group ``fedml run`` our command as one more way in.

    The arguments decide before the group reads any of them: what is ours gets a context of our command, whose options
    may then stand in any order; what is not goes the stock way.
    """
    stock_context, stock_invoke = group.make_context, group.invoke

    def make_context(
        info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        command = _command_for(group, args)
        if command is None:
            _quietly(_let_go)
        return (command.make_context if command else stock_context)(info_name, args, parent, **extra)

    def invoke(ctx: click.Context) -> Any:
        # A parent group calls the context's own command; only a direct call of this group comes here with ours.
        return stock_invoke(ctx) if ctx.command is group else ctx.command.invoke(ctx)

    group.epilog = EPILOG
    group.make_context = make_context  # type: ignore[method-assign]
    group.invoke = invoke  # type: ignore[method-assign]


def _command_for(group: click.Group, args: list[str]) -> click.Command | None:
    """Our command where the arguments mean it, else None: they then belong to the stock group."""
    try:
        flags = _options(group) | {"--help": False, "-h": False}
        rest = iter(args)
        for arg in rest:
            if not arg.startswith("-"):
                ours = arg not in group.commands and (is_recipe(arg) or _is_unknown(arg, group))
                return _our_command(arg) if ours else None
            option, _, value = arg.partition("=")
            if option not in flags:
                # Unknown to the stock group, which would refuse it: ours if our command knows it.
                command = _our_command()
                return command if command and option in _options(command) else None
            if flags[option] and not value:
                next(rest, None)
            elif not flags[option]:
                return None  # --help of the group itself
    except Exception:
        pass
    return None


def _is_unknown(word: str, group: click.Group) -> bool:
    """Whether a word is not nearly a command of the host: our command then suggests the nearest recipe."""
    from difflib import get_close_matches

    return not get_close_matches(word, group.commands)


def _options(command: click.Command) -> dict[str, bool]:
    """Every option's spelling, and whether a value follows it."""
    return {
        spelling: not getattr(option, "is_flag", False)
        for option in command.params
        if option.param_type_name == "option"
        for spelling in (*option.opts, *option.secondary_opts)
    }


def _our_command(recipe: str = "") -> click.Command | None:
    """``fedml run RECIPE``; None, and a word on why if a recipe was asked for, where it cannot be imported."""
    try:
        from importlib import import_module

        command: click.Command = import_module(COMMAND).run_command
    except Exception as error:
        if recipe:
            print(f"fl-labelskew-plugins cannot run {recipe}: {type(error).__name__}: {error}", file=sys.stderr)
        return None
    return command


def _let_go() -> None:
    """Give Ctrl-C back to the host, whose call it is after all."""
    import signal

    if signal.getsignal(signal.SIGINT) is end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _quietly(action: Callable[[], object]) -> None:
    try:
        action()
    except Exception:
        return
