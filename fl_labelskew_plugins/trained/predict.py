"""Predictions as rows and in files."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from fl_labelskew_registry import LabelSkewError, MistakesError

from fl_labelskew_plugins.machine import extras
from fl_labelskew_plugins.machine.files import replacing
from fl_labelskew_plugins.machine.text import clean, csv_cell
from fl_labelskew_plugins.trained import inputs
from fl_labelskew_plugins.trained.network import Trained

if TYPE_CHECKING:
    import pandas as pd

PredictionRow = list[str | float]
Write = Callable[[list[PredictionRow]], None]
FORMATS = (".csv", ".jsonl", ".parquet")


def columns(top: int) -> list[str]:
    """The header of :func:`rows`."""
    further = [f"{name}_{rank}" for rank in range(2, top + 1) for name in ("class", "probability")]
    return ["file", "class", "probability", *further]


def rows(trained: Trained, batches: Iterable[inputs.InputBatch], top: int) -> Iterator[list[PredictionRow]]:
    """The rows of each batch; raises LabelSkewError if samples or ``top`` do not fit."""
    names = trained.about.class_names
    if not 1 <= top <= len(names):
        raise LabelSkewError(f"--top {top}: the model has {len(names)} classes; allowed: 1 to {len(names)}")
    for batch in batches:
        best = torch.softmax(trained.logits(batch.samples), 1).topk(top)
        yield [
            [name, *(cell for c, p in zip(classes, chances, strict=True) for cell in (names[c], p))]
            for name, classes, chances in zip(batch.names, best.indices.tolist(), best.values.tolist(), strict=True)
        ]


def frame(trained: Trained, x: Any, *, top: int, batch_size: int) -> pd.DataFrame:
    """Predictions for an array or tensor ``(N, ...)``, a table by its index, or files; raises as :func:`rows`."""
    import pandas as pd

    paths = [x] if isinstance(x, str | Path) else x if isinstance(x, list | tuple) else ()
    of_files, unreadable = bool(paths) and all(isinstance(path, str | Path) for path in paths), list[str]()
    index = None
    if of_files:
        batches = inputs.batches(trained, inputs.listed([Path(path) for path in paths]), batch_size, unreadable)
    elif isinstance(x, pd.DataFrame) and trained.about.dataset == "table":
        numbers, samples = inputs.table_of(trained).samples(x, "x")
        batches, index = inputs.cut(samples, batch_size, "x"), x.index[numbers]
    else:
        array = np.asarray(x.detach().cpu() if isinstance(x, torch.Tensor) else x)
        batches = inputs.cut(inputs.fitted(trained.about, array, "x"), batch_size, "x")
    result = pd.DataFrame([row for some in rows(trained, batches, top) for row in some], columns=columns(top))
    if unreadable:
        raise MistakesError(unreadable)
    if of_files:
        return result.set_index("file")
    result = result.drop(columns="file")
    return result if index is None else result.set_index(index)


@contextmanager
def writer(out: Path, head: Sequence[str]) -> Iterator[Write]:
    """A writer of rows; raises LabelSkewError for an unknown suffix."""
    suffix = out.suffix.lower()
    if suffix not in FORMATS:
        raise LabelSkewError(f"--out {clean(out, 4096)}: unknown format; allowed: a name with {', '.join(FORMATS)}")
    if suffix == ".parquet":
        what = f"--out {clean(out, 4096)}:"
        pq = extras.load("parquet", "pyarrow.parquet", what=what, otherwise=", or use --out FILE.csv")
        import pyarrow as pa

        kinds: list[Any] = [pa.float64() if name.startswith("probability") else pa.string() for name in head]
        schema = pa.schema(list(zip(head, kinds, strict=True)))
        with replacing(out) as part, pq.ParquetWriter(part, schema) as table:
            yield lambda some: table.write_table(
                pa.Table.from_pylist([dict(zip(head, row, strict=True)) for row in some], schema)
            )
        return
    with replacing(out) as part, part.open("w", encoding="utf-8", newline="") as stream:
        if suffix == ".csv":
            rows_of_file = csv.writer(stream, lineterminator="\n")
            rows_of_file.writerow(head)
            yield lambda some: rows_of_file.writerows([*map(csv_cell, row)] for row in some)
        else:
            yield lambda some: stream.writelines(json.dumps(dict(zip(head, row, strict=True))) + "\n" for row in some)
