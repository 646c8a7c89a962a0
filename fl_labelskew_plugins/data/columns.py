"""Columns of a table: read from a CSV or Parquet file, and as texts, numbers or features.

A CSV file is UTF-8 and begins with the columns' names; its separator and its decimal sign are told from its beginning.
Parquet needs pyarrow.
"""

from __future__ import annotations

import csv
import numbers
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from fl_labelskew_registry import LabelSkewError, mistake
from numpy.typing import NDArray
from pydantic import Field

from fl_labelskew_plugins.data.files import fits, one_line, unpacks
from fl_labelskew_plugins.machine import extras
from fl_labelskew_plugins.machine.log import warn
from fl_labelskew_plugins.machine.text import clean, few
from fl_labelskew_plugins.params import Params

if TYPE_CHECKING:
    import pandas as pd

TEXT, PARQUET = (".csv", ".tsv", ".txt"), (".parquet", ".pq")
HEAD = 2**16
"""Letters of a text file that tell its separator and its decimal sign."""
MOST_COLUMNS = 50_000
ROW, CELL = 100, 40
"""Bytes of a row's label, and of one of its other values, from the file to the sample."""
MOST_PACKED = 1000
"""How many times as large as a Parquet file its rows may become, see :func:`.files.unpacks`."""


@contextmanager
def _sound(path: Path) -> Iterator[None]:
    """Turn what goes wrong in reading a file into a LabelSkewError."""
    try:
        yield
    except LabelSkewError:
        raise
    except UnicodeDecodeError as error:
        raise mistake(path, "is not text in UTF-8", "UTF-8, which spreadsheets call CSV UTF-8") from error
    except OSError as error:
        raise LabelSkewError(f"{path}: cannot be read ({error.strerror or one_line(error)})") from error
    except Exception as error:  # pandas and pyarrow raise a dozen types
        use = "a file whose rows are all as long as its first line"
        raise mistake(path, f"is not a sound table ({clean(one_line(error))})", use) from error


def header(path: Path) -> list[str]:
    """The names of a file's columns, in order; of Parquet, without an index that pandas wrote.

    Raises:
        LabelSkewError: the file cannot be read, has too many columns, or one without a name, or two of one name.
    """
    with _sound(path):
        if path.suffix.lower() in PARQUET:
            names = [name for name in _parquet(path).schema_arrow.names if not name.startswith("__index_level_")]
        else:
            with path.open(encoding="utf-8-sig", newline="") as stream:
                names = next(csv.reader(stream, delimiter=_signs(path)[0], skipinitialspace=True), [])
            names = [name.strip() for name in names]
    if not names:
        raise mistake(path, "is empty", "a line with the names of the columns, and a row for each sample")
    if len(names) > MOST_COLUMNS:
        raise mistake(path, f"has {len(names)} columns", f"at most {MOST_COLUMNS}, or an .npz archive (data set npz)")
    if "" in names:
        raise mistake(path, f"column {names.index('') + 1} has no name", "a first line with a name for each column")
    if twice := repeated(names):
        raise mistake(path, f"column {clean(twice[0], 40)} is there twice", "a name of its own for each column")
    return names


def repeated(names: Sequence[str]) -> list[str]:
    """The names that occur more than once."""
    return [name for name, times in Counter(names).items() if times > 1]


def rows(path: Path, columns: Sequence[str]) -> pd.DataFrame:
    """These columns of a file, in their order.

    Raises:
        LabelSkewError: the file cannot be read, or is too large.
    """
    with _sound(path):
        fits(path.stat().st_size, f"data set table: {path}", "its rows", "a smaller table")
        if path.suffix.lower() in PARQUET:
            # without what pandas has noted there: a column may be an index to it
            frame: pd.DataFrame = _checked(path, columns).read(columns=list(columns)).to_pandas(ignore_metadata=True)
        else:
            import pandas as pd

            separator, decimal = _signs(path)
            with warnings.catch_warnings():
                # it would cut rows that are too long; with usecols, without a word
                warnings.simplefilter("error", pd.errors.ParserWarning)
                frame = pd.read_csv(
                    path,
                    sep=separator,
                    decimal=decimal,
                    encoding="utf-8-sig",
                    header=0,
                    names=header(path),
                    index_col=False,
                    skipinitialspace=True,
                    low_memory=False,
                )
        return frame[list(columns)]


def _signs(path: Path) -> tuple[str, str]:
    """Separator and decimal sign of a text file; numbers such as ``1,5`` may be where commas do not separate."""
    with path.open(encoding="utf-8-sig", newline="") as stream:
        head = stream.read(HEAD)
    separator = max(",;\t|", key=head.partition("\n")[0].count)
    return separator, "," if separator != "," and re.search(r"\d,\d", head) else "."


def _parquet(path: Path, texts: Sequence[str] = ()) -> Any:
    """A Parquet file; a text of the columns ``texts`` is in memory once, however many rows have it."""
    parquet = extras.load("parquet", "pyarrow.parquet", what=f"{path}: Parquet", otherwise=", or use a CSV file")
    return parquet.ParquetFile(path, read_dictionary=list(texts))


