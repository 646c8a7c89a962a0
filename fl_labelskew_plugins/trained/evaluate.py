"""Evaluate a trained model on other data."""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from fl_labelskew_registry import Data, Dataset, Images, mistake
from numpy.typing import NDArray
from torch import Tensor

from fl_labelskew_plugins.data.fingerprint import fingerprint
from fl_labelskew_plugins.engine import metrics
from fl_labelskew_plugins.machine.place import available_cores
from fl_labelskew_plugins.machine.text import clean, counted
from fl_labelskew_plugins.partition.stratified import joined
from fl_labelskew_plugins.recipe.mistakes import keys_of
from fl_labelskew_plugins.recipe.sections import DataArgs
from fl_labelskew_plugins.runs.reader import RunReader
from fl_labelskew_plugins.runs.session import numbered
from fl_labelskew_plugins.trained.inputs import fitted, reader
from fl_labelskew_plugins.trained.network import Trained, load_plugin

BATCH = 128
MEASURES = ("accuracy", "balanced_accuracy", "macro_f1")
TestedPart = Literal["all", "test"]


def evaluate(
    trained: Trained, folder: Path, part: TestedPart | None = None, settings: Mapping[str, Any] = {}
) -> dict[str, Any]:
    """Measure a model on the data in a folder or file; raise LabelSkewError if they do not fit the model.

    ``part``: default: the test part if the data have one or are those of training, else all samples; ``settings``:
    ``data_args`` that override the recipe's.

    Returns:
        Among others, ``total`` (samples, None if only the test part was read), :data:`MEASURES` between 0 and 1 over
        classes that occur, and ``confusion``, counts by true class (rows) and prediction. Without samples: None.
    """
    data, read = _data(trained, folder, part, settings)
    predicted = torch.cat([logits.argmax(1) for logits in map(trained.logits, _batches(trained, data, folder))])
    labels, names = torch.from_numpy(data.test.y), trained.about.class_names
    matrix = metrics.confusion(predicted, labels, len(names))
    whole = metrics.measures(matrix)
    support, predictions, right = matrix.sum(1).tolist(), matrix.sum(0).tolist(), matrix.diag().tolist()
    return {
        "model": clean(trained.file, 4096),
        "round": trained.about.round,
        "client": trained.about.client_name,
        "data": clean(folder, 4096),
        "samples": len(labels),
        **read,
        **{key: whole[key] for key in MEASURES},
        "classes": [
            {"class": name, "samples": n, "recall": hits / n if n else None, "precision": hits / p if p else None}
            for name, n, p, hits in zip(names, support, predictions, right, strict=True)
        ],
        "groups": _groups(data, predicted, labels, len(names)),
        "confusion": matrix.tolist(),
    }


def _groups(data: Data, predicted: Tensor, labels: Tensor, classes: int) -> list[dict[str, Any]]:
    rows = []
    groups: NDArray[Any] = np.zeros(0, np.int64) if data.test.groups is None else data.test.groups
    for group in np.unique(groups).tolist():
        name = data.group_names[group] if 0 <= group < len(data.group_names) else str(group)
        members = torch.from_numpy(groups == group)
        values = metrics.measures(metrics.confusion(predicted[members], labels[members], classes))
        rows.append({"group": clean(name), "samples": int(members.sum()), **{key: values[key] for key in MEASURES}})
    return rows


