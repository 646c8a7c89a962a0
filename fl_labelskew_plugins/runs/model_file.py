"""Model files: weights and metadata in safetensors' format."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

from fl_labelskew_registry import LabelSkewError, mistake
from fl_labelskew_registry.contracts import SHARED_MODULES
from pydantic import AfterValidator, Field, model_validator
from safetensors import SafetensorError, safe_open

from fl_labelskew_plugins.data.table import NOTE, Encoding, Table
from fl_labelskew_plugins.machine.files import check_regular
from fl_labelskew_plugins.machine.text import clean, failure
from fl_labelskew_plugins.params import Params
from fl_labelskew_plugins.recipe import mistakes
from fl_labelskew_plugins.recipe.model import Recipe, of_sums
from fl_labelskew_plugins.recipe.network_file import FunctionNetwork, portable
from fl_labelskew_plugins.recipe.plugins import object_description
from fl_labelskew_plugins.recipe.sections import MOST_CLASSES, InputShape, Positive
from fl_labelskew_plugins.runs.session import Session
from fl_labelskew_plugins.tensors import Weights, save_atomic

KEY = "labelskew_model"  # of the JSON of About
FORMAT = 1
MAX_METADATA = 2**24
CleanName = Annotated[str, AfterValidator(clean)]


class About(Params):
    """Metadata of a model's file, see docs/models.md."""

    format: int = Field(FORMAT, ge=1)
    network: CleanName | None
    network_params: dict[str, Any]
    module: CleanName | None = None
    input_shape: InputShape
    dtype: Literal["uint8", "float32"]
    class_names: list[CleanName] = Field(min_length=1, max_length=MOST_CLASSES)
    mean: list[float] | None
    std: list[Annotated[float, Field(gt=0)]] | None
    dataset: CleanName
    picture: dict[str, Any] | None = None
    table: Encoding | None = None
    method: CleanName
    recipe: str = Field(pattern="^[0-9a-f]{64}$")
    round: Positive
    client: int | None = Field(None, ge=0)
    client_name: CleanName | None = None

    @model_validator(mode="after")
    def _check_lengths(self) -> About:
        lengths = {len(numbers or ()) for numbers in (self.mean, self.std)}
        if len(lengths) > 1 or not lengths <= {0, 1, self.input_shape[0]}:
            raise ValueError(f"mean and std have different lengths; allowed: {self.input_shape[0]} numbers, 1 or none")
        if self.table is not None:
            numbers, names = [len(self.table.shown)], {feature.name for feature in self.table.features}
            sound = numbers == self.input_shape and len(self.table.means) in (0, *numbers)
            if not sound or len(names) < len(self.table.features):
                raise ValueError(f"table is not the encoding of samples of shape {self.input_shape}")
        return self


def about(session: Session, *, round: int, client: int | None = None, client_name: str | None = None) -> About:
    """The metadata of a run's model."""
    recipe = session.recipe
    network, given = recipe.network, recipe.objects.get("model_args")
    params = {} if given else network.params.model_dump(mode="json", by_alias=True) | dict(network.trained_params)
    if isinstance(network, FunctionNetwork):
        params["sha256"] = network.function.sha256
    reading = recipe.dataset.params.model_dump(mode="json", by_alias=True)
    return About.model_construct(
        network=None if given else recipe.network_name,
        network_params=params,
        module=object_description(given) if given else None,
        input_shape=list(session.input_shape),
        dtype="uint8" if session.dtype == "uint8" else "float32",
        class_names=list(session.class_names),
        mean=None if session.mean is None else [float(value) for value in session.mean],
        std=None if session.std is None else [float(value) for value in session.std],
        dataset=recipe.data.dataset,
        picture={key: reading[key] for key in recipe.dataset.picture_keys} or None,
        table=_encoding(session),
        method=recipe.method_name,
        recipe=recipe_hash(recipe),
        round=round,
        client=client,
        client_name=client_name,
    )


def _encoding(session: Session) -> Encoding | None:
    dataset, note = session.recipe.dataset, session.notes.get(NOTE)
    if not isinstance(dataset, Table):
        return None
    encoding = dataset.declared() if note is None else Encoding.model_validate_json(note)
    width = session.input_shape[0]
    if encoding is None or len(encoding.shown) != width:
        return None
    if session.trainer.indices:
        return encoding
    means = list(session.mean or ())
    return encoding.model_copy(update={"means": means if len(means) == width else []})


def recipe_hash(recipe: Recipe) -> str:
    """SHA-256 of the settings that affect results, without file locations, communication and storage."""
    sections = {
        name: {key: value for key, value in keys.items() if key not in ("data_cache_dir", "download")}
        for name, keys in portable(recipe).items()
        if name not in ("comm_args", "client_specific_args", "tracking_args")
    }
    if sums := of_sums(recipe.resolved()):
        sections["comm_args"] = sums
    objects = {section: object_description(plugin) for section, plugin in recipe.objects.items()}
    return hashlib.sha256(json.dumps([sections, objects], sort_keys=True).encode()).hexdigest()


def save(weights: Weights, file: Path, metadata: About, *, private: bool = False) -> None:
    """Write a model without the method's shared modules; ``private``: readable only by the owner."""
    network = {name: value for name, value in weights.items() if not name.startswith(f"{SHARED_MODULES}.")}
    text = metadata.model_dump_json(exclude={"table"} if metadata.table is None else None)
    save_atomic(network, file, {KEY: text}, private=private)


def read(file: Path) -> tuple[About, Weights]:
    """Read a possibly untrusted file; raises LabelSkewError if it is missing, invalid or too new."""
    where = clean(file, 4096)
    try:
        check_regular(file)
        with safe_open(file, "pt") as opened:
            text = (opened.metadata() or {}).get(KEY)
            weights = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118  # no mapping
    except FileNotFoundError:
        raise mistake(where, "no such file", "a model.safetensors of a run") from None
    except (SafetensorError, OSError, ValueError) as error:
        problem = f"is not a valid .safetensors file ({clean(failure(error))})"
        raise mistake(where, problem, "a model.safetensors of a run") from None
    if text is None:
        raise mistake(where, "has no metadata about its network", "a model.safetensors of a run")
    return _parsed(text, where), weights


def read_metadata(file: Path) -> About | None:
    """The metadata of a model's file; None if missing or invalid."""
    with suppress(SafetensorError, OSError, LabelSkewError, KeyError), safe_open(file, "pt") as opened:
        return _parsed((opened.metadata() or {})[KEY], "")
    return None


def _parsed(text: str, where: str) -> About:
    raw: Any = None
    if len(text) <= MAX_METADATA:
        with suppress(ValueError, RecursionError):
            raw = json.loads(text)
    if not isinstance(raw, dict) or type(raw.get("format")) is not int:
        raise mistake(where, "its metadata are damaged", "the original file")
    if raw["format"] > FORMAT:
        newer = f"has format {raw['format']}, but this version supports at most {FORMAT}"
        raise mistake(where, newer, "a newer fl-labelskew-plugins")
    parsed, lines = mistakes.checked(About, raw)
    if parsed is None:
        raise LabelSkewError(f"{where}: invalid metadata: {lines[0]}")
    return parsed
