"""``labelskew predict``: what a trained model says of pictures and arrays."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path

import click
from fl_labelskew_registry import RunError

from fl_labelskew_plugins.cli import table
from fl_labelskew_plugins.cli.exits import guarded, writing
from fl_labelskew_plugins.cli.options import BEST, CLIENT, FILE, MODEL, NETWORK, PATH
from fl_labelskew_plugins.machine.text import counted


@click.command("predict")
@MODEL
@click.argument("inputs", metavar="INPUT...", nargs=-1, required=True, type=PATH)
@click.option("--out", type=FILE, metavar="FILE", help="Write the rows to FILE.csv, FILE.jsonl or FILE.parquet.")
@click.option("--top", type=click.IntRange(1), default=1, show_default=True, metavar="K", help="Classes of each row.")
@click.option(
    "--batch-size", type=click.IntRange(1), default=64, show_default=True, metavar="N", help="Samples at a time."
)
@BEST
@CLIENT
@NETWORK
@guarded
def predict_command(
    place: Path,
    inputs: tuple[Path, ...],
    out: Path | None,
    top: int,
    batch_size: int,
    *,
    best: bool,
    client: str | None,
    network: str | None,
) -> None:
    """Have a trained model predict the class of every INPUT: pictures, folders of pictures, or .npz files with x.

    RUN is the folder of a run, or a model's .safetensors file. There is a row for each picture and each sample of an
    array, with its file, class and probability; without --out it is printed, as a table at a terminal and as CSV
    elsewhere. Files that cannot be read are listed at the end, and the command then ends with 1.
    """
    from rich.console import Console
    from rich.progress import Progress

    from fl_labelskew_plugins.trained import inputs as files
    from fl_labelskew_plugins.trained import predict
    from fl_labelskew_plugins.trained.network import file_of, load

    trained = load(file_of(place, best=best, client=client), code=network)
    listed = files.listed(inputs)
    head, done = predict.columns(top), 0
    shown: list[predict.Row] = []
    unreadable: list[str] = []
    console = Console(stderr=True)
    with (
        nullcontext() if out is None else writing(out),
        nullcontext(shown.extend) if out is None else predict.writer(out, head) as write,
        Progress(console=console, disable=not console.is_terminal, transient=True) as progress,
    ):
        arrays = any(file.suffix.lower() == ".npz" for file in listed)
        task = progress.add_task("predicting", total=None if arrays else len(listed))
        for some in predict.rows(trained, files.batches(trained, listed, batch_size, unreadable), top):
            write(some)
            done += len(some)
            progress.update(task, completed=done + len(unreadable))
    if out is None:
        cells = [[cell if isinstance(cell, str) else f"{cell:.4f}" for cell in row] for row in shown]
        click.echo((table.plain if sys.stdout.isatty() else table.comma_separated)(head, cells))
    else:
        click.echo(f"written: {out}, {counted(done, 'row')}")
    for line in unreadable:
        click.echo(line, err=True)
    if unreadable:
        raise RunError(f"{counted(len(unreadable), 'file')} of {len(listed)} could not be read")