def _data(
    trained: Trained, folder: Path, part: TestedPart | None, settings: Mapping[str, Any]
) -> tuple[Data, dict[str, Any]]:
    about, place = trained.about, clean(folder, 4096)
    # the folder of the run that wrote the model's file, or the file's folder
    readers = [RunReader(path) for path in trained.file.absolute().parents[:2]]
    run = next((reader for reader in readers if reader.recipe.is_file()), readers[0])
    sections = run.sections if run.recipe.is_file() else {}
    args, note, total = sections.get("data_args", {}), None, None
    dataset = _dataset(trained, run, args, folder, settings)
    dataset.check_test(folder, download=False)
    if not folder.exists():  # a data set without files does not notice
        raise mistake(place, "does not exist", "a value of data_args.data_cache_dir")
    seed = int(sections.get("common_args", {}).get("random_seed", 0))
    if part != "all" and not dataset.splits_off(folder):
        data, part = dataset.load_test(folder, download=False, seed=seed), "test"
    else:
        data = dataset.load_all(folder, download=False, seed=seed)
        part, note = _part(folder, data, run, args, part, settings)
        total = len(data.train.y) + len(data.test.y)
        if part == "all":
            data = replace(data, test=joined(data.train, data.test))
        else:
            data = dataset.load(folder, download=False, seed=seed)
    if not len(data.test.y):
        raise mistake(place, "has no test samples", "data with a test part, or --part all")
    names, where = [clean(name) for name in data.class_names], clean(trained.file, 4096)
    if len(names) != len(about.class_names):
        problem = f"has {counted(len(names), 'class', 'classes')}, but {where} {len(about.class_names)}"
        raise mistake(place, problem, "data of these classes")
    for number, (name, trained_name) in enumerate(zip(names, about.class_names, strict=True)):
        if name != trained_name and not numbered(names) and not numbered(about.class_names):
            problem = f"class {number} is {name!r}, but in {where} it is {trained_name!r}"
            raise mistake(place, problem, "data of the same classes")
    return data, {"part": part, "total": total, "note": note}


def _part(
    folder: Path,
    data: Data,
    run: RunReader,
    args: Mapping[str, Any],
    part: TestedPart | None,
    settings: Mapping[str, Any],
) -> tuple[TestedPart, str | None]:
    """The part to test, and a note if it may contain training samples."""
    known = run.environment.get("data")
    same = known == fingerprint(data)
    near = same or _home(args) in (folder.resolve(), *folder.resolve().parents)
    part = part or ("test" if near else "all")
    if same and part == "test" and "test_fraction" not in settings:
        return part, "the model was trained on the other samples"
    if near or known is None:
        hint = "; --part test excludes them" if same and part == "all" else ""
        return part, f"the model may have been trained on some of these samples{hint}"
    return part, None


def _home(args: Mapping[str, Any]) -> Path | None:
    home = args.get("data_cache_dir")
    return Path(home).resolve() if isinstance(home, str) else None


def _dataset(
    trained: Trained, run: RunReader, args: Mapping[str, Any], folder: Path, settings: Mapping[str, Any]
) -> Dataset:
    about, where = trained.about, clean(trained.file, 4096)
    known_keys = keys_of(load_plugin("datasets", about.dataset, where).Params)
    params = {key: value for key, value in args.items() if key in known_keys or key not in keys_of(DataArgs)}
    if folder.is_file() and _home(args) != folder.resolve():  # it replaces the files in the recipe
        params = {key: value for key, value in params.items() if key not in ("file", "test_file")}
    groups = params.get("groups")
    if isinstance(groups, list) and not all((folder / str(g)).is_dir() for g in groups):
        del params["groups"]  # folders of the run's own data
    # data of one site often lack some classes
    if "class_names" in known_keys and params.get("class_names") is None and not numbered(about.class_names):
        params["class_names"] = about.class_names
    if "classes" in known_keys and params.get("classes") is None:
        params["classes"] = len(about.class_names)
    place = f"{clean(run.recipe, 4096)}: data_args." if args else ""
    return reader(trained, params, settings, place)


def _batches(trained: Trained, data: Data, folder: Path) -> Iterator[NDArray[Any]]:
    x = data.test.x
    if not isinstance(x, Images):
        samples = fitted(trained.about, x, clean(folder, 4096))
        yield from (samples[start : start + BATCH] for start in range(0, len(samples), BATCH))
        return
    if list(x.shape[1:]) != trained.about.input_shape:
        problem = f"has samples of shape {x.shape[1:]}, but the model takes {tuple(trained.about.input_shape)}"
        raise mistake(clean(folder, 4096), problem, "data like those of training")
    with ThreadPoolExecutor(available_cores()) as pool:
        for start in range(0, len(x), BATCH):
            files = x.files[start : start + BATCH]
            yield torch.stack(list(pool.map(lambda file: x.read(file, False), files))).numpy()
