"""Tables over run folders: runs on the same data that differ only in their seed share a row.

A run that has not all the rounds of its recipe, because it diverged, was stopped or is under way, is left out of a row
that has whole ones; a row without any shows what there is and is compared with nothing.

Rows on the same data and partition are compared with each other: their rank by mean accuracy, the rounds until they
reach what the baseline reaches at best, as FedMR's table 4 and FedShift's table 2 have it, and how far their accuracy
lies from the baseline's, seed by seed.

Rows and settings go by the names that a sweep gave them, or else by the keys that tell them apart.

pandas is imported once there are rows to count.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fl_labelskew_registry import LabelSkewError, MistakesError, catalog, mistake

from fl_labelskew_plugins import plots
from fl_labelskew_plugins.machine.text import clean
from fl_labelskew_plugins.recipe.mistakes import unknown
from fl_labelskew_plugins.runs.measure import GLOBAL, MEASURES, NAMED
from fl_labelskew_plugins.studies.finished import PLACES, FinishedRun, flat, grouped, number, read_all, same

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["FinishedRun", "curves", "flat", "grouped", "notes", "number", "read_all", "rows", "same"]

Curve = dict[int, list[float]]
"""Round, counted from 1, to the accuracy of each seed."""

PLAIN_OPTIMIZER = "FedAvg"
FEDAVG = "fedavg"
NAMES = {
    "method": ("method_args.method", "?"),
    "optimizer": ("train_args.federated_optimizer", PLAIN_OPTIMIZER),
    "data": ("data_args.dataset", "?"),
    "partition": ("partition_args.partition_method", "?"),
}
"""Column to its key in a recipe, and what stands there without one."""
SCENE = ("data_args.", "partition_args.")
"""What keys that make a setting begin with."""
DIFFERENCE = ["difference", "difference_low", "difference_high", "pairs"]
"""Columns that compare a row with the baseline."""
CHOSEN = (("label", "method", "optimizer"), ("setting", "place", "partition"), ("data",))
"""Columns whose names choose rows: of each kind the nearest first."""


def rows(groups: Sequence[Sequence[FinishedRun]], last: int, baseline: str = "fedavg") -> DataFrame:
    """A row for each group: the columns of :data:`.printed.FORMS`, NaN where there is nothing, and what they come from.

    - method, optimizer, data, partition: their names; of several methods in a row, with + between them; a partition's
      with the parameters that it has to be given, such as ``dirichlet 0.1``.
    - differs in: the other keys in which rows of the same four names differ; a method's own key in all rows of that
      method and optimiser if in any, so that the same name is the same everywhere.
    - seeds, unfinished: how many have a whole run, and how many have none.
    - rounds: how many its runs have, such as ``20``, or ``3-20`` where some have fewer.
    - test: the samples that accuracy, best and curve are measured on, by the names of :data:`.measure.MEASURES`. Only
      rows of the same measure share a setting; the name of another one than the first is part of the setting's.
    - accuracy, best: in per cent, over the last tests and of any; mean over the seeds, with ``_std`` sample std.
    - personalised, local model: likewise, of the clients' own models on their own test splits, where the method keeps
      some, and of the models just trained, where it keeps none.
    - own tests, worst client, spread: likewise, of the global model on the clients' own test splits, as far as they are
      known: mean over the clients, the worst of a round, and std over the clients.
    - difference, difference_low, difference_high, pairs: of accuracy from the baseline's in this setting, mean over the
      seeds that both have, with its 95 % interval, and how many these are; see :func:`interval`.
    - rank: by mean accuracy among the rows of this setting, from 1; of whole runs alone.
    - rounds to baseline, speedup, not within: the first round, from 1, in which the mean over the seeds reaches the
      baseline's best, and the baseline's in relation to it; or the last round, where that is never.
    - MB up, MB down: MB (10^6 bytes) that all clients of a round send and get; means over the rounds.
    - s/round, peak MB, peak GPU MB: mean over the rounds and seeds; the most that the server's process of any held.
    - setting: what rows share that are compared with each other: data and partition, with their parameters; or what
      their sweep calls that. Likewise place, which leaves the data's name out.
    - label: what tells a row from others of its setting: method, another optimiser than FedAvg, other keys; or what
      their sweep calls that.
    - runs, whole, personal: one for each seed, whole ones alone where there are any; whether they are; whether the
      method keeps models of clients.
    - keys, curve, recall: ``section.key`` to value as JSON; accuracies, 0 to 1; of each class, in per cent.

    Args:
        groups: from :func:`grouped`; at least one.
        last: tests that a mean is taken over.
        baseline: the method that others are compared with, under federated_optimizer FedAvg; or a label. Of several
            rows that it fits, each row is compared with the one whose settings beside the method's are nearest.

    Raises:
        LabelSkewError: no row is the baseline's; FedAvg may be missing.
    """
    import pandas as pd

    firsts = [group[0] for group in groups]
    measures = [run.measure for run in firsts]
    recipes = [flat(run.recipe) | place for run, place in zip(firsts, _data(firsts), strict=True)]
    counted = [[run for run in group if run.whole] or list(group) for group in groups]
    names = {name: [_name(recipe.get(key, default)) for recipe in recipes] for name, (key, default) in NAMES.items()}
    names["partition"] = [_partition(recipe) for recipe in recipes]
    frame = pd.DataFrame(
        {
            **names,
            "unfinished": [sum(not run.whole for run in group) for group in groups],
            "test": [measure.name for measure in measures],
            "whole": [all(run.whole for run in runs) for runs in counted],
            "personal": [any(run.personal for run in runs) for runs in counted],
            "rounds": [ends([len(run.metrics) for run in runs]) for runs in counted],
            "runs": counted,
            "curve": [_curve(runs) for runs in counted],
            "keys": [{key: json.dumps(value) for key, value in recipe.items()} for recipe in recipes],
        }
    )
    frame["seeds"] = [len(runs) for runs in counted] * frame["whole"]
    _name_what_differs(frame)
    _name_as_swept(frame)
    # rows are compared only with rows of the same measure
    frame["setting"] += (", " + frame["test"]).where(frame["test"] != NAMED[GLOBAL].name, "")
    if baseline not in (*frame["label"], *frame["method"], FEDAVG):
        raise LabelSkewError(f"baseline: {unknown(baseline, names_in(frame, 'label', 'method'))}")
    _measure(frame, last)
    _rank(frame)
    _compare(frame, baseline, last)
    return frame


def _measure(frame: DataFrame, last: int) -> None:
    """Add what the runs have measured: accuracies, recall, and what a round costs."""
    import pandas as pd

    runs = frame["runs"].explode()  # row to run, and so on in what comes of it

    def of_lines(name: str, **columns: str) -> Any:
        lines = runs.map(attrgetter(name)).explode().dropna()
        values = [[number(line, key) for key in columns] for line in lines]
        return pd.DataFrame(values, lines.index, list(columns.values()), dtype=float).groupby(level=0)

    keys = ("personalised_accuracy", *(f"client_accuracy_{part}" for part in ("mean", "worst", "std")))
    results = [(run.accuracy(last), *(run.last(key, last) for key in keys), run.best) for run in runs]
    columns = ["accuracy", "clients", "own tests", "worst client", "spread", "best"]
    of_seeds = 100 * pd.DataFrame(results, runs.index, columns, dtype=float)
    for part, values in (("", of_seeds.groupby(level=0).mean()), ("_std", of_seeds.groupby(level=0).std())):
        for name in (name for name in columns if name != "clients"):
            frame[f"{name}{part}"] = values[name]
        frame[f"personalised{part}"] = values["clients"].where(frame["personal"])
        frame[f"local model{part}"] = values["clients"].where(~frame["personal"])
    recalls = [zip(*(run.recall(last) for run in seeds), strict=False) for seeds in frame["runs"]]
    frame["recall"] = [(100 * pd.DataFrame(classes, dtype=float).mean(axis=1)).tolist() for classes in recalls]
    frame[["MB up", "MB down"]] = of_lines("metrics", bytes_up="MB up", bytes_down="MB down").mean() / 1e6
    took = of_lines("timings", seconds="s/round", peak_mb="peak MB", peak_gpu_mb="peak GPU MB")
    frame["s/round"] = took["s/round"].mean()
    frame[["peak MB", "peak GPU MB"]] = took[["peak MB", "peak GPU MB"]].max()


def _data(runs: Sequence[FinishedRun]) -> list[dict[str, str]]:
    """Of each run a key that tells its data from others under the same settings of data and partition, if need be.

    That is the data's folder, or if a folder had other data at another time, the start of the data's fingerprint.
    """
    scenes = []
    places: dict[str, dict[str | None, str]] = {}  # of each scene: data to its first folder
    for run in runs:
        scene = {key: value for key, value in flat(run.recipe).items() if key.startswith(SCENE)}
        scenes.append(json.dumps(scene, sort_keys=True))
        places.setdefault(scenes[-1], {}).setdefault(run.data, run.place)
    known = []
    for run, scene_places in zip(runs, map(places.__getitem__, scenes), strict=True):
        by_place = len(set(scene_places.values())) == len(scene_places)
        name = (
            {PLACES[0]: scene_places[run.data] or "default"}
            if by_place
            else {"data_args.fingerprint": (run.data or "unknown")[:8]}
        )
        known.append(name if len(scene_places) > 1 else {})
    return known


def _name(value: Any) -> str:
    """A name; of several methods in a row, with + between them."""
    return clean("+".join(map(str, value)) if isinstance(value, list) else value)


def _partition(recipe: Mapping[str, Any]) -> str:
    """A partition's name, and what it has to be given, such as ``dirichlet 0.1``; silos with data have none."""
    if recipe.get("client_specific_args.data_silo_config"):
        return "silos' data"
    name = str(recipe.get(*NAMES["partition"]))
    values = [recipe.get(f"partition_args.{key}") for key in _required(name)]
    return clean(" ".join([name, *(str(value) for value in values if value is not None)]))


