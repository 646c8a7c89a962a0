"""Tables that compare runs; docs/sweeps.md describes rows and columns."""

import functools
import itertools
import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import pandas as pd
from fl_labelskew_registry import LabelSkewError, MistakesError, catalog, mistake
from pandas import DataFrame

from fl_labelskew_plugins import plots
from fl_labelskew_plugins.machine.text import clean
from fl_labelskew_plugins.recipe.mistakes import unknown
from fl_labelskew_plugins.runs.measure import GLOBAL, MEASURES, NAMED
from fl_labelskew_plugins.studies.finished import PLACES, SETTING_KEYS, FinishedRun, flat, number

Curve = dict[int, list[float]]  # maps a round (the first is 1) to one accuracy per seed
PLAIN_OPTIMIZER = "FedAvg"
NAMES = {
    "method": ("method_args.method", "?"),
    "optimizer": ("train_args.federated_optimizer", PLAIN_OPTIMIZER),
    "data": ("data_args.dataset", "?"),
    "partition": ("partition_args.partition_method", "?"),
}
"""Column to its recipe key and default."""
FALL = 3.0  # percentage points: accuracy falls if the last tests are further below the best
DIFFERENCE = ["difference", "difference_low", "difference_high", "pairs"]
# columns for --only, per kind of name
CHOSEN = (("label", "method", "optimizer"), ("setting", "partition setting", "partition"), ("data",))
PRINTED = {"accuracy": "accuracy", "best_accuracy": "best", "personalised_accuracy": "personalised"}


def rows(groups: Sequence[Sequence[FinishedRun]], last: int, baseline: str = "fedavg") -> DataFrame:
    """Make a row per group, with the columns of :data:`.printed.FORMS` and the following ones. Missing values are NaN.

    - falls: whether a run's best is more than :data:`FALL` above its accuracy.
    - rounds without reaching: the last round, if the mean over seeds never reaches the baseline's best.
    - partition setting: the setting without the name of the data.
    - runs: one per seed; incomplete ones only if none is complete. complete: whether these are complete.
    - keys: ``section.key`` to value as JSON. curve: accuracies, 0 to 1. recall: per class, in per cent.

    ``baseline``: a label, or a method with federated_optimizer FedAvg. Raise LabelSkewError if no row matches, except
    for fedavg.
    """
    firsts = [group[0] for group in groups]
    recipes = [flat(run.recipe) | data for run, data in zip(firsts, _data(firsts), strict=True)]
    for recipe in recipes:
        if reference := recipe.pop("train_args.reference", None):
            recipe["method_args.method"] = reference
    counted = [[run for run in group if run.complete] or list(group) for group in groups]
    names = {name: [_name(recipe.get(key, default)) for recipe in recipes] for name, (key, default) in NAMES.items()}
    names["partition"] = [_partition(recipe) for recipe in recipes]
    frame = pd.DataFrame(
        {
            **names,
            "unfinished": [sum(not run.complete for run in group) for group in groups],
            "test": [run.measure.name for run in firsts],
            "complete": [all(run.complete for run in runs) for runs in counted],
            "personal": [any(run.personal for run in runs) for runs in counted],
            "rounds": [ends([len(run.metrics) for run in runs]) for runs in counted],
            "runs": counted,
            "curve": [_curve(runs) for runs in counted],
            "keys": [{key: json.dumps(value) for key, value in recipe.items()} for recipe in recipes],
        }
    )
    frame["seeds"] = [len(runs) for runs in counted] * frame["complete"]
    _add_names(frame)
    _use_sweep_names(frame)
    # rows are compared only with rows of the same measure
    frame["setting"] += (", " + frame["test"]).where(frame["test"] != NAMED[GLOBAL].name, "")
    if baseline not in (*frame["label"], *frame["method"], "fedavg"):
        raise LabelSkewError(f"baseline: {unknown(baseline, names_in(frame, 'label', 'method'))}")
    _measure(frame, last)
    _rank(frame)
    _compare(frame, baseline, last)
    return frame


