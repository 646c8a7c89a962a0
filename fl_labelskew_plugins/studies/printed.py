"""How rows of a report are written: the columns for readers and for machines, and what is marked in them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fl_labelskew_plugins.runs.measure import GLOBAL, NAMED
from fl_labelskew_plugins.studies.report import DIFFERENCE, NAMES, PLAIN_OPTIMIZER

if TYPE_CHECKING:
    from pandas import DataFrame

WORDS = (*NAMES, "differs in", "label", "setting", "test")
"""Columns that hold no numbers."""
FORMS = {
    **dict.fromkeys((*WORDS, "seeds", "unfinished", "rounds"), ""),
    **{"accuracy": ".2f", "accuracy_std": ".2f"},
    **dict(zip(DIFFERENCE, ("+.2f", ".2f", ".2f", ".0f"), strict=True)),
    **{f"{name}{part}": ".2f" for name in ("personalised", "local model", "best") for part in ("", "_std")},
    **{f"{name}{part}": ".2f" for name in ("own tests", "worst client", "spread") for part in ("", "_std")},
    **{"rank": ".0f", "rounds to baseline": ".0f", "speedup": ".2f", "MB up": ".3f", "MB down": ".3f"},
    **{"s/round": ".2f", "peak MB": ".0f", "peak GPU MB": ".0f"},
}
"""Columns of a table, in their order, and how their numbers are written."""
PARTS = {
    **{"unfinished": "seeds", "difference_low": "difference", "difference_high": "difference"},
    **{"speedup": "rounds to baseline", **{name: name.removesuffix("_std") for name in FORMS if "_std" in name}},
}
"""Columns for machines alone, and for readers a part of which other one."""
MEASURES = [name for name in FORMS if name not in WORDS and name not in PARTS]
"""Columns of numbers that a reader may choose."""
BETTER = {"accuracy": 1, "personalised": 1, "best": 1, "worst client": 1, "rounds to baseline": -1}
"""Columns that are compared: 1 where more is better, -1 where less is."""


def numbers(frame: DataFrame, columns: Sequence[str] = ()) -> DataFrame:
    """The columns of :data:`FORMS`, without those in which there is nothing to tell; or the chosen :data:`MEASURES`.

    Names, and the parts of the chosen ones, come along.
    """
    if columns:
        parts = [[column, *(part for part in PARTS if PARTS[part] == column)] for column in columns]
        words = [name for name in WORDS if name != "test" or not _all_global(frame)]
        return frame[[*words, *itertools.chain(*parts)]]
    nothing = {
        "pairs": frame["pairs"].isna().all() or (frame["pairs"].fillna(frame["seeds"]) == frame["seeds"]).all(),
        **dict.fromkeys(DIFFERENCE[:3], frame["difference"].isna().all()),
        "optimizer": (frame["optimizer"] == PLAIN_OPTIMIZER).all(),
        "test": _all_global(frame),
        "personalised": not frame["personal"].any(),
        "local model": frame["personal"].all(),
        **{name: frame[name].isna().all() for name in ("peak GPU MB", "own tests", "worst client", "spread")},
    }
    nothing["own tests"] |= (frame["test"] == NAMED["client_accuracy_mean"].name).all()  # it is the accuracy
    return frame[[name for name in FORMS if not nothing.get(name.removesuffix("_std"))]]


def _all_global(frame: DataFrame) -> bool:
    """Whether all rows are measured on a global test set, as readers expect."""
    return bool((frame["test"] == NAMED[GLOBAL].name).all())


def texts(frame: DataFrame, columns: Sequence[str] = (), *, split: bool = False) -> DataFrame:
    """The table as it is printed: accuracies in per cent over the last tests, mean and std over seeds.

    Rows go by ``label`` as their method, and ``place`` as their partition, which together say all that differs.

    Args:
        frame: from :func:`.report.rows`.
        columns: those of :data:`MEASURES` to print; default: all that tell something.
        split: for machines: mean and std have a column each, and names a column for each part.
    """
    import pandas as pd

    cells = numbers(frame, columns)
    text = pd.DataFrame({name: _formatted(column, FORMS[name]) for name, column in cells.items()}, dtype=object)
    if split:
        return text
    names = pd.DataFrame({"method": frame["label"], "data": frame["data"], "partition": frame["place"]})
    if not _all_global(frame):
        names["test"] = frame["test"]
    for name in [name for name in text if f"{name}_std" in text]:
        std = text[f"{name}_std"]
        text[name] = text[name].where(std == "", text[name] + " ± " + std)
    if "seeds" in text:
        both = (cells["seeds"] + cells["unfinished"]).astype(str)
        text["seeds"] = text["seeds"].where(cells["unfinished"] == 0, text["seeds"] + " of " + both)
    if "rounds to baseline" in text:
        rounds, within = text["rounds to baseline"], _formatted(frame["not within"], ".0f")
        reached = rounds + " (" + text["speedup"] + "x)"
        text["rounds to baseline"] = reached.where(rounds != "", ("> " + within).where(within != "", ""))
    if "difference" in text:
        low, high = cells["difference_low"], cells["difference_high"]
        around = " [" + text["difference_low"] + ", " + text["difference_high"] + "]"
        text["difference"] += around.where(low.notna(), "")
        text["difference"] += (low > 0).map({True: " better", False: ""}) + (high < 0).map({True: " worse", False: ""})
    measures = text[[name for name in text if name in MEASURES]].replace("", "-")
    return pd.concat([names, measures], axis="columns")


def _formatted(column: Any, form: str) -> Any:
    return column.map(lambda value: "" if value != value else format(value, form)).astype(object)  # noqa: PLR0124  # NaN


def marks(frame: DataFrame, columns: Sequence[str] = ()) -> DataFrame:
    """For each row and column of the printed table: 1 for the best of its setting, 2 for the second, 0 for others.

    As printed, so that equal cells are equally good; nothing where a setting has a single value.
    """
    import pandas as pd

    shown = texts(frame, columns)
    split = texts(frame, columns, split=True)
    marked = pd.DataFrame(0, shown.index, shown.columns)
    for name in shown.columns.intersection(list(BETTER)):
        values = BETTER[name] * pd.to_numeric(split[name]).where(frame["whole"])
        of_setting = values.groupby(frame["setting"])
        place = of_setting.rank(method="dense", ascending=False)
        marked[name] = place.where((place <= 2) & (of_setting.transform("count") > 1), 0).astype(int)
    return marked


def pivoted(frame: DataFrame, table: DataFrame, empty: Any) -> DataFrame:
    """A table of these rows with a row for each label and a column for each setting, as papers print it.

    Of whole runs alone, as nothing says there that one is not.

    Args:
        frame: from :func:`.report.rows`.
        table: its :func:`texts`, :func:`marks` or :func:`numbers`; of several measures each setting has all.
        empty: what stands where nothing was run.
    """
    frame, table = frame[frame["whole"]], table[frame["whole"]]
    measures = [name for name in table if name not in WORDS]
    labels, settings = frame["label"].unique(), frame["setting"].unique()
    wide = table[measures].set_index([frame["label"], frame["setting"]])
    wide = wide[~wide.index.duplicated(keep="last")].unstack(fill_value=empty)
    order = [(measure, setting) for setting in settings for measure in measures]
    wide = wide.reindex(index=labels)[order]
    wide.columns = [setting if len(measures) == 1 else f"{setting} {measure}" for measure, setting in order]
    return wide.reset_index(names="method")
