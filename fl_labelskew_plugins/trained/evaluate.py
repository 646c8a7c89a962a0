"""How good a trained model is on further data in the layout of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from fl_labelskew_registry import Data, Dataset, Images, LabelSkewError, catalog, mistake
from numpy.typing import NDArray
from torch import Tensor

from fl_labelskew_plugins.data.fingerprint import fingerprint
from fl_labelskew_plugins.engine import metrics
from fl_labelskew_plugins.machine.place import available_cores
from fl_labelskew_plugins.machine.text import clean, counted
from fl_labelskew_plugins.partition.stratified import joined
from fl_labelskew_plugins.recipe import yaml
from fl_labelskew_plugins.recipe.mistakes import keys_of
from fl_labelskew_plugins.recipe.sections import DataArgs
from fl_labelskew_plugins.runs.session import numbered
from fl_labelskew_plugins.trained.inputs import fitted, reader
from fl_labelskew_plugins.trained.network import Trained, known

BATCH = 128
Part = Literal["all", "test"]


def evaluate(
    trained: Trained, folder: Path, part: Part | None = None, settings: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Measures of a model on the data in a folder, which is read as the recipe's data set is.

    Args:
        trained: the model.
        folder: the folder or file of the data.
        part: all samples, or the test part only. Default: the test part if the data have one or are those of the run's
            training, else all samples.
        settings: ``data_args`` in place of the recipe's.

    Returns:
        What was evaluated (``part``; ``total``, all samples of the data, None if only the test part was read; ``note``,
        a sentence or None); ``accuracy``, ``balanced_accuracy`` and ``macro_f1`` between 0 and 1, over classes that
        occur; ``classes`` and ``groups``, a mapping each; and ``confusion``, samples of each class (rows) by what they
        were predicted as. None stands for what cannot be had of no samples.

    Raises:
        LabelSkewError: the data cannot be read, or are not such as the model was trained on.
    """
    data, read = _data(trained, folder, part, settings or {})
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
        **read,
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


class Run(NamedTuple):
    """The run of a model, as far as its folder is at hand.

    Args:
        folder: with the recipe, or that of the model's file.
        args: the recipe's ``data_args``.
        seed: the recipe's.
        across_silos: whether silos trained on data of their own.
    """

    folder: Path
    args: Mapping[str, Any] = MappingProxyType({})
    seed: int = 0
    across_silos: bool = False

    def trained_in(self, folder: Path) -> bool:
        """Whether the run read its data from this folder or file."""
        home = self.args.get("data_cache_dir")
        return isinstance(home, str) and Path(home).resolve() == folder.resolve()

    def group_of(self, folder: Path) -> bool:
        """Whether this is the folder of a group in the run's data."""
        groups = self.read("partition.json").get("clients", ())
        return self.trained_in(folder.resolve().parent) and folder.name in groups

    def read(self, name: str) -> dict[str, Any]:
        """A file of JSON in the folder; empty if there is none."""
        with suppress(OSError, ValueError, RecursionError):
            content = json.loads((self.folder / name).read_text("utf-8"))
            return content if isinstance(content, dict) else {}
        return {}


