"""How the house stands: files, lines, and which room imports which.

    python tools/house.py             # the counts
    python tools/house.py --arrows    # and every arrow

A room is a module or a package directly below ``fl_labelskew_plugins``. An arrow leads from a room to another one that
a module of it imports, anywhere in the file: in a function and under TYPE_CHECKING, too. A floor is how many arrows one
can follow downwards, and a circle is a set of modules that reach each other.
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Iterator, Mapping, Set
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = "fl_labelskew_plugins"


def modules() -> dict[str, Path]:
    """All modules of the package by their dotted names below it; a package is its ``__init__``."""
    paths = (ROOT / PACKAGE).rglob("*.py")
    names = {path: ".".join(path.relative_to(ROOT / PACKAGE).with_suffix("").parts) for path in paths}
    return {name.removesuffix("__init__").rstrip("."): path for path, name in sorted(names.items())}


def imported(name: str, path: Path, known: Set[str]) -> Iterator[str]:
    """The modules of the package that a module imports."""
    here = [PACKAGE, *name.split(".")] if path.name == "__init__.py" else [PACKAGE, *name.split(".")[:-1]]
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        dotted = []
        if isinstance(node, ast.Import):
            dotted = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = ".".join(here[: len(here) + 1 - node.level]) if node.level else ""
            base = ".".join(filter(None, [above, node.module]))
            dotted = [f"{base}.{alias.name}" for alias in node.names]
        for target in dotted:
            parts = target.split(".")[1:] if target.startswith(f"{PACKAGE}.") else []
            while parts and ".".join(parts) not in known:
                parts.pop()
            if parts and ".".join(parts) != name:
                yield ".".join(parts)


def arrows(paths: Mapping[str, Path]) -> dict[str, set[str]]:
    """Which modules each module imports."""
    known = {name for name in paths if name}
    return {name: set(imported(name, paths[name], known)) for name in known}


def circles(arrows: Mapping[str, Set[str]]) -> list[set[str]]:
    """Sets of names that reach each other."""

    @cache
    def reached(name: str) -> frozenset[str]:
        seen: set[str] = set()
        ahead = set(arrows.get(name, ()))
        while ahead:
            seen.add(step := ahead.pop())
            ahead |= set(arrows.get(step, ())) - seen
        return frozenset(seen)

    names = {frozenset({other for other in reached(name) if name in reached(other)}) for name in arrows}
    return sorted((set(circle) for circle in names if len(circle) > 1), key=sorted)


def floors(arrows: Mapping[str, Set[str]]) -> int:
    """How many rooms stand above each other, those of a circle side by side."""
    together = {name: circle for circle in map(frozenset, circles(arrows)) for name in circle}

    @cache
    def floor(room: frozenset[str]) -> int:
        below = {together.get(other, frozenset({other})) for name in room for other in arrows.get(name, ())} - {room}
        return 1 + max(map(floor, below), default=0)

    return max(floor(together.get(name, frozenset({name}))) for name in arrows)


def main() -> None:
    """Print the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arrows", action="store_true", help="every arrow between rooms")
    options = parser.parse_args()
    paths = modules()
    imports = arrows(paths)
    rooms: dict[str, set[str]] = {name.partition(".")[0]: set() for name in imports}
    for name, targets in imports.items():
        room = name.partition(".")[0]
        rooms[room] |= {target.partition(".")[0] for target in targets} - {room}
    flat = [room for room in rooms if paths[room].name != "__init__.py"]
    lines = {name: len(path.read_text("utf-8").splitlines()) for name, path in paths.items()}
    yaml = [path for folder in ("recipes", "sweeps", "tools") for path in (ROOT / folder).rglob("*.yaml")]
    print(f"modules directly in the package   {len(flat)}, beside {len(rooms) - len(flat)} packages")
    print(f"Python files, lines               {len(paths)}, {sum(lines.values())}")
    print(f"YAML files, lines                 {len(yaml)}, {sum(len(path.read_text().splitlines()) for path in yaml)}")
    print(f"arrows between rooms, floors      {sum(map(len, rooms.values()))}, {floors(rooms)}")
    print(f"circles of rooms                  {'; '.join(' '.join(sorted(c)) for c in circles(rooms)) or 'none'}")
    print(f"circles of modules                {'; '.join(' '.join(sorted(c)) for c in circles(imports)) or 'none'}")
    print(f"modules above 400 lines           {', '.join(f'{n} {k}' for n, k in lines.items() if k > 400) or 'none'}")
    if options.arrows:
        for room in sorted(rooms):
            print(f"{room:20} -> {' '.join(sorted(rooms[room]))}")


if __name__ == "__main__":
    main()
