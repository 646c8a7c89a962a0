"""Tables over run folders: runs on the same data that differ only in their seed share a row.

A run that has not all the rounds of its recipe, because it diverged, was stopped or is under way, is left out of a row
that has whole ones; a row without any shows what there is and is compared with nothing.

Rows on the same data and partition are compared with each other: their rank by mean accuracy, and the rounds until they
reach what the baseline reaches at best, as FedMR's table 4 and FedShift's table 2 have it.

pandas is imported once there are rows to count.
"""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from fl_labelskew_plugins.studies.finished import PLACES, Run, flat, grouped, number, read_all, same

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["Run", "curves", "flat", "grouped", "marks", "notes", "number", "read_all", "rows", "same", "texts"]

Curve = dict[int, list[float]]
"""Round, counted from 1, to the accuracy of each seed."""

PLAIN_OPTIMIZER = "FedAvg"
NAMES = {
    "method": ("method_args.method", "?"),
    "optimizer": ("train_args.federated_optimizer", PLAIN_OPTIMIZER),
    "data": ("data_args.dataset", "?"),
    "partition": ("partition_args.partition_method", "?"),
}
"""Column to its key in a recipe, and what stands there without one."""
SCENE = ("data_args.", "partition_args.")
"""What keys that make a setting begin with."""
WORDS = (*NAMES, "differs in")
"""Columns that hold no numbers."""
FORMS = {
    **dict.fromkeys((*WORDS, "seeds", "unfinished", "rounds"), ""),
    **{f"{name}{part}": ".2f" for name in ("accuracy", "personalised", "local model", "best") for part in ("", "_std")},
    **{f"{name}{part}": ".2f" for name in ("own tests", "worst client", "spread") for part in ("", "_std")},
    **{"rank": ".0f", "rounds to baseline": ".0f", "speedup": ".2f", "MB up": ".3f", "MB down": ".3f"},
    **{"s/round": ".2f", "peak MB": ".0f", "peak GPU MB": ".0f"},
}
"""Columns of a table, in their order, and how their numbers are written."""
BETTER = {"accuracy": 1, "personalised": 1, "best": 1, "worst client": 1, "rounds to baseline": -1}
"""Columns that are compared: 1 where more is better, -1 where less is."""


def rows(groups: Sequence[Sequence[Run]], last: int, baseline: str = "fedavg") -> DataFrame:
    """A row for each group: the columns of :data:`FORMS`, NaN where there is nothing, and what they come from.

    - method, optimizer, data, partition: their names; of several methods in a row, with + between them.
    - differs in: the other keys in which rows of the same four names differ; a method's own key in all rows of that
      method and optimiser if in any, so that the same name is the same everywhere.
    - seeds, unfinished: how many have a whole run, and how many have none.
    - rounds: how many its runs have, such as ``20``, or ``3-20`` where some have fewer.
    - accuracy, best: in per cent, over the last tests and of any; mean over the seeds, with ``_std`` sample std.
    - personalised, local model: likewise, of the clients' own models on their own test splits, where the method keeps
      some, and of the models just trained, where it keeps none.
    - own tests, worst client, spread: likewise, of the global model on the clients' own test splits, as far as they are
      known: mean over the clients, the worst of a round, and std over the clients.
    - rank: by mean accuracy among the rows of this setting, from 1; of whole runs alone.
    - rounds to baseline, speedup, not within: the first round, from 1, in which the mean over the seeds reaches the
      baseline's best, and the baseline's in relation to it; or the last round, where that is never.
    - MB up, MB down: MB (10^6 bytes) that all clients of a round send and get; means over the rounds.
    - s/round, peak MB, peak GPU MB: mean over the rounds and seeds; the most that the server's process of any held.
    - setting: what rows share that are compared with each other: data and partition, with their parameters.
    - label: what tells a row from others of its setting: method, another optimiser than FedAvg, other keys.
    - runs, whole, personal: one for each seed, whole ones alone where there are any; whether they are; whether the
      method keeps models of clients.
    - keys, curve, recall: ``section.key`` to value as JSON; accuracies, 0 to 1; of each class, in per cent.

    Args:
        groups: from :func:`grouped`; at least one.
        last: tests that a mean is taken over.
        baseline: the method that others are compared with, under federated_optimizer FedAvg.
    """
    import pandas as pd

    firsts = [group[0] for group in groups]
    recipes = [flat(run.recipe) | place for run, place in zip(firsts, _data(firsts), strict=True)]
    counted = [[run for run in group if run.whole] or list(group) for group in groups]
    names = {name: [_name(recipe.get(key, default)) for recipe in recipes] for name, (key, default) in NAMES.items()}
    frame = pd.DataFrame(
        {
            **names,
            "unfinished": [sum(not run.whole for run in group) for group in groups],
            "whole": [all(run.whole for run in runs) for runs in counted],
            "personal": [any(run.personal for run in runs) for runs in counted],
            "rounds": [_ends([len(run.metrics) for run in runs]) for runs in counted],
            "runs": counted,
            "curve": [_curve(runs) for runs in counted],
            "keys": [{key: json.dumps(value) for key, value in recipe.items()} for recipe in recipes],
        }
    )
    frame["seeds"] = [len(runs) for runs in counted] * frame["whole"]
    _name_what_differs(frame)
    _measure(frame, last)
    _compare(frame, baseline)
    return frame


