"""Tables in CSV or Parquet files; see docs/data.md."""

from __future__ import annotations

import csv
import numbers
import re
import warnings
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from fl_labelskew_registry import Arrays, Data, Dataset, LabelSkewError, mistake
from numpy.typing import NDArray
from pydantic import Field

from fl_labelskew_plugins import seeds
from fl_labelskew_plugins.data.files import fits, gathered, only_file, refuse, unpacks, valid_file
from fl_labelskew_plugins.data.fingerprint import digest
from fl_labelskew_plugins.data.stats import moments
from fl_labelskew_plugins.machine import extras
from fl_labelskew_plugins.machine.files import check_regular, open_regular
from fl_labelskew_plugins.machine.log import warn
from fl_labelskew_plugins.machine.text import clean, counted, few
from fl_labelskew_plugins.params import Params
from fl_labelskew_plugins.partition.base import Indices
from fl_labelskew_plugins.partition.stratified import picked, stratified

if TYPE_CHECKING:
    import pandas as pd

TEXT, PARQUET = (".csv", ".tsv", ".txt"), (".parquet", ".pq")
HEAD = 2**16  # characters from which separator and decimal sign are detected
MAX_COLUMNS = 50_000
VALID_FILE = ("table", "a UTF-8 file (spreadsheets: CSV UTF-8) with as many columns in each row as in its first line")
ROW, CELL = 100, 40  # estimated peak bytes of a row with its label, and of each further value
MAX_PACKED = 1000  # maximum ratio of unpacked to packed bytes
MAX_CATEGORIES = 1000
NOTE = "encoding.json"
FAKE_CLASSES, FAKE_GROUPS, FAKE_FEATURES = ("benign", "malign", "unsure"), ("coast", "north", "south"), 8


def header(path: Path) -> list[str]:
    """Read the column names. Raise LabelSkewError for too many, empty or repeated names."""
    with valid_file(path, *VALID_FILE):
        check_regular(path)
        if path.suffix.lower() in PARQUET:
            # without pandas' index
            names = [name for name in _parquet(path).schema_arrow.names if not name.startswith("__index_level_")]
        else:
            with open(path, encoding="utf-8-sig", newline="", opener=open_regular) as stream:
                names = next(csv.reader(stream, delimiter=_signs(path)[0], skipinitialspace=True), [])
            names = [name.strip() for name in names]
    if not names:
        raise mistake(path, "is empty", "a first line with the column names, and one row per sample")
    if len(names) > MAX_COLUMNS:
        use = f"at most {MAX_COLUMNS} columns, or an .npz archive (data set npz)"
        raise mistake(path, f"has {len(names)} columns", use)
    if "" in names:
        raise mistake(path, f"column {names.index('') + 1} has no name", "a first line with a name for each column")
    if duplicates := repeated(names):
        problem = f"column {clean(duplicates[0], 40)} occurs more than once"
        raise mistake(path, problem, "a different name for each column")
    return names


def repeated(names: Sequence[str]) -> list[str]:
    """List the names that occur several times."""
    return [name for name, times in Counter(names).items() if times > 1]


def rows(path: Path, columns: Sequence[str]) -> pd.DataFrame:
    """Read ``columns``."""
    with valid_file(path, *VALID_FILE):
        fits(path.stat().st_size, f"data set table: {path}", "its rows", "a smaller table")
        if path.suffix.lower() in PARQUET:
            # ignore pandas' metadata: it may declare a column as the index
            frame: pd.DataFrame = _checked(path, columns).read(columns=list(columns)).to_pandas(ignore_metadata=True)
        else:
            import pandas as pd

            separator, decimal = _signs(path)
            with warnings.catch_warnings():
                # otherwise pandas would truncate rows that are too long
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
    """A text file's separator and decimal sign."""
    with open(path, encoding="utf-8-sig", newline="", opener=open_regular) as stream:
        head = stream.read(HEAD)
    separator = max(",;\t|", key=head.partition("\n")[0].count)
    return separator, "," if separator != "," and re.search(r"\d,\d", head) else "."


