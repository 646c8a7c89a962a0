"""Writes the recipes of the papers' experiments from a table per paper: ``python tools/recipes/generate.py``.

A table's parts are laid over each other: what is common to all papers, the paper's ``base``, the row's ``data`` and
``split``, its ``rounds`` and ``set``, and what it has for ``each`` method. A row makes one recipe for each method that
it has a value for: the paper's number, or ``[number, printed std]``, or null where none is printed. A method may bring
``train_args`` of its own, such as the optimiser that it is mixed with.
"""

from __future__ import annotations

import argparse
import copy
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fl_labelskew_plugins.recipe import yaml
from fl_labelskew_plugins.recipe.model import EXPECTED, SECTIONS

HERE = Path(__file__).parent
RECIPES = HERE.parent.parent / "recipes"
MARK = "Written by tools/recipes/generate.py from tools/recipes/"

Sections = dict[str, dict[str, Any]]

COMMON: Sections = {
    "common_args": {"training_type": "simulation", "random_seed": 0},
    "data_args": {"dataset": None, "data_cache_dir": None},
    "train_args": {
        "federated_optimizer": "FedAvg",
        "client_num_in_total": None,
        "client_num_per_round": None,
        "comm_round": None,
    },
    "device_args": {"using_gpu": False},
    "comm_args": {"backend": "sp"},
    "tracking_args": {"run_dir": "runs", "checkpoint_every": 10},
}

WITHOUT_STD = 2.0
"""Tolerance in per cent where a paper prints no std: seeds differ by as much in these scenes."""


def tolerance(std: float | None) -> float:
    """Two printed standard deviations, and at least one per cent."""
    return WITHOUT_STD if std is None else max(1.0, round(2 * std, 2))


def laid_over(*layers: Sections) -> Sections:
    """Sections in a recipe's order; the last layer that has a key wins."""
    found: Sections = {}
    for layer in copy.deepcopy(layers):
        for section, keys in layer.items():
            found.setdefault(section, {}).update(keys)
    return {section: found[section] for section in SECTIONS if section in found}


def chosen(table: dict[str, Any], row: dict[str, Any], name: str) -> Sections:
    """The method: its name, the row's parameters for the paper's own, the variant's, and the row's for it alone."""
    own = dict(table["methods"][name])
    train = own.pop("train_args", {})
    args = row.get("args", {}) if own["method"] == table["methods"][table["own"]]["method"] else {}
    args = {"method": own["method"]} | args | own
    return laid_over({"train_args": train, "method_args": args}, row.get("each", {}).get(name, {}))


def expected(table: dict[str, Any], part: dict[str, Any], row: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """The paper's numbers for one recipe."""
    value = row["values"][name]
    if value is None:
        return []
    number, std = value if isinstance(value, list) else (value, None)
    found = [
        {
            "value": number,
            "measure": table.get("measure", "accuracy"),
            "tolerance": tolerance(std),
            "paper": table["paper"],
            "table": part["table"],
        }
    ]
    if name in row.get("rounds_to", {}):
        rounds, target, where = row["rounds_to"][name]
        measure = {"measure": "rounds_to", "target": target, "tolerance": round(rounds / 10)}
        found.append({"value": rounds, **measure, "paper": table["paper"], "table": where})
    return found


def recipes(paper: str) -> Iterator[tuple[str, str]]:
    """Path below ``recipes/`` and text of each recipe of ``paper``, the name of a table."""
    table, twice = yaml.read((HERE / f"{paper}.yaml").read_text(encoding="utf-8"))
    if twice:
        raise SystemExit(f"{paper}.yaml: {twice[0]}")
    for part in table["tables"]:
        for row in part["rows"]:
            label = part["table"].lower().replace(" ", "")
            stem = row.get("name", f"{label}_{row['data']}_{row['split']}")
            for number, name in enumerate(row["values"]):
                suffix = "" if name == table["own"] else f"_{name}"
                paths = [f"{paper}/{stem}{suffix}.yaml"]
                if number == 0 and "also" in row:
                    paths.append(f"{row['also']}.yaml")
                for path in paths:
                    yield path, text(table, part, row, name, path, f"{MARK}{paper}.yaml: change it there.")


def text(table: dict[str, Any], part: dict[str, Any], row: dict[str, Any], name: str, path: str, mark: str) -> str:
    """One recipe."""
    rounds = {"train_args": {"comm_round": row["rounds"]}} if "rounds" in row else {}
    content: dict[str, Any] = laid_over(
        COMMON,
        table["base"],
        table["data"][row["data"]],
        table["splits"][row["split"]],
        rounds,
        row.get("set", {}),
        chosen(table, row, name),
    )
    train = content["train_args"]
    train["client_num_per_round"] = train["client_num_per_round"] or train["client_num_in_total"]
    if numbers := expected(table, part, row, name):
        content[EXPECTED] = numbers
    mixed = content["train_args"]["federated_optimizer"] != COMMON["train_args"]["federated_optimizer"]
    what = f"{content['method_args']['method']} with {content['train_args']['federated_optimizer']}" if mixed else name
    title = f"{table['paper']}, {part['table'].replace('Table', 'table')}: {row['data']}, {row['split']}, {what}"
    comment = [
        f"{title}." if numbers else f"{title}; no number is printed.",
        *textwrap.wrap(" ".join(filter(None, (table["comment"], part.get("comment"), row.get("comment")))), 118),
        f"{table['source']}.",
        mark,
    ]
    lines = [f"# fedml run recipes/{path}", *(f"# {line}" for line in comment)]
    return "\n".join(lines) + "\n" + yaml.write(content)


def everything() -> dict[str, str]:
    """Path below ``recipes/`` to text, of all papers."""
    found: dict[str, str] = {}
    for paper in sorted(path.stem for path in HERE.glob("*.yaml")):
        for path, content in recipes(paper):
            if path in found:
                raise SystemExit(f"{paper}.yaml: {path} would be written twice")
            found[path] = content
    return found


def stale(written: dict[str, str]) -> list[Path]:
    """Recipes that were written here and would not be any more."""
    return [
        path
        for path in RECIPES.rglob("*.yaml")
        if path.relative_to(RECIPES).as_posix() not in written and MARK in path.read_text(encoding="utf-8")
    ]


def main() -> None:
    """Write what is missing or differs, and drop what no table names any more."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    written = everything()
    changed = 0
    for name, content in written.items():
        path = RECIPES / name
        if not path.exists() or path.read_text(encoding="utf-8") != content:
            path.parent.mkdir(exist_ok=True)
            path.write_text(content, encoding="utf-8")
            changed += 1
    for path in stale(written):
        path.unlink()
        changed += 1
    print(f"{len(written)} recipes, {changed} changed", file=sys.stderr)


if __name__ == "__main__":
    main()
