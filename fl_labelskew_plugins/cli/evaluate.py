from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fl_labelskew_plugins.cli import table
from fl_labelskew_plugins.cli.options import DATA_SET, FOLDER, PATH, data_settings, trained_model
from fl_labelskew_plugins.machine.files import write_text, writing
from fl_labelskew_plugins.machine.text import counted, percent

if TYPE_CHECKING:
    from fl_labelskew_plugins.trained.evaluate import TestedPart
    from fl_labelskew_plugins.trained.network import Trained

MAX_CLASSES = 20


@click.command("evaluate")
@trained_model
@click.argument("data", metavar="DATA", type=PATH)
@click.option(
    "--part",
    type=click.Choice(["all", "test"]),
    help="Samples to test on.  [default: test if DATA has a test part or the run was trained on DATA, else all]",
)
@DATA_SET
@click.option("--out", type=FOLDER, metavar="DIR", help="Also write confusion.png and evaluation.json there.")
@click.option("--json", "as_json", is_flag=True, help="Print all measures as JSON; shares between 0 and 1.")
def evaluate_command(
    trained: Trained,
    data: Path,
    part: TestedPart | None,
    overrides: tuple[str, ...],
    out: Path | None,
    *,
    as_json: bool,
) -> None:
    """Test a trained model on DATA, which has the layout of the training data.

    RUN is the folder of a run, or a model's .safetensors file; DATA is a value of data_args.data_cache_dir. The output
    has accuracy, balanced accuracy and macro F1 in per cent, recall and precision of each class, the confusion matrix
    and, if samples belong to groups such as hospitals, the measures of each group.
    """
    from fl_labelskew_plugins.trained.evaluate import evaluate

    result = evaluate(trained, data, part, data_settings(overrides))
    click.echo(json.dumps(result, indent=2) if as_json else "\n\n".join(_parts(result)))
    if out is not None:
        from fl_labelskew_plugins.plots import confusion

        with writing(out):
            out.mkdir(parents=True, exist_ok=True)
            write_text(out / "evaluation.json", json.dumps(result, indent=2) + "\n")
            names = [row["class"] for row in result["classes"]]
            title = f"accuracy {percent(result['accuracy'])} %, {counted(result['samples'], 'test sample')}"
            confusion(result["confusion"], names, out / "confusion.png", title=title)
        if not as_json:
            click.echo(f"written: {out / 'confusion.png'} and {out / 'evaluation.json'}")


def _parts(result: dict[str, Any]) -> list[str]:
    measures = ("accuracy", "balanced_accuracy", "macro_f1")
    heads = ["accuracy", "balanced", "macro F1"]
    owner = "global model" if result["client"] is None else f"model of client {result['client']}"
    number, total = result["samples"], result["total"]
    if result["part"] == "all":
        tested = f"all {counted(number, 'sample')} of {result['data']}"
    else:
        count = counted(number, "sample") if total is None else f"{number} of {counted(total, 'sample')}"
        tested = f"the test part of {result['data']}: {count}"
    lines = [f"{owner} after round {result['round']}", f"tested on {tested}"]
    lines += [f"note: {result['note']}"] if result["note"] else []
    parts = ["\n".join(lines) + "\n\n" + table.plain(heads, [[percent(result[key]) for key in measures]])]
    classes, groups = result["classes"], result["groups"]
    rows = [[row["class"], str(row["samples"]), percent(row["recall"]), percent(row["precision"])] for row in classes]
    parts.append(table.plain(["class", "samples", "recall", "precision"], rows))
    if groups:
        rows = [[row["group"], str(row["samples"]), *(percent(row[key]) for key in measures)] for row in groups]
        parts.append(table.plain(["group", "samples", *heads], rows))
    if len(classes) <= MAX_CLASSES:
        names = [row["class"] for row in classes]
        cells = [[name, *map(str, counts)] for name, counts in zip(names, result["confusion"], strict=True)]
        parts.append("rows: true classes; columns: predicted classes\n" + table.plain(["", *names], cells))
    return parts
