import shutil
from pathlib import Path

import click
from fl_labelskew_registry import LabelSkewError

from fl_labelskew_plugins.cli import table
from fl_labelskew_plugins.cli.recipes import DEST, fresh
from fl_labelskew_plugins.recipe import shipped

ABOUT = {
    "hospitals": "three hospitals train across silos, each with its own data, file and policy",
    "services": "server and silos as systemd units, or in containers",
    "fedml_script": "a script with FedML's own runner and methods of this package, over MPI or across silos",
    "third_party_method": "a method in its own package, with recipe and test",
    "first_run.ipynb": "a notebook: a first run from Python",
    "search_optuna.py": "a search for the best settings with Optuna, on one machine or several",
    "sweeps/digits": "a first sweep on scikit-learn's digits: methods, partitions, seeds; half a minute",
    "sweeps/secure_digits": "digits: accuracy cost of secure aggregation's integers; ten minutes",
    "sweeps/fmnist": "Fashion-MNIST: every method, optimiser and baseline, three seeds; three hours",
    "sweeps/fmnist_momentum": "Fashion-MNIST: optimisers that correct drift, with plain SGD",
    "sweeps/fmnist_settings": "Fashion-MNIST: methods with other parameters",
    "sweeps/niid_bench": "Fashion-MNIST: the settings of NIID-Bench in Flower's baseline; 40 minutes per run",
}
GENERATED = ("__pycache__", "certs", "data", "runs")


@click.group("examples")
def examples_group() -> None:
    """List or copy examples and sweeps of the package."""


@examples_group.command("ls")
def ls() -> None:
    """List the examples and sweeps, each with a short description."""
    click.echo(table.plain(["name", "description"], [*ABOUT.items()]))


@examples_group.command("cp")
@click.argument("name")
@DEST
def cp(name: str, dest: Path) -> None:
    """Copy the example NAME to DEST, by default into the current folder; existing files are kept."""
    name = name.rstrip("/").removesuffix(".yaml")
    if name not in ABOUT:
        from fl_labelskew_plugins.recipe import mistakes

        raise LabelSkewError(f"example {mistakes.unknown(name, ABOUT)}")
    kind, _, sweep = name.rpartition("/")
    example = shipped.folder(kind) / f"{sweep}.yaml" if kind else shipped.folder("examples") / name
    with fresh(dest, example.name) as target:
        if example.is_dir():
            shutil.copytree(example, target, ignore=shutil.ignore_patterns(*GENERATED))
        else:
            shutil.copyfile(example, target)
