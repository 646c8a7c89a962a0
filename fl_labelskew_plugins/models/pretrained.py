"""ImageNet weights from files on this machine; nothing is downloaded."""

import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
from fl_labelskew_registry import mistake
from pydantic import Field
from torch import nn

from fl_labelskew_plugins import params
from fl_labelskew_plugins.machine import log
from fl_labelskew_plugins.machine.place import mpi_rank
from fl_labelskew_plugins.models.base import ImageNetwork

AUTO, NONE = "auto", "none"


class Pretrained(ImageNetwork):
    """A torchvision network with optional weights from a file, which are not needed to rebuild a trained network."""

    class Params(params.Params):
        weights: Annotated[str | None, params.IS_PATH] = Field(
            None,
            min_length=1,
            description="First weights: a .pth or .safetensors file of torchvision's network, without its classifier; "
            "default: random. With ImageNet's, set data_args.mean: imagenet.",
        )

    trained_params: ClassVar[Mapping[str, Any]] = {"weights": None}


def load_imagenet(net: nn.Module, weights: str | None, *, name: str, head: str, cached: str = "") -> None:
    """Load a torchvision network's weights from a file, except its classifier (tensors with the prefix ``head``).

    ``weights``: a file; ``auto``: the file ``cached`` in torchvision's cache, or a warning; ``none`` or None: keep the
    weights of ``net``. Raise LabelSkewError if the file is not readable, or belongs to another network.
    """
    if weights is None or weights == NONE:
        return
    path = Path(torch.hub.get_dir(), "checkpoints", cached) if weights == AUTO else Path(weights).expanduser()
    if weights == AUTO and not os.path.isfile(path):
        if (mpi_rank() or (0, 1))[0] == 0:  # warn once per machine
            use = f"set model_args.weights to a weights file, or to {NONE}"
            log.warn(f"model {name}: no ImageNet weights in {path}; training from scratch ({use})")
        return
    state = {key: value for key, value in read_weights(path).items() if not key.startswith(head)}
    expected = {key: value for key, value in net.state_dict().items() if not key.startswith(head)}
    # older files lack the counters of batch normalisation
    wrong = [key for key in expected if key not in state and not key.endswith("num_batches_tracked")]
    wrong += [key for key, value in state.items() if key not in expected or expected[key].shape != value.shape]
    if wrong:
        problem = f"{wrong[0]} is missing, unknown or of another shape ({len(wrong)} such tensors in all)"
        raise mistake(path, problem, f"torchvision's weights of {name}")
    net.load_state_dict(state, strict=False)


def read_weights(path: Path) -> dict[str, torch.Tensor]:
    """A state dict from a ``.safetensors`` or ``.pth`` file; LabelSkewError if it is missing or has other content."""
    if not os.path.isfile(path):
        raise mistake(path, "does not exist", "a file with ImageNet weights")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the pickle protocol; an error is enough
            state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # pickle, zip, torch and safetensors raise different types
        first = " ".join(str(error).split()).partition(". ")[0]
        problem = f"is not a valid weights file ({type(error).__name__}: {first[:120]})"
        raise mistake(path, problem, "a state dict, as .pth or .safetensors") from error
    if not isinstance(state, dict) or not all(isinstance(value, torch.Tensor) for value in state.values()):
        raise mistake(path, "is not a state dict", "a state dict of tensors")
    return state
