from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from fl_labelskew_plugins.cli.options import FILE, trained_model
from fl_labelskew_plugins.machine.files import writing

if TYPE_CHECKING:
    from fl_labelskew_plugins.trained.network import Trained


@click.command("export")
@trained_model
@click.option(
    "--format", "form", required=True, type=click.Choice(["onnx", "pt2"]), help="ONNX, or torch.export's own format."
)
@click.option("--out", required=True, type=FILE, metavar="FILE", help="The file to write.")
def export_command(trained: Trained, form: str, out: Path) -> None:
    """Write a trained model for other programs, with its normalisation inside the graph.

    RUN is the folder of a run, or a model's .safetensors file. The graph takes any number of samples as the data set
    gives them, such as uint8 pixels of 0 to 255, and returns logits. The file is checked against the network: logits
    may differ by 0.0001 of the largest one.
    """
    from fl_labelskew_plugins.trained.export import export

    with writing(out):
        worst = export(trained, out, form)
    about = trained.about
    click.echo(f"written: {out}; logits differ by at most {worst:.1g} of the largest one")
    click.echo(f"input: samples {about.dtype} (batch, {', '.join(map(str, about.input_shape))}), not normalised")
    click.echo(f"output: logits float32 (batch, {len(about.class_names)})")
