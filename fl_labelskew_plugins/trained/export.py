"""Export trained models as ONNX or as torch's pt2."""

import contextlib
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from fl_labelskew_registry import RunError
from torch import Tensor

from fl_labelskew_plugins.machine import extras
from fl_labelskew_plugins.machine.files import replacing
from fl_labelskew_plugins.machine.text import clean, failure
from fl_labelskew_plugins.runs.model_file import KEY, About
from fl_labelskew_plugins.trained.network import Trained

TOLERANCE = 1e-4  # of logits, relative to the larger of 1 and the largest logit
INPUT, OUTPUT = "samples", "logits"


def export(trained: Trained, out: Path, form: str) -> float:
    """Write a model with the normalisation in its graph; return the largest difference of a logit.

    The graph maps ``samples`` ``(batch, ...)``, uint8 or float32 as the data set gives them, to ``logits`` ``(batch,
    C)`` float32. Raise LabelSkewError if a package is missing, or RunError if the network cannot be exported or the
    file gives other logits.
    """
    if form == "onnx":
        what = f"{clean(out, 4096)}: ONNX"
        extras.load("onnx", "onnx", "onnxscript", "onnxruntime", what=what, otherwise=", or use --format pt2")
    trained.check_memory(3)
    whole, example = trained.whole(), samples(trained.about, 2)
    metadata = trained.about.model_dump_json()
    with replacing(out) as part, _quiet():
        try:
            batch = {INPUT: {0: torch.export.Dim("batch", min=1)}}
            program = torch.export.export(whole, (example,), dynamic_shapes=batch)
            for node in program.graph.nodes:
                node.meta.pop("stack_trace", None)  # contains paths of this machine
            if form == "onnx":
                texts = {KEY: metadata, "class_names": json.dumps(trained.about.class_names)}
                _write_onnx(program, example, batch, part, texts)
            else:
                with part.open("wb") as stream:
                    torch.export.save(program, stream, extra_files={KEY: metadata})
        except OSError:
            raise
        except Exception as error:  # exporters raise any type
            reason = clean(failure(error), 300)
            raise RunError(f"{clean(trained.file, 4096)}: cannot be exported as {form}: {reason}") from error
        run = _onnx(part) if form == "onnx" else torch.export.load(io.BytesIO(part.read_bytes())).module()
        worst = 0.0
        for number in (1, 3):
            x = samples(trained.about, number)
            with torch.inference_mode():
                expected = whole(x)
            worst = max(worst, float((run(x) - expected).abs().max() / expected.abs().max().clamp_min(1)))
        if not worst <= TOLERANCE:
            raise RunError(
                f"{clean(out, 4096)}: its logits differ by {worst:.2g}, more than {TOLERANCE:g}; not written"
            )
    return worst


def samples(about: About, number: int) -> Tensor:
    """Reproducible random samples ``(number, ...)`` on the scale of training."""
    generator = torch.Generator().manual_seed(number)
    shape = (number, *about.input_shape)
    if about.dtype == "uint8":
        text = not about.mean  # characters by number
        values = int(about.network_params.get("vocabulary") or len(about.class_names)) if text else 256
        return torch.randint(0, values, shape, dtype=torch.uint8, generator=generator)
    noise = torch.randn(shape, generator=generator)
    mean, std = (torch.tensor(numbers or [least]) for numbers, least in ((about.mean, 0.0), (about.std, 1.0)))
    form = (-1, *[1] * (len(shape) - 2))
    return noise * std.reshape(form) + mean.reshape(form)


def _write_onnx(program: Any, example: Tensor, batch: dict[str, Any], file: Path, texts: dict[str, str]) -> None:
    names: dict[str, Any] = {"input_names": [INPUT], "output_names": [OUTPUT], "dynamic_shapes": batch}
    exported = torch.onnx.export(program, (example,), dynamo=True, verbose=False, **names)
    assert exported is not None  # it has written no file
    model = exported.model_proto
    for key, text in texts.items():
        model.metadata_props.add(key=key, value=text)
    file.write_bytes(model.SerializeToString())


def _onnx(file: Path) -> Callable[[Tensor], Tensor]:
    import onnxruntime

    session = onnxruntime.InferenceSession(file.read_bytes(), providers=["CPUExecutionProvider"])
    return lambda x: torch.from_numpy(session.run([OUTPUT], {INPUT: x.numpy()})[0])


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)