def _measure(frame: DataFrame, last: int) -> None:
    runs = frame["runs"].explode()  # indexed by row, like everything derived from it

    def by_row(name: str, **columns: str) -> Any:
        lines = runs.map(attrgetter(name)).explode().dropna()
        values = [[number(line, key) for key in columns] for line in lines]
        return pd.DataFrame(values, lines.index, list(columns.values()), dtype=float).groupby(level=0)

    keys = ("personalised_accuracy", *(f"client_accuracy_{part}" for part in ("mean", "worst", "std")))
    results = [(run.accuracy(last), *(run.last(key, last) for key in keys), run.best) for run in runs]
    columns = ["accuracy", "clients", "own tests", "worst client", "spread", "best"]
    of_seeds = 100 * pd.DataFrame(results, runs.index, columns, dtype=float)
    frame["falls"] = (of_seeds["best"] - of_seeds["accuracy"] > FALL).groupby(level=0).any()
    for part, values in (("", of_seeds.groupby(level=0).mean()), ("_std", of_seeds.groupby(level=0).std())):
        for name in (name for name in columns if name != "clients"):
            frame[f"{name}{part}"] = values[name]
        frame[f"personalised{part}"] = values["clients"].where(frame["personal"])
        frame[f"local model{part}"] = values["clients"].where(~frame["personal"])
    recalls = [zip(*(run.recall(last) for run in seeds), strict=False) for seeds in frame["runs"]]
    frame["recall"] = [(100 * pd.DataFrame(classes, dtype=float).mean(axis=1)).tolist() for classes in recalls]
    frame[["MB up", "MB down"]] = by_row("metrics", bytes_up="MB up", bytes_down="MB down").mean() / 1e6
    took = by_row("timings", seconds="s/round", peak_mb="peak MB", peak_gpu_mb="peak GPU MB")
    frame["s/round"] = took["s/round"].mean()
    frame[["peak MB", "peak GPU MB"]] = took[["peak MB", "peak GPU MB"]].max()


def _data(runs: Sequence[FinishedRun]) -> list[dict[str, str]]:
    """Return a key per run that identifies its data, if equal settings used different data.

    The key is the data's folder or, if a folder had different data, the start of their fingerprint.
    """
    folders_of_run = []
    by_setting: dict[str, dict[str | None, str]] = {}  # setting to fingerprint to first folder
    for run in runs:
        values = {key: value for key, value in flat(run.recipe).items() if key.startswith(SETTING_KEYS)}
        folders = by_setting.setdefault(json.dumps(values, sort_keys=True), {})
        folders.setdefault(run.data, str(run.recipe.get("data_args", {}).get("data_cache_dir") or ""))
        folders_of_run.append(folders)
    keys: list[dict[str, str]] = []
    for run, folders in zip(runs, folders_of_run, strict=True):
        if len(folders) < 2:
            keys.append({})
        elif len(set(folders.values())) == len(folders):
            keys.append({PLACES[0]: folders[run.data] or "default"})
        else:
            keys.append({"data_args.fingerprint": (run.data or "unknown")[:8]})
    return keys


def _name(value: Any) -> str:
    return clean("+".join(map(str, value)) if isinstance(value, list) else value)


def _partition(recipe: Mapping[str, Any]) -> str:
    if recipe.get("client_specific_args.data_silo_config"):
        return "silos' data"
    name = str(recipe.get(*NAMES["partition"]))
    values = [recipe.get(f"partition_args.{key}") for key in _required(name)]
    texts = [", ".join(value) if isinstance(value, dict) else str(value) for value in values if value is not None]
    return clean(" ".join([name, *texts]), 60)


@functools.cache
def _required(partition: str) -> tuple[str, ...]:
    try:
        fields = catalog.load("partitioners", partition).Params.model_fields
    except LabelSkewError:
        return ()
    return tuple(key for key, parameter in fields.items() if parameter.is_required())


def ends(counts: Sequence[int]) -> str:
    """Format the lowest and the highest number, such as ``3-20``."""
    return "-".join(map(str, dict.fromkeys((min(counts), max(counts)))))


def _curve(runs: Iterable[FinishedRun]) -> Curve:
    curve: Curve = {}
    for run in runs:
        for line in run.tests:
            curve.setdefault(int(line["round"]) + 1, []).append(float(line[run.measure.key]))
    return curve


def _add_names(frame: DataFrame) -> None:
    """Add ``differs in``, ``setting``, ``partition setting`` and ``label``."""
    keys = pd.DataFrame(list(frame["keys"]), columns=all_keys(frame)).fillna("null")

    def apart(*names: str) -> DataFrame:
        """For each row and key: whether rows that agree in the columns ``names`` differ in the key."""
        return keys.groupby(frame.groupby(list(names)).ngroup()).transform("nunique") > 1

    in_row, in_setting = apart(*NAMES), apart("data", "partition")
    in_method = in_row.groupby(frame.groupby(["method", "optimizer"]).ngroup()).transform("any")
    several = frame["data"].nunique() > 1
    names: dict[str, list[str]] = {"differs in": [], "setting": [], "partition setting": [], "label": []}
    for n, row in enumerate(frame.to_dict("records")):
        setting_keys = [key for key in row["keys"] if key.startswith(SETTING_KEYS)]
        differs = [key for key in row["keys"] if (in_row if key in setting_keys else in_method).at[n, key]]
        differing = (_setting(row, key) for key in setting_keys if in_setting.at[n, key])
        partition = ", ".join([row["partition"], *differing])
        optimizer = [row["optimizer"]] if row["optimizer"] != PLAIN_OPTIMIZER else []
        label = [row["method"], *optimizer, *(_setting(row, key) for key in differs if key not in setting_keys)]
        names["differs in"].append(", ".join(_setting(row, key) for key in differs))
        names["setting"].append(f"{row['data']}, {partition}" if several else partition)
        names["partition setting"].append(partition)
        names["label"].append(", ".join(label))
    for name, words in names.items():
        frame[name] = words