def _parquet(path: Path, texts: Sequence[str] = ()) -> Any:
    """Open a Parquet file; equal texts in columns ``texts`` share memory."""
    parquet = extras.load("parquet", "pyarrow.parquet", what=f"{path}: Parquet", otherwise=", or use a CSV file")
    return parquet.ParquetFile(path, read_dictionary=list(texts))


def _checked(path: Path, columns: Sequence[str]) -> Any:
    """Open a Parquet file. Raise LabelSkewError for nested columns or too little memory."""
    file = _parquet(path)
    metadata, schema = file.metadata, file.schema_arrow
    for name in columns:
        if (kind := schema.field(name).type).num_fields:
            use = "data_args.features without this column, or a number computed from it"
            raise mistake(path, f"column {clean(name, 40)}: contains nested values of type {clean(kind, 40)}", use)
    stored = [metadata.schema.column(i) for i in range(metadata.num_columns)]
    # a repeated value of fixed length may be stored once, but takes its length in memory for each row
    row_bytes = ROW + CELL * len(columns) + sum(max(column.length, 0) for column in stored)
    group_bytes = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
    unpacks(path, metadata.num_rows * row_bytes + group_bytes, "its rows", MAX_PACKED, "fewer rows, or a CSV file")
    texts = {column.path for column in stored if column.physical_type == "BYTE_ARRAY"}
    return _parquet(path, [name for name in columns if name in texts])


def texts(column: pd.Series[Any]) -> NDArray[np.object_]:
    """Convert values to texts ``(N,)``, integers without a decimal point; None if missing."""

    def text(value: Any) -> str:
        whole = isinstance(value, float) and value.is_integer()
        return clean(int(value) if whole else value).strip()

    pairs = zip(column.tolist(), column.notna(), strict=True)
    return np.array([text(value) if known else None for value, known in pairs], object)


def ordered(names: NDArray[np.object_]) -> list[str]:
    """Distinct texts, sorted by value if all are integers."""
    different = {*names} - {None}
    whole = all(re.fullmatch(r"-?\d{1,18}", name) for name in different)
    return sorted(different, key=int) if whole else sorted(different)


def parse_numbers(column: pd.Series[Any], where: str) -> NDArray[np.float64] | None:
    """Parse numbers ``(N,)``, NaN if missing; None for text. Raise LabelSkewError for other types."""
    import pandas as pd

    kinds = pd.api.types
    if kinds.is_numeric_dtype(column) and not kinds.is_complex_dtype(column):
        return np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan))
    odd = [value for value in column.dropna().tolist() if not isinstance(value, str | numbers.Real | Decimal)]
    if odd:
        use = "data_args.features without this column, or a number computed from it"
        raise mistake(where, f"contains {clean(odd[0], 40)}, of type {type(odd[0]).__name__}", use)
    values = pd.to_numeric(column.astype(object), errors="coerce")
    if (column.notna() & values.isna()).any():
        return None
    return np.asarray(values.to_numpy(dtype=np.float64, na_value=np.nan))


class Feature(Params):
    """A feature column of the training file; ``categories`` is empty for numbers."""

    name: str
    categories: list[str] = Field([])

    @property
    def shown(self) -> list[str]:
        name = clean(self.name, 40)
        return [f"{name}={category}" for category in self.categories] or [name]

    def encoded(self, column: pd.Series[Any], where: str) -> NDArray[np.float64]:
        """Features ``(N, 1)`` or ``(N, categories)``, NaN if missing. Raise LabelSkewError for invalid numbers."""
        where = f"{where}: column {clean(self.name, 40)}"
        if not self.categories:
            values = parse_numbers(column, where)
            if values is None:
                raise mistake(where, f"contains text ({non_numeric(column)}), but was numeric in training", "numbers")
            if len(bad := np.flatnonzero(np.abs(values) > np.finfo(np.float32).max)):
                raise mistake(where, f"row {bad[0] + 1} is not finite in float32", "finite numbers")
            return values[:, None]
        words, known = texts(column), column.notna().to_numpy()
        encoded: NDArray[np.float64] = (words[:, None] == np.array(self.categories, object)).astype(np.float64)
        encoded[~known] = np.nan
        if others := ordered(words[~encoded.any(axis=1)]):
            verb = "does" if len(others) == 1 else "do"
            zeros = "in these rows, the features of all categories are 0"
            warn(f"{where}: {few(others)} {verb} not occur in training; {zeros}")
        return encoded