@functools.cache
def _required(partition: str) -> tuple[str, ...]:
    """The parameters of a partition that have no default; none where it is not installed."""
    try:
        fields = catalog.load("partitioners", partition).Params.model_fields
    except LabelSkewError:
        return ()
    return tuple(key for key, parameter in fields.items() if parameter.is_required())


def ends(counts: Sequence[int]) -> str:
    """The lowest and the highest number, such as ``3-20``; one number if they are equal."""
    return "-".join(map(str, dict.fromkeys((min(counts), max(counts)))))


def _curve(runs: Iterable[FinishedRun]) -> Curve:
    curve: Curve = {}
    for run in runs:
        for line in run.tests:
            curve.setdefault(int(line["round"]) + 1, []).append(float(line[run.measure.key]))
    return curve


def _name_what_differs(frame: DataFrame) -> None:
    """Add ``differs in``, ``setting``, ``place`` and ``label``.

    What differs under one data set and partition is told under all others, too: a name means the same in all charts.
    A setting is called by the names of its data, where there are several, and partition, and by what tells those of one
    name apart.
    """
    import pandas as pd

    keys = pd.DataFrame(list(frame["keys"]), columns=all_keys(frame)).fillna("null")

    def apart(*names: str) -> DataFrame:
        """For each row and key, whether rows of the same ``names`` have several values."""
        return keys.groupby(frame.groupby(list(names)).ngroup()).transform("nunique") > 1

    here, in_scene = apart(*NAMES), apart("data", "partition")
    there = here.groupby(frame.groupby(["method", "optimizer"]).ngroup()).transform("any")
    several = frame["data"].nunique() > 1
    names: dict[str, list[str]] = {"differs in": [], "setting": [], "place": [], "label": []}
    for n, row in enumerate(frame.to_dict("records")):
        scene = [key for key in row["keys"] if key.startswith(SCENE)]
        differs = [key for key in row["keys"] if (here if key in scene else there).at[n, key]]
        place = ", ".join([row["partition"], *(_setting(row, key) for key in scene if in_scene.at[n, key])])
        optimizer = [row["optimizer"]] if row["optimizer"] != PLAIN_OPTIMIZER else []
        label = [row["method"], *optimizer, *(_setting(row, key) for key in differs if key not in scene)]
        names["differs in"].append(", ".join(_setting(row, key) for key in differs))
        names["setting"].append(f"{row['data']}, {place}" if several else place)
        names["place"].append(place)
        names["label"].append(", ".join(label))
    for name, words in names.items():
        frame[name] = words