def _use_sweep_names(frame: DataFrame) -> None:
    """Use the sweep's names if all rows have one, and only rows with the same generated name share one."""

    def names_of(kind: str) -> Any:
        names = [{run.names.get(kind) for run in runs} for runs in frame["runs"]]
        return pd.Series([one.pop() if len(one) == 1 else None for one in names], frame.index, dtype=object)

    settings, labels = names_of("setting"), names_of("label")
    pairs = pd.DataFrame({"by keys": frame["setting"], "by sweep": settings}).drop_duplicates()
    reserved = "method" in set(settings)  # the name of a pivot's first column
    if settings.notna().all() and not reserved and not any(pairs[column].duplicated().any() for column in pairs):
        frame["setting"] = frame["partition setting"] = settings
    one_method = frame.groupby(labels)[["method", "optimizer"]].nunique().le(1).all(axis=None)
    if labels.notna().all() and one_method and not frame.assign(label=labels).duplicated(["setting", "label"]).any():
        frame["label"] = labels


def all_keys(frame: DataFrame) -> list[str]:
    """List each ``section.key`` that any row sets."""
    return list(dict.fromkeys(key for keys in frame["keys"] for key in keys))


def _setting(row: Mapping[str, Any], key: str) -> str:
    return clean(f"{key.partition('.')[2]}={row['keys'][key]}".replace('"', ""))


def _rank(frame: DataFrame) -> None:
    # rounded, since the order of the seeds changes the last digit of a sum
    accuracy = frame["accuracy"].where(frame["complete"]).round(9)
    frame["rank"] = accuracy.groupby(frame["setting"]).rank(method="min", ascending=False)


def _compare(frame: DataFrame, baseline: str, last: int) -> None:
    """Add the columns that compare rows with the baseline, see docs/sweeps.md."""
    frame[["rounds to baseline", "speedup", "rounds without reaching", *DIFFERENCE]] = math.nan
    means = [
        {r: statistics.fmean(values) for r, values in sorted(curve.items()) if len(values) == len(runs)}
        for curve, runs in zip(frame["curve"], frame["runs"], strict=True)
    ]  # only rounds that all seeds tested
    keys = [{k: v for k, v in keys.items() if not k.startswith("method_args.")} for keys in frame["keys"]]
    by_label = frame["label"] == baseline
    by_method = (frame["method"] == baseline) & (frame["optimizer"] == PLAIN_OPTIMIZER)
    for row, setting in frame["setting"].items():
        comparable = frame["complete"] & (frame["setting"] == setting)
        bases = frame.index[comparable & (by_label if (comparable & by_label).any() else by_method)]
        base = min(bases, key=lambda n: len({key for key, _ in keys[n].items() ^ keys[row].items()}), default=None)
        if base is None:
            continue
        if row != base and frame["complete"][row]:
            frame.loc[row, DIFFERENCE] = _difference(frame["runs"][row], frame["runs"][base], last)
        if not means[base]:
            continue
        target = max(means[base].values())
        first, theirs = (next((r for r, value in means[n].items() if value >= target), None) for n in (row, base))
        if first is None:
            frame.loc[row, "rounds without reaching"] = max(means[row], default=0)
        else:
            frame.loc[row, ["rounds to baseline", "speedup"]] = first, theirs / first


def _difference(runs: Sequence[FinishedRun], others: Sequence[FinishedRun], last: int) -> Sequence[float]:
    ours, theirs = (
        {run.seed: 100 * value for run in row if (value := run.accuracy(last)) is not None} for row in (runs, others)
    )
    # rounded, as for the rank: equal accuracies give equal differences
    differences = [round(value - theirs[seed], 9) for seed, value in ours.items() if seed in theirs]
    if not differences:
        return [math.nan] * len(DIFFERENCE)
    return statistics.fmean(differences), *interval(differences), len(differences)