class Encoding(Params):
    """Encoding of rows as samples. ``means`` ``(F,)`` of training replace missing values; empty if unknown."""

    label: str
    group: str | None
    missing: Literal["refuse", "drop", "mean"]
    features: list[Feature]
    means: list[float] = Field([])

    @property
    def shown(self) -> list[str]:
        return [name for feature in self.features for name in feature.shown]

    def encoded(self, frame: pd.DataFrame, where: str) -> NDArray[np.float32]:
        """Samples ``(N, F)``, NaN for missing values. Raise LabelSkewError for invalid numbers."""
        use = "fewer rows, fewer columns, or fewer categories"
        fits(20 * len(frame) * len(self.shown), where, "its features", use)
        return np.hstack([f.encoded(frame[f.name], where) for f in self.features]).astype(np.float32)


def non_numeric(column: pd.Series[Any]) -> str:
    """List some values that are not numbers."""
    import pandas as pd

    values = column[column.notna() & pd.to_numeric(column.astype(object), errors="coerce").isna()]
    return few(ordered(texts(values)), 4)


def _numbered(names: NDArray[np.object_], order: Sequence[str]) -> Indices:
    """Indices ``(N,)`` of names in ``order``."""
    number = {name: i for i, name in enumerate(order)}
    return np.array([number[name] for name in names], np.int64)


def _means(train: NDArray[np.float32], names: Sequence[str], path: Path) -> list[float]:
    """Each feature's mean ``(F,)``, ignoring NaN."""
    if len(empty := np.flatnonzero(np.isnan(train).all(axis=0))):
        use = "data_args.features without this column"
        raise mistake(f"{path}: column {names[empty[0]]}", "has no value in the training part", use)
    means: list[float] = np.nanmean(train, axis=0, dtype=np.float64).tolist()
    return means


def _fill(x: NDArray[np.float32], encoding: Encoding, path: Path | str) -> None:
    """Replace NaN in samples ``(N, F)`` by means, in place."""
    missing = np.isnan(x)
    if missing.any():
        if not encoding.means:
            raise mistake(path, "has missing values, but the model file has no training means", "complete rows")
        x[missing] = np.broadcast_to(encoding.means, x.shape)[missing]