def _name_as_swept(frame: DataFrame) -> None:
    """Have sweeps' names for settings and rows, where all have some and these tell the same apart."""
    import pandas as pd

    def names_of(kind: str) -> Any:
        names = [{run.names.get(kind) for run in runs} for runs in frame["runs"]]
        return pd.Series([one.pop() if len(one) == 1 else None for one in names], frame.index, dtype=object)

    settings, labels = names_of("setting"), names_of("label")
    pairs = pd.DataFrame({"by keys": frame["setting"], "by sweep": settings}).drop_duplicates()
    reserved = "method" in set(settings)  # a pivot's first column
    if settings.notna().all() and not reserved and not any(pairs[column].duplicated().any() for column in pairs):
        frame["setting"] = frame["place"] = settings
    one_method = frame.groupby(labels)[["method", "optimizer"]].nunique().le(1).all(axis=None)
    if labels.notna().all() and one_method and not frame.assign(label=labels).duplicated(["setting", "label"]).any():
        frame["label"] = labels


def all_keys(frame: DataFrame) -> list[str]:
    """``section.key`` of all that any row sets."""
    return list(dict.fromkeys(key for keys in frame["keys"] for key in keys))


def _setting(row: Mapping[str, Any], key: str) -> str:
    return clean(f"{key.partition('.')[2]}={row['keys'][key]}".replace('"', ""))


