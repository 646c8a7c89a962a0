from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click
from fl_labelskew_registry import RunError

from fl_labelskew_plugins.cli import table
from fl_labelskew_plugins.cli.options import DATA_SET, FILE, PATH, data_settings, trained_model
from fl_labelskew_plugins.machine.files import writing
from fl_labelskew_plugins.machine.text import comma_separated, counted

if TYPE_CHECKING:
    from fl_labelskew_plugins.trained.network import Trained


@click.command("predict")
@trained_model
@click.argument("inputs", metavar="INPUT...", nargs=-1, required=True, type=PATH)
@click.option("--out", type=FILE, metavar="FILE", help="Write the rows to FILE.csv, FILE.jsonl or FILE.parquet.")
@click.option("--top", type=click.IntRange(1), default=1, show_default=True, metavar="K", help="Classes per row.")
@click.option("--batch-size", type=click.IntRange(1), default=64, show_default=True, metavar="N", help="Batch size.")
@DATA_SET
def predict_command(
    trained: Trained, inputs: tuple[Path, ...], out: Path | None, top: int, batch_size: int, overrides: tuple[str, ...]
) -> None:
    """Predict the class of pictures, of rows of a CSV or Parquet table, or of samples in an .npz file.

    RUN is the folder of a run, or a model's .safetensors file. INPUT is a picture, a folder of pictures, a table with
    the columns of training (the column of classes is optional), or an .npz file with x. The output has a row per
    sample with its file, class and probability; without --out it is printed, as a table in a terminal and otherwise as
    CSV. Files that cannot be read are listed at the end, and the exit code is then 1.
    """
    from rich.console import Console
    from rich.progress import Progress

    from fl_labelskew_plugins.trained import inputs as files
    from fl_labelskew_plugins.trained import predict

    listed = files.listed(inputs)
    head, done = predict.columns(top), 0
    printed: list[predict.PredictionRow] = []
    unreadable: list[str] = []
    console = Console(stderr=True)
    with (
        nullcontext() if out is None else writing(out),
        nullcontext(printed.extend) if out is None else predict.writer(out, head) as write,
        Progress(console=console, disable=not console.is_terminal, transient=True) as progress,
    ):
        task = progress.add_task("predicting", total=None if any(map(files.holds_many, listed)) else len(listed))
        batches = files.batches(trained, listed, batch_size, unreadable, data_settings(overrides))
        for batch in predict.rows(trained, batches, top):
            write(batch)
            done += len(batch)
            progress.update(task, completed=done + len(unreadable))
    if out is None:
        cells = [[cell if isinstance(cell, str) else f"{cell:.4f}" for cell in row] for row in printed]
        click.echo(_table(head, cells) if sys.stdout.isatty() else comma_separated(head, cells))
    else:
        click.echo(f"written: {out}, {counted(done, 'row')}")
    for line in unreadable:
        click.echo(line, err=True)
    if unreadable:
        raise RunError(f"{counted(len(unreadable), 'file')} of {len(listed)} could not be read")


def _table(head: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    folder = os.path.dirname(os.path.commonprefix([row[0] for row in cells]))  # noqa: RUF071  # dirname cuts the rest
    rows = [[os.path.relpath(file, folder) if folder else file, *row] for file, *row in cells]
    text = table.plain([name.replace("probability", "prob") for name in head], rows)
    return f"files in {folder}\n\n{text}" if folder else text