def interval(differences: Sequence[float]) -> tuple[float, float]:
    r"""The 95 % interval of the mean, :math:`\bar d \pm t_{0.975, n-1} s / \sqrt n`; NaN if all are equal.

    Student, "The probable error of a mean", Biometrika 6, 1908.

    >>> low, high = interval([1.0, 2.0, 3.0])  # 2 ± 4.303 * 1 / sqrt(3)
    >>> round(low, 3), round(high, 3)
    (-0.484, 4.484)
    """
    n = len(differences)
    if len(set(differences)) < 2:  # no variance to estimate
        return math.nan, math.nan
    from scipy.stats import t

    middle, half = statistics.fmean(differences), float(t.ppf(0.975, n - 1)) * statistics.stdev(differences) / n**0.5
    return middle - half, middle + half


def only(frame: DataFrame, names: Sequence[str]) -> DataFrame:
    """Select rows by names of methods, settings and data, and rank them again.

    A kind without a name, such as data, is not filtered. Raise LabelSkewError if a name matches nothing.
    """
    selected = frame["complete"] | True
    unmatched = set(names)
    for columns in CHOSEN:
        matching = frame["complete"] & False
        for name in names:
            column = next((column for column in columns if (frame[column] == name).any()), None)
            if column is not None:
                matching |= frame[column] == name
                unmatched.discard(name)
        selected &= matching | ~matching.any()
    if unmatched:
        known = names_in(frame, *itertools.chain(*CHOSEN))
        raise MistakesError([f"--only: {unknown(name, known)}" for name in names if name in unmatched])
    if not selected.any():
        raise mistake("--only", "no row matches all these names", "fewer names")
    frame = frame[selected].reset_index(drop=True)
    _rank(frame)
    return frame


def names_in(frame: DataFrame, *columns: str) -> list[str]:
    """List distinct names in ``columns``, quoted if they contain a comma."""
    names = dict.fromkeys(name for column in columns for name in frame[column])
    return [f"'{name}'" if "," in name else name for name in names]


def notes(frame: DataFrame, runs: Iterable[FinishedRun], last: int = 5) -> list[str]:
    """List notes on runs, published results and different measures."""
    counted = [run for runs in frame["runs"] for run in runs]
    lines = [note for run in runs if (note := _note(run, counted))]
    for run in counted:
        fall = 100 * (run.best - (run.accuracy(last) or 0.0)) if run.tests else 0.0
        if fall > FALL:
            lines.append(f"! {run.name}: best is {fall:.1f} points above accuracy, the mean of the last tests")
    for label, seeds in zip(frame["label"], frame["runs"], strict=True):
        for expected in seeds[0].expected:
            if column := PRINTED.get(expected.measure):
                paper = f"{expected.paper}, {expected.table}: {expected.value:g}"
                lines.append(f"{label}: {clean(paper)}; compare it with the column {column}")
    if frame["test"].nunique() > 1:
        lines.append(f"accuracies are on {tested_on(frame)}: only rows with the same test are compared")
    return lines


def _note(run: FinishedRun, counted: Sequence[FinishedRun]) -> str:
    in_table = any(run is other for other in counted)
    if not run.complete:
        effect = "shown without a rank" if in_table else "excluded from its row"
        return f"{run.name}: {len(run.metrics)} of {run.planned} rounds: {effect}"
    if in_table:
        return ""
    settings = (run.data, flat(run.recipe))
    twin = next(other for other in counted if other.seed == run.seed and (other.data, flat(other.recipe)) == settings)
    return f"{run.name}: same recipe, data and seed as {twin.name}: counted once"


def curves(frame: DataFrame) -> dict[str, dict[str, Curve]]:
    """Map setting and label to accuracies by round."""
    settings: dict[str, dict[str, Curve]] = {}
    for setting, label, curve in zip(frame["setting"], frame["label"], frame["curve"], strict=True):
        for round_, values in curve.items():
            settings.setdefault(setting, {}).setdefault(label, {}).setdefault(round_, []).extend(values)
    return settings


def plot(frame: DataFrame, path: Path, width: float | None = None) -> None:
    """Draw the rows' accuracies with :func:`.plots.compare`."""
    of_clients = frame["test"].nunique() == 1 and frame["test"][0] != NAMED[GLOBAL].name
    tested = frame["test"][0] if of_clients else ""  # with several tests, each setting's name contains its test
    plots.compare(curves(frame), path, methods=methods(frame), width=width, tested=tested)


def tested_on(frame: DataFrame) -> str:
    """Describe the samples on which accuracies were measured."""
    return " or on ".join(one.samples for one in MEASURES if (frame["test"] == one.name).any())


def methods(frame: DataFrame) -> dict[str, str]:
    """Map label to method, or to optimiser for fedavg with another optimiser; see :func:`.plots.looks`."""
    of_optimizer = (frame["method"] == "fedavg") & (frame["optimizer"] != PLAIN_OPTIMIZER)
    return dict(zip(frame["label"], frame["method"].mask(of_optimizer, frame["optimizer"]), strict=True))