def _rank(frame: DataFrame) -> None:
    # rounded, since the same seeds in another order sum up to another last digit
    accuracy = frame["accuracy"].where(frame["whole"]).round(9)
    frame["rank"] = accuracy.groupby(frame["setting"]).rank(method="min", ascending=False)


def _compare(frame: DataFrame, baseline: str, last: int) -> None:
    """Add the rounds to the baseline's best, and the difference from its accuracy.

    FedMR's table 4 and FedShift's table 2 print one whole number a method and do not say how seeds enter; here it is
    the accuracy averaged over the seeds that has to reach the baseline's highest.
    """
    frame[["rounds to baseline", "speedup", "not within", *DIFFERENCE]] = math.nan
    means = [
        {r: statistics.fmean(values) for r, values in sorted(curve.items()) if len(values) == len(runs)}
        for curve, runs in zip(frame["curve"], frame["runs"], strict=True)
    ]  # of the rounds that all seeds have tested
    by_label = frame["label"] == baseline
    by_method = (frame["method"] == baseline) & (frame["optimizer"] == PLAIN_OPTIMIZER)
    for row, setting in frame["setting"].items():
        here = frame["whole"] & (frame["setting"] == setting)
        bases = frame.index[here & (by_label if (here & by_label).any() else by_method)]
        base = min(bases, key=lambda other: _apart(frame["keys"][row], frame["keys"][other]), default=None)
        if base is None:
            continue
        if row != base and frame["whole"][row]:
            frame.loc[row, DIFFERENCE] = _difference(frame["runs"][row], frame["runs"][base], last)
        if not means[base]:
            continue
        target = max(means[base].values())
        first, theirs = (next((r for r, value in means[n].items() if value >= target), None) for n in (row, base))
        if first is None:
            frame.loc[row, "not within"] = max(means[row], default=0)
        else:
            frame.loc[row, ["rounds to baseline", "speedup"]] = first, theirs / first


def _difference(runs: Sequence[FinishedRun], others: Sequence[FinishedRun], last: int) -> Sequence[float]:
    """The numbers of :data:`DIFFERENCE`, over the seeds that both have."""
    ours, theirs = (
        {run.seed: 100 * value for run in row if (value := run.accuracy(last)) is not None} for row in (runs, others)
    )
    # rounded, as for the rank: seeds of equal accuracies are equal
    differences = [round(value - theirs[seed], 9) for seed, value in ours.items() if seed in theirs]
    if not differences:
        return [math.nan] * len(DIFFERENCE)
    return statistics.fmean(differences), *interval(differences), len(differences)


def interval(differences: Sequence[float]) -> tuple[float, float]:
    r"""The 95 % interval around their mean, :math:`\bar d \pm t_{0.975, n-1} s / \sqrt n`; NaN if all are equal.

    Student, "The probable error of a mean", Biometrika 6, 1908.

    >>> low, high = interval([1.0, 2.0, 3.0])  # 2 ± 4.303 * 1 / sqrt(3)
    >>> round(low, 3), round(high, 3)
    (-0.484, 4.484)
    """
    n = len(differences)
    if len(set(differences)) < 2:  # what does not vary is no sample of anything
        return math.nan, math.nan
    from scipy.stats import t

    middle, half = statistics.fmean(differences), float(t.ppf(0.975, n - 1)) * statistics.stdev(differences) / n**0.5
    return middle - half, middle + half