def _measure(frame: DataFrame, last: int) -> None:
    """Add what the runs have measured: accuracies, recall, and what a round costs."""
    import pandas as pd

    runs = frame["runs"].explode()  # row to run, and so on in what comes of it

    def of_lines(name: str, **columns: str) -> Any:
        lines = runs.map(attrgetter(name)).explode().dropna()
        values = [[number(line, key) for key in columns] for line in lines]
        return pd.DataFrame(values, lines.index, list(columns.values()), dtype=float).groupby(level=0)

    keys = ("accuracy", "personalised_accuracy", *(f"client_accuracy_{part}" for part in ("mean", "worst", "std")))
    results = [(*(run.last(key, last) for key in keys), run.best) for run in runs]
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


def _data(runs: Sequence[Run]) -> list[dict[str, str]]:
    """Of each run a key that tells its data from others under the same settings of data and partition, if need be.

    That is the data's folder, or where a folder had other data at another time, the start of the data's fingerprint.
    """
    known: list[dict[str, str]] = [{} for _ in runs]
    keys = [flat(run.recipe) for run in runs]
    scenes: dict[str, list[int]] = {}
    for i, recipe in enumerate(keys):
        scene = {key: value for key, value in recipe.items() if key.startswith(SCENE)}
        scenes.setdefault(json.dumps(scene, sort_keys=True), []).append(i)
    for near in scenes.values():
        apart = [
            (runs[i].place, runs[j].place)
            for i, j in itertools.combinations(near, 2)
            if keys[i] == keys[j] or (runs[i].data != runs[j].data and None not in (runs[i].data, runs[j].data))
        ]
        for i in near if apart else ():
            run = runs[i]
            place = next(runs[k].place for k in near if k == i or (run.data and runs[k].data == run.data))
            prints = (run.data or run.partition or "unknown")[:8]
            by_place = all(a != b for a, b in apart)
            known[i] = {PLACES[0]: place or "default"} if by_place else {"data_args.fingerprint": prints}
    return known


def _name(value: Any) -> str:
    """A name; of several methods in a row, with + between them."""
    return "+".join(map(str, value)) if isinstance(value, list) else str(value)


def _ends(counts: Sequence[int]) -> str:
    return "-".join(map(str, dict.fromkeys((min(counts), max(counts)))))


def _curve(runs: Iterable[Run]) -> Curve:
    curve: Curve = {}
    for run in runs:
        for line in run.tests:
            curve.setdefault(int(line["round"]) + 1, []).append(float(line["accuracy"]))
    return curve


def _name_what_differs(frame: DataFrame) -> None:
    """Add ``differs in``, ``setting`` and ``label``.

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
    names: dict[str, list[str]] = {"differs in": [], "setting": [], "label": []}
    for n, row in enumerate(frame.to_dict("records")):
        scene = [key for key in row["keys"] if key.startswith(SCENE)]
        differs = [key for key in row["keys"] if (here if key in scene else there).at[n, key]]
        parts = [row["data"]] * several + [row["partition"]]
        parts += [_setting(row, key) for key in scene if in_scene.at[n, key]]
        optimizer = [row["optimizer"]] if row["optimizer"] != PLAIN_OPTIMIZER else []
        label = [row["method"], *optimizer, *(_setting(row, key) for key in differs if key not in scene)]
        names["differs in"].append(", ".join(_setting(row, key) for key in differs))
        names["setting"].append(", ".join(parts))
        names["label"].append(", ".join(label))
    for name, words in names.items():
        frame[name] = words


def all_keys(frame: DataFrame) -> list[str]:
    """``section.key`` of all that any row sets."""
    return list(dict.fromkeys(key for keys in frame["keys"] for key in keys))


def _setting(row: Mapping[str, Any], key: str) -> str:
    return f"{key.partition('.')[2]}={row['keys'][key]}".replace('"', "")


def _compare(frame: DataFrame, baseline: str) -> None:
    """Add ``rank``, and the rounds to the baseline's best.

    FedMR's table 4 and FedShift's table 2 print one whole number a method and do not say how seeds enter; here it is
    the accuracy averaged over the seeds that has to reach the baseline's highest.
    """
    # rounded, since the same seeds in another order sum up to another last digit
    accuracy = frame["accuracy"].where(frame["whole"]).round(9)
    frame["rank"] = accuracy.groupby(frame["setting"]).rank(method="min", ascending=False)
    frame[["rounds to baseline", "speedup", "not within"]] = float("nan")
    means = [
        {r: statistics.fmean(values) for r, values in sorted(curve.items()) if len(values) == len(runs)}
        for curve, runs in zip(frame["curve"], frame["runs"], strict=True)
    ]  # of the rounds that all seeds have tested
    is_baseline = frame["whole"] & (frame["method"] == baseline) & (frame["optimizer"] == PLAIN_OPTIMIZER)
    for row, setting in frame["setting"].items():
        bases = frame.index[is_baseline & (frame["setting"] == setting)]
        base = min(bases, key=lambda other: _apart(frame["keys"][row], frame["keys"][other]), default=None)
        if base is None or not means[base]:
            continue
        target = max(means[base].values())
        first, theirs = (next((r for r, value in means[n].items() if value >= target), None) for n in (row, base))
        if first is None:
            frame.loc[row, "not within"] = max(means[row], default=0)
        else:
            frame.loc[row, ["rounds to baseline", "speedup"]] = first, theirs / first


def _apart(a: Mapping[str, str], b: Mapping[str, str]) -> int:
    """In how many keys beside the method's two rows differ: of several baselines the nearest one counts."""
    keys = {key for key in (*a, *b) if not key.startswith("method_args.")}
    return sum(a.get(key) != b.get(key) for key in keys)


