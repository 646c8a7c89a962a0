"""How good a trained model is on further data in the layout of its own."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fl_labelskew_registry import Data, Dataset, Images, LabelSkewError, catalog, mistake
from numpy.typing import NDArray
from torch import Tensor

from fl_labelskew_plugins.engine import metrics
from fl_labelskew_plugins.machine.place import available_cores
from fl_labelskew_plugins.machine.text import clean, counted, few
from fl_labelskew_plugins.recipe import yaml
from fl_labelskew_plugins.recipe.mistakes import keys_of
from fl_labelskew_plugins.recipe.sections import DataArgs
from fl_labelskew_plugins.runs.session import numbered
from fl_labelskew_plugins.trained.inputs import fitted
from fl_labelskew_plugins.trained.network import Trained, known, made

BATCH = 128


def evaluate(trained: Trained, folder: Path) -> dict[str, Any]:
    """Measures of a model on the test part of the data in a folder, which is read as the recipe's data set is.

    Returns:
        What was evaluated; ``accuracy``, ``balanced_accuracy`` and ``macro_f1`` between 0 and 1, over classes that
        occur; ``classes`` and ``groups``, a mapping each; and ``confusion``, samples of each class (rows) by what they
        were predicted as. None stands for what cannot be had of no samples.

    Raises:
        LabelSkewError: the data cannot be read, or are not such as the model was trained on.
    """
    data = _data(trained, folder)
    predicted = torch.cat([logits.argmax(1) for logits in map(trained.logits, _batches(trained, data, folder))])
    labels, names = torch.from_numpy(data.test.y), trained.about.class_names
    matrix = metrics.confusion(predicted, labels, len(names))
    whole = metrics.measures(matrix)
    support, answers, right = matrix.sum(1).tolist(), matrix.sum(0).tolist(), matrix.diag().tolist()
    return {
        "model": clean(trained.file, 4096),
        "round": trained.about.round,
        "client": trained.about.client_name,
        "data": clean(folder, 4096),
        "samples": len(labels),
        **{key: whole[key] for key in ("accuracy", "balanced_accuracy", "macro_f1")},
        "classes": [
            {"class": name, "samples": n, "recall": hits / n if n else None, "precision": hits / said if said else None}
            for name, n, said, hits in zip(names, support, answers, right, strict=True)
        ],
        "groups": _groups(data, predicted, labels, len(names)),
        "confusion": matrix.tolist(),
    }


def _groups(data: Data, predicted: Tensor, labels: Tensor, classes: int) -> list[dict[str, Any]]:
    """The measures of each group of the test part; none where it has no groups."""
    rows = []
    groups: NDArray[Any] = np.zeros(0, np.int64) if data.test.groups is None else data.test.groups
    for group in np.unique(groups).tolist():
        name = data.group_names[group] if 0 <= group < len(data.group_names) else str(group)
        members = torch.from_numpy(groups == group)
        said = metrics.measures(metrics.confusion(predicted[members], labels[members], classes))
        measures = {key: said[key] for key in ("accuracy", "balanced_accuracy", "macro_f1")}
        rows.append({"group": clean(name), "samples": int(members.sum()), **measures})
    return rows


def _data(trained: Trained, folder: Path) -> Data:
    """The data set in a folder, its test part alone; with the model's classes in the model's order."""
    about, where = trained.about, clean(trained.file, 4096)
    dataset, seed, recipe = _dataset(trained)
    dataset.check_test(folder, download=False)
    if not folder.exists():  # which a data set that needs no files has not noticed
        raise mistake(clean(folder, 4096), "does not exist", "what data_args.data_cache_dir would be")
    data = dataset.load_test(folder, download=False, seed=seed)
    if not len(data.test.y):
        raise mistake(clean(folder, 4096), "has no test samples", "data with a test part")
    names = [clean(name) for name in data.class_names]
    if len(names) != len(about.class_names):
        here = counted(len(names), "class", "classes")
        raise mistake(clean(folder, 4096), f"{here}, and {where} has {len(about.class_names)}", "data of these classes")
    for number, (name, trained_name) in enumerate(zip(names, about.class_names, strict=True)):
        if name != trained_name and not numbered(names) and not numbered(about.class_names):
            what = f"class {number} is {name!r}, and in {where} it is {trained_name!r}"
            raise mistake(clean(folder, 4096), what, "data of the same classes")
    kept = None if recipe is None else recipe.with_name("features.txt")
    features = data.notes.get("features.txt")  # of a table; they have no names in the model
    if kept and features and kept.is_file() and kept.read_text("utf-8", "replace") != features:
        what = f"its features are {few(features.splitlines())}; they are not those of {clean(kept, 4096)}"
        raise mistake(clean(folder, 4096), what, "a table with the same columns and categories, in the same order")
    return data


def _dataset(trained: Trained) -> tuple[Dataset, int, Path | None]:
    """The data set that the model was trained on, as its recipe has it where that lies beside it; its seed; and it."""
    about, where = trained.about, clean(trained.file, 4096)
    kind = catalog.load("datasets", known("datasets", about.dataset, where))
    recipes = [folder / "recipe.yaml" for folder in trained.file.absolute().parents[:2]]
    recipe = next((file for file in recipes if file.is_file()), None)
    params, seed, known_keys = dict(about.picture or {}), 0, keys_of(kind.Params)
    if recipe is not None:
        try:
            sections, _ = yaml.read(yaml.text_of(recipe))
            keys = dict(sections["data_args"])
            seed = int(sections["common_args"]["random_seed"])
        except (yaml.YamlError, KeyError, TypeError, ValueError) as error:
            raise LabelSkewError(f"{clean(recipe, 4096)}: cannot be read ({clean(error)})") from None
        params = {key: value for key, value in keys.items() if key in known_keys or key not in keys_of(DataArgs)}
    # data of one place alone often lack some classes
    if "class_names" in known_keys and params.get("class_names") is None and not numbered(about.class_names):
        params["class_names"] = about.class_names
    if "classes" in known_keys and params.get("classes") is None:
        params["classes"] = len(about.class_names)
    dataset: Dataset = made(kind, params, f"{clean(recipe or trained.file, 4096)}: data_args.")
    return dataset, seed, recipe


def _batches(trained: Trained, data: Data, folder: Path) -> Iterator[NDArray[Any]]:
    x = data.test.x
    if not isinstance(x, Images):
        samples = fitted(trained.about, x, clean(folder, 4096))
        yield from (samples[start : start + BATCH] for start in range(0, len(samples), BATCH))
        return
    if list(x.shape[1:]) != trained.about.input_shape:
        what = f"samples of shape {x.shape[1:]}, and the model takes {tuple(trained.about.input_shape)}"
        raise mistake(clean(folder, 4096), what, "data as those of training")
    with ThreadPoolExecutor(available_cores()) as pool:
        for start in range(0, len(x), BATCH):
            files = x.files[start : start + BATCH]
            yield torch.stack(list(pool.map(lambda file: x.read(file, False), files))).numpy()
