"""Write the generated files again: the schema of recipes, and the tables that the documentation takes from the code.

    make generated

A page of the documentation has such a table between ``<!-- generated: grid -->`` and ``<!-- end of generated -->``.
The pictures of docs/methods are not among them, since their bytes depend on the installed Matplotlib:
``python tools/method_pictures.py``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

from fl_labelskew_registry import LabelSkewError, catalog

from fl_labelskew_plugins.recipe import compatibility, parse, shipped
from fl_labelskew_plugins.recipe.schema import json_schema

ROOT = Path(__file__).parents[1]
PLACE = re.compile(r"(<!-- generated: (\w+)(.*?) -->\n).*?(<!-- end of generated -->)", re.DOTALL)
OPTIMIZERS = ["FedAvg", "FedProx", "FedOpt", "FedNova", "FedDyn", "Mime", "SCAFFOLD"]
"""Those that the host has, too, in its order."""
GRID = """\
data_args: {{dataset: digits}}
partition_args: {{partition_method: dirichlet, beta: 0.5}}
model_args: {{model: mlp, hidden: [8]}}
train_args: {{federated_optimizer: {optimizer}, client_num_in_total: 3, client_num_per_round: 2, comm_round: 2}}
method_args: {{method: {method}}}
device_args: {{threads: 1}}
"""
"""The recipe of a cell of the grid."""


def schema() -> str:
    """The JSON Schema of recipes."""
    return json.dumps(json_schema(), indent=2) + "\n"


def names(kind: catalog.Kind) -> list[str]:
    """The built-in plugins of a kind, without those of other packages."""
    return [entry.name for entry in catalog.entries(kind) if entry.distribution == "fl-labelskew-plugins"]


@cache
def cell(method: str, optimizer: str) -> str:
    """``host``, ``ours`` or ``no: reason`` for a recipe of the defaults under ``backend: sp``."""
    try:
        loaded = parse.parse(GRID.format(method=method, optimizer=optimizer))
    except LabelSkewError as error:
        return "no: " + str(error).partition(": ")[2]
    return {"own": "ours", "corrected": "host"}[compatibility.source(loaded, loaded.network.build((1, 8, 8), 10))]


def grid() -> str:
    """Every method with every optimiser, and whose code runs."""
    head = ["method", *OPTIMIZERS, *sorted(set(names("optimizers")) - set(OPTIMIZERS))]
    rows = [
        [method, *(cell(method, optimizer).partition(":")[0] for optimizer in head[1:])] for method in names("methods")
    ]
    return "".join(f"| {' | '.join(line)} |\n" for line in [head, ["---"] * len(head), *rows])


MAKERS: dict[str, Callable[..., str]] = {"grid": grid}
"""The tables that a page may ask for."""


def page(path: Path) -> str:
    """A page with its tables made again."""
    text = path.read_text(encoding="utf-8")
    return PLACE.sub(lambda place: place[1] + MAKERS[place[2]](*place[3].split()) + place[4], text)


GENERATED: list[tuple[Path, Callable[[], str]]] = [
    (ROOT / "recipes" / shipped.SCHEMA, schema),
    *((path, partial(page, path)) for path in sorted((ROOT / "docs").rglob("*.md")) if PLACE.search(path.read_text())),
]
"""Each generated file, and the function that returns its text."""


def main() -> None:
    """Write the files that have changed, and name them."""
    for path, text in GENERATED:
        if path.read_text(encoding="utf-8") != (made := text()):
            path.write_text(made, encoding="utf-8")
            print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