def printed(frame: DataFrame) -> DataFrame:
    """The columns of :data:`FORMS`, without those in which there is nothing to tell."""
    nothing = {
        "optimizer": (frame["optimizer"] == PLAIN_OPTIMIZER).all(),
        "personalised": not frame["personal"].any(),
        "local model": frame["personal"].all(),
        **{name: frame[name].isna().all() for name in ("peak GPU MB", "own tests", "worst client", "spread")},
    }
    return frame[[name for name in FORMS if not nothing.get(name.removesuffix("_std"))]]


def texts(frame: DataFrame, *, split: bool = False) -> DataFrame:
    """The table as it is printed: accuracies in per cent over the last tests, mean and std over seeds.

    With ``split``, mean and std have a column each, for machines.
    """
    import pandas as pd

    numbers = printed(frame)
    text = pd.DataFrame({name: _formatted(column, FORMS[name]) for name, column in numbers.items()}, dtype=object)
    if split:
        return text
    speedup, unfinished = text.pop("speedup"), text.pop("unfinished")
    for name in [name for name in text if f"{name}_std" in text]:
        std = text.pop(f"{name}_std")
        text[name] = text[name].where(std == "", text[name] + " ± " + std)
    text["seeds"] = text["seeds"].where(
        unfinished == "0", text["seeds"] + " of " + (numbers["seeds"] + numbers["unfinished"]).astype(str)
    )
    rounds, within = text["rounds to baseline"], _formatted(frame["not within"], ".0f")
    text["rounds to baseline"] = (rounds + " (" + speedup + "x)").where(
        rounds != "", ("> " + within).where(within != "", "")
    )
    return text.apply(lambda column: column if column.name in WORDS else column.replace("", "-"))


def _formatted(column: Any, form: str) -> Any:
    return column.map(lambda value: "" if value != value else format(value, form)).astype(object)  # noqa: PLR0124  # NaN


def marks(frame: DataFrame) -> DataFrame:
    """For each row and column of the printed table: 1 for the best of its setting, 2 for the second, 0 for others.

    As printed, so that equal cells are equally good; nothing where a setting has a single value.
    """
    import pandas as pd

    shown = texts(frame)
    numbers = texts(frame, split=True)
    marked = pd.DataFrame(0, shown.index, shown.columns)
    for name in shown.columns.intersection(list(BETTER)):
        values = BETTER[name] * pd.to_numeric(numbers[name]).where(frame["whole"])
        of_setting = values.groupby(frame["setting"])
        place = of_setting.rank(method="dense", ascending=False)
        marked[name] = place.where((place <= 2) & (of_setting.transform("count") > 1), 0).astype(int)
    return marked


def notes(frame: DataFrame, runs: Iterable[Run]) -> list[str]:
    """A line for each of ``runs`` that its row does not count, or that is not whole."""
    counted = [run for runs in frame["runs"] for run in runs]
    return [note for run in runs if (note := _note(run, counted))]


def _note(run: Run, counted: Sequence[Run]) -> str:
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


def methods(frame: DataFrame) -> dict[str, str]:
    """Label of each row to what its line is coloured by: its method, or another optimiser of plain FedAvg."""
    of_optimizer = (frame["method"] == "fedavg") & (frame["optimizer"] != PLAIN_OPTIMIZER)
    return dict(zip(frame["label"], frame["method"].mask(of_optimizer, frame["optimizer"]), strict=True))