class Table(Dataset):
    """A user's own table; samples are ``(F,)`` float32, each feature normalised separately."""

    encoding: Encoding | None = None  # of a trained model; default: determined by the training file
    measured = True  # mean and std are those of the samples

    class Params(Params):
        file: str | None = Field(None, description="File name in data_cache_dir; default: the only table there.")
        test_file: str | None = Field(
            None, description="File name of the test part, in the same folder; default: the test part is split off."
        )
        label: str = Field("label", description="Column of the classes: names or integers.")
        class_names: tuple[str, ...] | None = Field(
            None, min_length=1, description="All classes in order; default: those of the training file, sorted."
        )
        features: tuple[str, ...] | None = Field(
            None, min_length=1, description="Columns that the network gets, in order; default: all other columns."
        )
        group: str | None = Field(None, description="Column of the groups, such as hospitals; default: no groups.")
        categorical: Literal["refuse", "one_hot"] | dict[str, Annotated[list[str], Field(min_length=1)]] = Field(
            "refuse",
            description="Treatment of text features: refuse; one_hot: a feature per category in training; or a mapping "
            "from column to its list of categories, required across silos.",
        )
        missing: Literal["refuse", "drop", "mean"] = Field(
            "refuse",
            description="Treatment of missing values: refuse, drop the row, or replace the value by the feature's mean "
            "in training.",
        )
        test_fraction: float = Field(
            0.2, gt=0, lt=1, description="Without test_file: part of each class and group to use as the test part."
        )

    def paths(self, data_dir: Path | None) -> list[Path]:
        options, endings = self.params, [*TEXT, *PARQUET]
        paths = [only_file(data_dir, options.file, endings, "table")]
        if options.test_file is not None:
            paths.append(only_file(paths[0].parent, options.test_file, endings, "table"))
        for path in paths:
            if path.suffix.lower() not in endings:
                raise mistake("data set table", f"{path} is not a table", f"a file that ends in {few(endings)}")
        if len(paths) == 2 and paths[0] == paths[1]:
            raise mistake(
                "data_args.test_file", f"{paths[1]} is also the training file (data_args.file)", "two different files"
            )
        return paths

    def check(self, data_dir: Path | None, *, download: bool) -> None:
        self.paths(data_dir)

    def check_test(self, data_dir: Path | None, *, download: bool) -> None:
        if self._only_test_file(data_dir) is None:
            self.paths(data_dir)

    def splits_off(self, data_dir: Path | None) -> bool:
        return self.params.test_file is None

    def _only_test_file(self, data_dir: Path | None) -> Path | None:
        """The test file if the training file is missing."""
        if self.params.test_file is not None:
            try:
                self.paths(data_dir)
            except LabelSkewError:
                return only_file(data_dir, self.params.test_file, [*TEXT, *PARQUET], "table")
        return None

    def columns(self, path: Path) -> list[str]:
        options, available = self.params, header(path)
        grouped = options.group is not None and (self.encoding is None or options.group in available)
        special = [options.label, *([options.group] if grouped else [])]
        features = [name for name in available if name not in special] if options.features is None else options.features
        named = {"label": special[:1], "group": special[1:], "features": features}
        if isinstance(options.categorical, dict):
            named["categorical"] = list(options.categorical)
        known = set(available)
        for key, names in named.items():
            if missing := [name for name in names if name not in known]:
                lacks = f"{path} has no column {few(missing, 20)}"
                raise mistake(f"data_args.{key}", lacks, f"one of {few(available, 20)}")
        if not features:
            raise mistake(path, f"has only the column {few(special)}", "a column for each feature")
        columns = [*special, *features]
        if duplicates := repeated(columns):
            use = "it only once: as label, group or feature"
            raise mistake("data_args", f"column {clean(duplicates[0], 40)} is named twice", use)
        return columns

    def load(self, data_dir: Path | None, *, download: bool, seed: int) -> Data:
        return self._read(self.paths(data_dir), seed)

    def load_all(self, data_dir: Path | None, *, download: bool, seed: int) -> Data:
        return self._read(self.paths(data_dir), None if self.params.test_file is None else seed)

    def load_test(self, data_dir: Path | None, *, download: bool, seed: int) -> Data:
        path = self._only_test_file(data_dir)
        if path is None:
            return super().load_test(data_dir, download=download, seed=seed)
        return self._read([path], None)

    def _read(self, paths: Sequence[Path], seed: int | None) -> Data:
        """Read the files; with ``seed`` None, a single file is the test part."""
        columns = self.columns(paths[0])
        for path in paths[1:]:
            available = set(header(path))
            if missing := [name for name in columns if name not in available]:
                lacks = f"has no column {clean(missing[0], 40)}, unlike {paths[0].name}"
                raise mistake(path, lacks, "the same columns in both files")
        frames = [self._complete(rows(path, columns), path) for path in paths]
        wrong: list[str] = []
        with gathered(wrong):
            encoding = self.encoding or self._encoding(frames[0], paths[0])
        with gathered(wrong):
            names, labels = self._classes(frames, paths)
        refuse(wrong)
        groups, of_groups = self._groups(frames)
        parts = [
            Arrays(encoding.encoded(frame, str(path)), y, group)
            for frame, path, y, group in zip(frames, paths, labels, of_groups, strict=True)
        ]
        fingerprint, train, test = digest(parts, names), parts[0], parts[-1]
        if len(parts) == 1 and seed is not None:
            fraction = self.params.test_fraction
            drawn = stratified(train.y, train.groups, test_fraction=fraction, seed=seed, where=str(paths[0]))
            train, test = (picked(train, part) for part in drawn)
        if self.encoding is None:
            encoding = encoding.model_copy(update={"means": _means(train.x, encoding.shown, paths[0])})
        for part in (train, test):
            _fill(part.x, encoding, paths[0])
        mean, std = moments(train.x)
        if seed is None:
            train = picked(train, np.zeros(0, np.int64))
        notes = {"features.txt": "".join(f"{name}\n" for name in encoding.shown)}
        notes[NOTE] = encoding.model_dump_json(indent=1) + "\n"
        return Data(train, test, names, mean, std, notes, fingerprint, groups)

    def declared(self) -> Encoding | None:
        """The encoding without means, if the recipe determines it, else None."""
        options = self.params
        if options.features is None or options.categorical == "one_hot":
            return None
        categories = {} if options.categorical == "refuse" else options.categorical
        features = [Feature(name=name, categories=categories.get(name, [])) for name in options.features]
        return Encoding(label=options.label, group=options.group, missing=options.missing, features=features)

    def samples(self, table: Path | pd.DataFrame, where: str) -> tuple[Indices, NDArray[np.float32]]:
        """Row numbers ``(N,)``, from 0, and samples ``(N, F)`` in a trained model's ``encoding``."""
        assert self.encoding is not None
        names = [feature.name for feature in self.encoding.features]
        available = header(table) if isinstance(table, Path) else list(table.columns)
        known, used = set(available), {self.params.label, self.params.group, *names}
        if missing := [name for name in names if name not in known]:
            raise mistake(where, f"has no column {few(missing)}", f"a table with the columns {few(names, 40)}")
        if unused := [name for name in available if name not in used]:
            warn(f"{where}: the model does not use {'column' if len(unused) == 1 else 'columns'} {few(unused)}")
        frame = (rows(table, names) if isinstance(table, Path) else table[names]).reset_index(drop=True)
        frame = self._complete(frame, where)
        x = self.encoding.encoded(frame, where)
        _fill(x, self.encoding, where)
        return frame.index.to_numpy(), x

    def _complete(self, frame: pd.DataFrame, path: Path | str) -> pd.DataFrame:
        """Drop rows with missing values if ``missing`` allows it, else raise LabelSkewError."""
        options = self.params
        needed = [name for name in (options.label, options.group) if name in frame]
        lacking = (frame[needed] if options.missing == "mean" else frame).isna()
        incomplete = lacking.any(axis=1)
        if len(frame) and not incomplete.any():
            return frame
        if incomplete.all():
            if not len(frame):
                raise mistake(path, "has no rows", "a file with one row per sample")
            problem = f"has no complete row; most values of column {clean(lacking.sum().idxmax(), 40)} are missing"
            raise mistake(path, problem, "data_args.missing: mean, or data_args.features without this column")
        if options.missing == "drop":
            warn(f"{path}: dropped {counted(int(incomplete.sum()), 'row')} of {len(frame)} with missing values")
            return frame[~incomplete]
        first, *others = [name for name in lacking if lacking[name].any()]
        count, row = counted(int(lacking[first].sum()), "row"), int(lacking[first].to_numpy().argmax()) + 1
        more = f"; values are also missing in {few(others)}" if others else ""
        use = "data_args.missing: drop" + ("" if first in needed else " or mean")
        problem = f"has no value in {count} of {len(frame)}, first in row {row}{more}"
        raise mistake(f"{path}: column {clean(first, 40)}", problem, use)

    def _encoding(self, frame: pd.DataFrame, path: Path) -> Encoding:
        wrong: list[str] = []
        options, features = self.params, []
        for name in frame.columns[1 if options.group is None else 2 :]:
            with gathered(wrong):
                categories = self._categories(frame[name], f"{path}: column {clean(name, 40)}")
                features.append(Feature(name=name, categories=categories))
        refuse(wrong)
        return Encoding(label=options.label, group=options.group, missing=options.missing, features=features)

    def _categories(self, column: pd.Series[Any], where: str) -> list[str]:
        """A feature's categories. Raise LabelSkewError for text that ``categorical`` forbids."""
        categorical = self.params.categorical
        categories: Sequence[str] = ()
        if isinstance(categorical, dict) and column.name in categorical:
            categories = categorical[str(column.name)]
            if unknown := [text for text in ordered(texts(column)) if text not in categories]:
                problem = f"contains {few(unknown)}, which data_args.categorical omits"
                raise mistake(where, problem, f"one of {few(categories)}")
        elif parse_numbers(column, where) is None:
            if categorical != "one_hot":
                use = "data_args.categorical: one_hot, or data_args.features without this column"
                raise mistake(where, f"contains text ({non_numeric(column)}); expected numbers", use)
            categories = ordered(texts(column))
        if len(categories) > MAX_CATEGORIES:
            raise mistake(where, f"has {len(categories)} categories", "data_args.features without this column")
        return list(categories)

    def _classes(self, frames: Sequence[pd.DataFrame], paths: Sequence[Path]) -> tuple[list[str], list[Indices]]:
        """All classes, and labels ``(N,)`` per file."""
        label, given, labels = self.params.label, self.params.class_names, []
        names = list(given or ordered(texts(frames[0][label])))
        if given is None and not 1 < len(names) <= MAX_CATEGORIES:
            held = f"has only the class {names[0]}" if len(names) == 1 else f"has {len(names)} different values"
            use = "data_args.class_names with all classes" if len(names) == 1 else "a column of classes"
            raise mistake(f"{paths[0]}: column {clean(label, 40)}", held, use)
        for frame, path in zip(frames, paths, strict=True):
            where = f"{path}: column {clean(label, 40)}"
            values = parse_numbers(frame[label], where)
            if values is not None and len(parts := values[values % 1 != 0]):
                raise mistake(where, f"contains {parts[0]:g}, which is not a class", "names or integers")
            of_rows = texts(frame[label])
            if unknown := [name for name in ordered(of_rows) if name not in names]:
                use = "data_args.class_names with all classes" if given else "only classes of the training part"
                use = use if self.encoding is None else "only rows of the model's classes"
                raise mistake(where, f"contains {few(unknown)}; the classes are {few(names)}", use)
            labels.append(_numbered(of_rows, names))
        return names, labels

    def _groups(self, frames: Sequence[pd.DataFrame]) -> tuple[list[str], list[Indices | None]]:
        if self.params.group not in frames[0]:
            return [], [None] * len(frames)
        columns = [texts(frame[self.params.group]) for frame in frames]
        names = ordered(np.concatenate(columns))
        return names, [_numbered(column, names) for column in columns]

    def fake(self, out: Path, *, samples: int | None, seed: int) -> None:
        import pandas as pd

        options, rng, number = self.params, seeds.numpy_generator(seed, "fake table"), samples or 300
        names = options.class_names or FAKE_CLASSES
        features = options.features or [f"feature {i}" for i in range(1, FAKE_FEATURES + 1)]
        if number < 20 * len(names):
            raise mistake(f"--samples {number}", f"too few for {len(names)} classes", f"at least {20 * len(names)}")
        labels, i = rng.integers(len(names), size=number), np.arange(number)
        centres = rng.normal(0, 1.5, (len(names), len(features)))
        values = (centres[labels] + rng.normal(0, 1, (number, len(features)))).round(3)
        frame = pd.DataFrame(values, columns=[*features])
        if options.group is not None:
            frame[options.group] = np.array(FAKE_GROUPS)[np.where(i % 4, labels, i // 4) % len(FAKE_GROUPS)]
        frame[options.label] = np.array(names)[labels]
        out.mkdir(parents=True, exist_ok=True)
        frame.to_csv(out / "table.csv", index=False)