def _data(
    trained: Trained, folder: Path, part: Part | None, settings: Mapping[str, Any]
) -> tuple[Data, dict[str, Any]]:
    """The data whose test part are the samples to test on, and which these are; classes have the model's numbers."""
    about, where, run = trained.about, clean(trained.file, 4096), _run(trained.file)
    dataset, note = _dataset(trained, run, folder, settings), None
    dataset.check_test(folder, download=False)
    if not folder.exists():  # which a data set that needs no files has not noticed
        raise mistake(clean(folder, 4096), "does not exist", "what data_args.data_cache_dir would be")
    splits_off = dataset.splits_off(folder)
    load = dataset.load if splits_off else dataset.load_test
    if part == "all" or (part is None and splits_off):
        load = dataset.load_all
    data = load(folder, download=False, seed=run.seed)
    chosen, part = part, part or "test"
    if splits_off or part == "all":
        part, note = _of_training(folder, data, run, chosen, settings)
        if chosen is None and part == "test":
            data = dataset.load(folder, download=False, seed=run.seed)
    total = len(data.train.y) + len(data.test.y) if splits_off or part == "all" else None
    if part == "all":
        data = replace(data, test=joined(data.train, data.test))
    if not len(data.test.y):
        raise mistake(clean(folder, 4096), "has no test samples", "data with a test part, or --part all")
    names = [clean(name) for name in data.class_names]
    if len(names) != len(about.class_names):
        here = counted(len(names), "class", "classes")
        raise mistake(clean(folder, 4096), f"{here}, and {where} has {len(about.class_names)}", "data of these classes")
    for number, (name, trained_name) in enumerate(zip(names, about.class_names, strict=True)):
        if name != trained_name and not numbered(names) and not numbered(about.class_names):
            what = f"class {number} is {name!r}, and in {where} it is {trained_name!r}"
            raise mistake(clean(folder, 4096), what, "data of the same classes")
    return data, {"part": part, "total": total, "note": note}


def _of_training(
    folder: Path, data: Data, run: Run, part: Part | None, settings: Mapping[str, Any]
) -> tuple[Part, str | None]:
    """The ``part`` to test on, by default without the samples of training, and a note about those samples."""
    known, here = run.read("environment.json").get("data"), fingerprint(data)
    if known == here or run.group_of(folder):
        if part != "all" and "test_fraction" not in settings:
            return "test", "the model was trained on the other samples"
        why = "; --part test excludes them" if part == "all" else ", since test_fraction is another one"
        return part or "test", f"the model was trained on some of these samples{why}"
    if run.read("summary.json").get("data") == here:
        return part or "all", "the silo trained on most of these samples; its own test: metrics.jsonl"
    if run.trained_in(folder):
        return part or "test", "these data have changed since training, which may have used some samples"
    if run.across_silos:
        note = "for data that a silo trained on, use --part test (its held-out samples)"
        return part or "all", None if part == "test" else note
    return part or "all", None if known else "unknown whether the model was trained on some of these samples"


def _run(file: Path) -> Run:
    """The run of a model's file."""
    recipes = [folder / "recipe.yaml" for folder in file.absolute().parents[:2]]
    recipe = next((file for file in recipes if file.is_file()), None)
    if recipe is None:
        return Run(file.parent)  # of a silo, or nobody's
    try:
        sections, _ = yaml.read(yaml.text_of(recipe))
        keys, common = dict(sections["data_args"]), dict(sections["common_args"])
        return Run(recipe.parent, keys, int(common["random_seed"]), common.get("training_type") == "cross_silo")
    except (yaml.YamlError, KeyError, TypeError, ValueError) as error:
        raise LabelSkewError(f"{clean(recipe, 4096)}: cannot be read ({clean(error)})") from None


def _dataset(trained: Trained, run: Run, folder: Path, settings: Mapping[str, Any]) -> Dataset:
    """The data set that the model was trained on, with the recipe's parameters if the run's folder is at hand."""
    about, where = trained.about, clean(trained.file, 4096)
    known_keys = keys_of(catalog.load("datasets", known("datasets", about.dataset, where)).Params)
    params = {key: value for key, value in run.args.items() if key in known_keys or key not in keys_of(DataArgs)}
    if folder.is_file() and not run.trained_in(folder):  # the file itself is meant, not others in its folder
        params = {key: value for key, value in params.items() if key not in ("file", "test_file")}
    groups = params.get("groups")
    if isinstance(groups, list) and not run.trained_in(folder) and not all((folder / str(g)).is_dir() for g in groups):
        del params["groups"]  # of the run's own tree
    # data of one place alone often lack some classes
    if "class_names" in known_keys and params.get("class_names") is None and not numbered(about.class_names):
        params["class_names"] = about.class_names
    if "classes" in known_keys and params.get("classes") is None:
        params["classes"] = len(about.class_names)
    place = f"{clean(run.folder / 'recipe.yaml', 4096)}: data_args." if run.args else ""
    return reader(trained, params, settings, place)


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
