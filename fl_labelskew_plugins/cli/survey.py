"""``labelskew survey``."""

from __future__ import annotations

import math
import os
import shlex
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from fl_labelskew_registry import mistake

from fl_labelskew_plugins.cli import completion, table
from fl_labelskew_plugins.cli.options import FILE, PATH, SET
from fl_labelskew_plugins.machine.files import write_text, writing
from fl_labelskew_plugins.machine.text import clean, counted, few, wrapped

if TYPE_CHECKING:
    from fl_labelskew_plugins.recipe.model import Recipe
    from fl_labelskew_plugins.surveys.survey import Survey

MAX_CLIENTS = 20
MAX_CLASSES = 20
HEADS = {
    **{"held": "classes held", "effective": "effective classes", "imbalance": "imbalance"},
    **{"hellinger": "Hellinger", "chance": "by chance"},
}


@click.command("survey")
@click.argument("recipe", type=PATH, shell_complete=completion.recipes)
@SET
@click.option(
    "--out", type=PATH, metavar="DIR", default=".", show_default="here", help="Folder of RECIPE-survey.{csv,json,png}."
)
@click.option("--compare", type=FILE, metavar="FILE", help="Write a sweep of the suggested methods to a new FILE.")
def survey_command(recipe: Path, overrides: tuple[str, ...], out: Path, compare: Path | None) -> None:
    """Measure the label skew of RECIPE's partition, and suggest methods; trains nothing.

    For silos with their own data, use "labelskew run RECIPE --survey". docs/survey.md explains the numbers.
    """
    from fl_labelskew_plugins.recipe.parse import load
    from fl_labelskew_plugins.surveys.survey import of_partition

    if compare is not None and os.path.lexists(compare):
        raise mistake(f"--compare {compare}", "exists already", "another file")
    checked = load(recipe, overrides)
    survey = of_partition(checked)
    click.echo(text(survey))
    with writing(out):
        survey.write(out, f"{checked.name}-survey")
    click.echo(f"written: {out / checked.name}-survey.csv, .json and .png")
    if compare is not None:
        _write_comparison(compare, checked, recipe, overrides, survey)
        click.echo(f"written: {compare}; next: labelskew sweep {shlex.quote(str(compare))}")


def _write_comparison(file: Path, checked: Recipe, recipe: Path, overrides: Sequence[str], survey: Survey) -> None:
    from fl_labelskew_plugins.params import absolute
    from fl_labelskew_plugins.recipe import shipped, yaml
    from fl_labelskew_plugins.surveys.suggestions import comparison, evidence, suggestions

    changes, resolved = dict[str, Any](), checked.resolved()
    for name, _, text in (override.partition("=") for override in overrides):
        (section, _, key), value = name.partition("."), yaml.read(text)[0]
        path = absolute(value, Path())  # the sweep file may be in another folder
        changes[name] = path if key == "data_cache_dir" or path == resolved.get(section, {}).get(key) else value
    base = str(recipe) if str(recipe) in shipped.names() else os.path.relpath(recipe, file.parent)
    content = yaml.write(comparison(base, changes, suggestions(evidence(survey.skew))))
    with writing(file):
        write_text(file, f"# labelskew sweep {clean(shlex.quote(str(file)), 4096)}\n{content}")


def text(survey: Survey) -> str:
    """Format a survey."""
    return "\n\n".join(_parts(survey))


def _parts(survey: Survey) -> Iterator[str]:
    measured, number = survey.skew, len(survey.clients)
    classes = counted(len(survey.class_names), "class", "classes")
    title = f"{survey.title}: {counted(number, 'client')}, {counted(int(measured.samples.sum()), 'training sample')}"
    listed, note = list(range(number)), ""
    if number > MAX_CLIENTS:
        order = sorted((k for k in listed if measured.samples[k]), key=lambda k: -measured.measures["hellinger"][k])
        listed = order[:MAX_CLIENTS]
        note = f"\n(listed: the {MAX_CLIENTS} clients with the class shares that differ most from the federation's)"
    yield f"{title} of {classes}{note}"
    if len(survey.class_names) <= MAX_CLASSES:
        names = [clean(name, 40) for name in survey.class_names]
        held = [(clean(survey.clients[k], 40), survey.counts[k].tolist()) for k in listed]
        yield table.plain(["client", *names, "all"], [[name, *map(str, n), str(sum(n))] for name, n in held])
    yield table.plain(["client", *HEADS.values(), "missing"], [_row(survey, k) for k in listed])
    worst = clean(survey.clients[measured.worst], 40)
    worst = f"client {worst}" if worst.isdecimal() else worst
    head = ["measure", "min", "median", "max", "mean", "sample-weighted mean"]
    rows = []
    for name, values in measured.measures.items():
        present = values[measured.samples > 0].tolist()
        ordered = min(present), statistics.median(present), max(present)
        rows.append([HEADS[name], *map(_number, (*ordered, measured.mean[name], measured.weighted_mean[name]))])
    yield table.plain(head, rows)
    furthest = f"{worst}, at {_number(measured.measures['hellinger'][measured.worst])} (Hellinger)"
    notes = [f"{100 * measured.missing_pairs:.3g} % of the (client, class) pairs have no sample"]
    yield "\n".join(map(wrapped, [*notes, f"furthest from the federation's class shares: {furthest}", *survey.notes]))
    yield _suggested(survey)


def _suggested(survey: Survey) -> str:
    from fl_labelskew_plugins.recipe import yaml
    from fl_labelskew_plugins.surveys.suggestions import FEDAVG_ARGS, evidence, explained, suggestions

    rows, situation = [], evidence(survey.skew)
    for one in suggestions(situation):
        difference = "" if one.difference is None else f"{one.difference:+.2f}" if one.difference else "-"
        shown = {key: dict(keys) for key, keys in one.settings.items() if keys != FEDAVG_ARGS}
        lines = " and ".join(yaml.write({key: keys}).rstrip() for key, keys in shown.items())
        rows.append([one.name, one.accuracy, difference, one.reason, lines])
    head = ["method", "accuracy", "difference", "reason", "for the recipe"]
    used = [i for i in range(len(head)) if any(row[i] for row in rows)]
    texts = table.plain([head[i] for i in used], [[row[i] for i in used] for row in rows])
    use = "labelskew survey RECIPE --compare FILE writes a sweep of these methods"
    if survey.noise:
        use = "a sweep only simulates; to compare methods across silos, run each with --set, then labelskew report"
    optimizer = "Rows without train_args use federated_optimizer: FedAvg."
    return "\n".join([wrapped(explained(survey.skew, situation)), texts, wrapped(optimizer), wrapped(use)])


def _row(survey: Survey, client: int) -> list[str]:
    measures = [_number(values[client]) for values in survey.skew.measures.values()]
    names = [name for name, none in zip(survey.class_names, survey.skew.missing[client], strict=True) if none]
    return [clean(survey.clients[client], 40), *measures, few(names, 8)]


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.0f}" if value >= 100 else f"{value:.3g}"