def _checked(path: Path, columns: Sequence[str]) -> Any:
    """A Parquet file whose columns hold one value in a row, and whose rows fit this machine's memory.

    Raises:
        LabelSkewError: they do not.
    """
    file = _parquet(path)
    metadata, schema = file.metadata, file.schema_arrow
    for name in columns:
        if (kind := schema.field(name).type).num_fields:
            use = "data_args.features without it, or a number made of it"
            raise mistake(path, f"column {clean(name, 40)}: holds several values, of type {clean(kind, 40)}", use)
    stored = [metadata.schema.column(i) for i in range(metadata.num_columns)]
    # a value of fixed length may be stored once and become one for each row
    of_row = ROW + CELL * len(columns) + sum(max(column.length, 0) for column in stored)
    need = metadata.num_rows * of_row + sum(
        metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups)
    )
    unpacks(path, need, "its rows", MOST_PACKED, "fewer rows, or a CSV file")
    wanted = set(columns)
    return _parquet(path, [c.path for c in stored if c.path in wanted and c.physical_type == "BYTE_ARRAY"])


def texts(column: pd.Series[Any]) -> NDArray[np.object_]:
    """A column's values as texts, whole numbers as such; None where there is none. ``(N,)``."""

    def text(value: Any) -> str:
        whole = isinstance(value, float) and value.is_integer()
        return clean(int(value) if whole else value).strip()

    known = column.notna().to_numpy()
    values = [text(value) if there else None for value, there in zip(column.tolist(), known, strict=True)]
    return np.array(values, object)


def ordered(names: NDArray[np.object_]) -> list[str]:
    """The different texts: numbers by their size, else as texts are sorted."""
    different = {name for name in names if name is not None}
    whole = all(re.fullmatch(r"-?\d{1,18}", name) for name in different)
    return sorted(different, key=int) if whole else sorted(different)


def measured(column: pd.Series[Any], where: str) -> NDArray[np.float64] | None:
    """A column's numbers ``(N,)``, NaN where there is none; None where some of it is no number but text.

    Raises:
        LabelSkewError: it holds dates, lists and the like.
    """
    import pandas as pd

    kinds = pd.api.types
    if kinds.is_numeric_dtype(column) and not kinds.is_complex_dtype(column):
        return np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan))
    odd = [value for value in column.dropna().tolist() if not isinstance(value, str | numbers.Real | Decimal)]
    if odd:
        use = "data_args.features without it, or a number made of it"
        raise mistake(where, f"holds {clean(odd[0], 40)}, of type {type(odd[0]).__name__}", use)
    values = pd.to_numeric(column.astype(object), errors="coerce")
    if (column.notna() & values.isna()).any():
        return None
    return np.asarray(values.to_numpy(dtype=np.float64, na_value=np.nan))


class Feature(Params):
    """A column of features, as the training file decides.

    Args:
        name: of the column.
        categories: of one that is no number; empty: it is one.
    """

    name: str
    categories: list[str] = Field([])

    @property
    def shown(self) -> list[str]:
        """What its features are called."""
        name = clean(self.name, 40)
        return [f"{name}={category}" for category in self.categories] or [name]

    def encoded(self, column: pd.Series[Any], where: str) -> NDArray[np.float64]:
        """Its features ``(N, 1)``, or ``(N, categories)``, NaN where a row has no value.

        Raises:
            LabelSkewError: a number is none.
        """
        where = f"{where}: column {clean(self.name, 40)}"
        if not self.categories:
            values = measured(column, where)
            if values is None:
                raise mistake(where, f"holds {no_numbers(column)}, but numbers in training", "numbers")
            if len(bad := np.flatnonzero(np.abs(values) > np.finfo(np.float32).max)):
                raise mistake(where, f"row {bad[0] + 1} is not finite in float32", "finite numbers")
            return values[:, None]
        words, known = texts(column), column.notna().to_numpy()
        encoded: NDArray[np.float64] = (words[:, None] == np.array(self.categories, object)).astype(np.float64)
        encoded[~known] = np.nan
        if others := ordered(words[~encoded.any(axis=1)]):
            warn(
                f"{where}: {few(others)} {'is' if len(others) == 1 else 'are'} not in training; encoded as none of all"
            )
        return encoded


class Encoding(Params):
    """How the rows of a table become samples: those of training, and of further tables that the model is used on.

    Args:
        label: column of the classes.
        group: column of the groups; None: no groups.
        missing: effect of a missing value.
        features: in the order of a sample.
        means: of each number of a sample in training, in place of missing values; empty: not known.
    """

    label: str
    group: str | None
    missing: Literal["refuse", "drop", "mean"]
    features: list[Feature]
    means: list[float] = Field([])

    @property
    def shown(self) -> list[str]:
        """The names of a sample's numbers."""
        return [name for feature in self.features for name in feature.shown]

    def encoded(self, frame: pd.DataFrame, where: str) -> NDArray[np.float32]:
        """Samples ``(N, F)`` of rows, NaN for a missing value.

        Raises:
            LabelSkewError: a value is not a number, but all are in training.
        """
        use = "fewer rows, fewer columns, or fewer categories"
        fits(20 * len(frame) * len(self.shown), where, "its features", use)
        return np.hstack([f.encoded(frame[f.name], where) for f in self.features]).astype(np.float32)


def no_numbers(column: pd.Series[Any]) -> str:
    """The values of a column that are no numbers, in words."""
    import pandas as pd

    values = column[column.notna() & pd.to_numeric(column.astype(object), errors="coerce").isna()]
    return few(ordered(texts(values)), 4)