def _apart(a: Mapping[str, str], b: Mapping[str, str]) -> int:
    """In how many keys beside the method's two rows differ: of several baselines the nearest one counts."""
    keys = {key for key in (*a, *b) if not key.startswith("method_args.")}
    return sum(a.get(key) != b.get(key) for key in keys)


def only(frame: DataFrame, names: Sequence[str]) -> DataFrame:
    """The rows that go by these names, and their rank among each other; all of them without a name.

    Names of methods choose among methods, those of settings among settings and those of data among data, so that what
    none of them names is not chosen among, as in a sweep.

    Raises:
        LabelSkewError: names that no row has, or that no row has together.
    """
    left = frame["whole"] | True
    strange = set(names)
    for columns in CHOSEN:
        matching = frame["whole"] & False
        for name in names:
            column = next((column for column in columns if (frame[column] == name).any()), None)
            if column is not None:
                matching |= frame[column] == name
                strange.discard(name)
        left &= matching | ~matching.any()
    if strange:
        known = names_in(frame, *itertools.chain(*CHOSEN))
        raise MistakesError([f"--only: {unknown(name, known)}" for name in names if name in strange])
    if not left.any():
        raise mistake("--only", "no row has all these names", "fewer of them")
    frame = frame[left].reset_index(drop=True)
    _rank(frame)
    return frame


def names_in(frame: DataFrame, *columns: str) -> list[str]:
    """The names in some columns, each once; in quotation marks where one has a comma."""
    names = dict.fromkeys(name for column in columns for name in frame[column])
    return [f"'{name}'" if "," in name else name for name in names]


def notes(frame: DataFrame, runs: Iterable[FinishedRun]) -> list[str]:
    """A line for each of ``runs`` that its row does not count, or that is not whole, and one on several measures."""
    counted = [run for runs in frame["runs"] for run in runs]
    lines = [note for run in runs if (note := _note(run, counted))]
    if frame["test"].nunique() > 1:
        lines.append(f"accuracies are on {tested_on(frame)}: only rows of the same test are compared")
    return lines


def _note(run: FinishedRun, counted: Sequence[FinishedRun]) -> str:
    shown = any(run is other for other in counted)
    if not run.whole:
        what = "shown without a rank" if shown else "left out of its row"
        return f"{run.name}: {len(run.metrics)} of {run.planned} rounds: {what}"
    if shown:
        return ""
    twin = next(other for other in counted if other.seed == run.seed and same(other, run))
    return f"{run.name}: the same recipe, data and seed as {twin.name}: counted once"


def curves(frame: DataFrame) -> dict[str, dict[str, Curve]]:
    """Setting to label of each row to its accuracies."""
    settings: dict[str, dict[str, Curve]] = {}
    for row in frame.to_dict("records"):
        names = settings.setdefault(row["setting"], {})
        for round_, values in row["curve"].items():
            names.setdefault(row["label"], {}).setdefault(round_, []).extend(values)
    return settings


def plot(frame: DataFrame, path: Path, width: float | None = None) -> None:
    """Draw the rows' accuracies over the rounds, see :func:`.plots.compare`."""
    of_clients = frame["test"].nunique() == 1 and frame["test"][0] != NAMED[GLOBAL].name
    tested = frame["test"][0] if of_clients else ""  # of several, names of settings say it
    plots.compare(curves(frame), path, methods=methods(frame), width=width, tested=tested)


def tested_on(frame: DataFrame) -> str:
    """The samples that the rows' accuracy is measured on, in words."""
    return " or on ".join(one.samples for one in MEASURES if (frame["test"] == one.name).any())


def methods(frame: DataFrame) -> dict[str, str]:
    """Label of each row to what its line is coloured by: its method, or another optimiser of plain FedAvg."""
    of_optimizer = (frame["method"] == "fedavg") & (frame["optimizer"] != PLAIN_OPTIMIZER)
    return dict(zip(frame["label"], frame["method"].mask(of_optimizer, frame["optimizer"]), strict=True))
