"""Generate recipes for the user's own data."""

import json
import os
import re
import shlex
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
from fl_labelskew_registry import mistake

from fl_labelskew_plugins.data import table
from fl_labelskew_plugins.data.fakes import all_or_nothing
from fl_labelskew_plugins.data.npz import KNOWN, read_archive
from fl_labelskew_plugins.front.new.look import OwnData
from fl_labelskew_plugins.machine.text import clean, counted
from fl_labelskew_plugins.recipe import shipped, yaml
from fl_labelskew_plugins.recipe.schema import json_schema
from fl_labelskew_plugins.recipe.sections import LEAST_SUMMED
from fl_labelskew_plugins.show.card import template

Section = tuple[str, str, dict[str, Any]]  # comment, name, keys
MAX_SILOS = 100
GREY = ([0.449], [0.226])  # mean and std of ImageNet, averaged over the channels
ALL_JOIN = 20
LARGE = 5000  # training samples; then batches are larger, and one local epoch is enough


def simulation(data: OwnData, out: Path) -> list[str]:
    """Write a recipe for one machine to ``out``, new or empty; return the next commands."""
    many = len(data.groups) > 1
    clients = len(data.groups) if many else 10 if data.samples >= 1000 else 5
    partition: dict[str, Any] = {"partition_method": "natural"}
    if many:
        origin = "Each group of the data is a client."
    else:
        partition = {"partition_method": "dirichlet", "beta": 0.3, "min_samples": max(min(10, data.samples // 50), 1)}
        origin = "The data have no groups, so they are partitioned: the smaller beta, the fewer classes per client."
    sections: list[Section] = [
        ("", "common_args", {"training_type": "simulation", "random_seed": 0}),
        (_about_data(data), "data_args", {"dataset": data.dataset, "data_cache_dir": str(data.path), **data.args}),
        (f"{origin} labelskew survey shows the clients' samples per class.", "partition_args", partition),
        *_training(data, clients, "simulation.yaml"),
        ("per_client: also test the model on each client's own test part.", "validation_args", {"per_client": True}),
        ("", "device_args", {"using_gpu": False}),
    ]
    about = f"{_about(data)}, as {counted(clients, 'client')} on one machine"
    with _new_folder(data, out) as part:
        _write_page(part / "simulation.yaml", ["labelskew run simulation.yaml", f"{about}; see README.md"], sections)
        _finish(part, data, "simulation", ["runs/"], about=about)
    return ["labelskew survey simulation.yaml", "labelskew run simulation.yaml --run-dir runs/first"]


def federation(data: OwnData, out: Path, silos: int | None, *, secure: bool = False) -> list[str]:
    """Write a federation's recipe, and a file for each silo; return the next commands.

    Each group is a silo; without groups, each silo has all of the data. Raise LabelSkewError for an unsuitable folder,
    or data that do not fit ``silos`` or ``secure``.
    """
    names, where = data.groups if len(data.groups) > 1 else [], clean(data.path)
    if names and silos not in (None, len(names)):
        raise mistake(f"--silos {silos}", f"{where} has {len(names)} groups, one per silo", "no --silos")
    if not names and silos is None:
        raise mistake(where, "has no groups, such as hospitals, for the silos", "--silos with their number")
    stems = file_names(names or [f"silo-{rank}" for rank in range(1, (silos or 0) + 1)])
    if len(stems) > MAX_SILOS:
        use = f"{MAX_SILOS} at most, or labelskew new simulation"
        raise mistake(where, f"has {len(stems)} groups, one per silo", use)
    if secure and len(stems) < LEAST_SUMMED:
        problem = f"{counted(len(stems), 'silo')}, but a sum over fewer than {LEAST_SUMMED} does not hide a silo"
        raise mistake("--secure", problem, f"at least {LEAST_SUMMED} silos, or no --secure")
    classes = {"class_names": data.classes} if data.dataset != "npz" else {"classes": len(data.classes)}
    common = {"dataset": data.dataset, **data.args, **classes}
    common.pop("group", None)
    form = {**common, "input_shape": [*data.shape]}
    if secure or (data.moments and not data.path):
        form |= _normalisation(data)
    if secure and "mean" not in form:
        raise mistake("--secure", "numeric columns need a range for their normalisation", "--columns age=0..100")
    comm = {"backend": "GRPC", "server_address": "localhost:8890", "certs": "certs", "min_clients": 2}
    comm |= {"secure_aggregation": True, "min_clients": LEAST_SUMMED} if secure else {}
    recipe: list[Section] = [
        ("", "common_args", {"training_type": "cross_silo", "random_seed": 0}),
        (
            "The server has no data, so these keys describe the silos' data; the silos' own files repeat them. "
            + _about_data(data)
            + (" mean, std: set, because with secure aggregation silos do not send sums for them." if secure else ""),
            "data_args",
            form,
        ),
        (
            "server_test_data: true also tests the model on the server, with the test part of a data_cache_dir above. "
            "per_client: each silo tests it on its own test part.",
            "validation_args",
            {"server_test_data": False, "per_client": True},
        ),
        *_training(data, len(stems), "federation.yaml"),
        (
            "server_address: the address at which silos reach the server. certs: the folder of each machine's "
            "certificates, next to this file; README.md explains both. min_clients: the minimum of silos to complete "
            "a round." + (" secure_aggregation: the server sees only sums of the silos' updates." if secure else ""),
            "comm_args",
            comm,
        ),
        ("The files of silo 1, 2 ...", "client_specific_args", {"data_silo_config": [f"{s}.yaml" for s in stems]}),
        ("", "device_args", {"using_gpu": False}),
        ("", "tracking_args", {"checkpoint_every": 1}),
    ]
    about = f"{_about(data)}; {counted(len(stems), 'silo')} and a server without data"
    with _new_folder(data, out) as part:
        head = ["labelskew run federation.yaml --role server", f"{about}; see README.md"]
        _write_page(part / "federation.yaml", head, recipe)
        places = [*_places(data, stems, part, out)]
        for rank, (stem, place) in enumerate(zip(stems, places, strict=True), 1):
            head = [
                f"labelskew run federation.yaml --role client --rank {rank}",
                f"Settings of silo {rank}, {stem}; only this silo needs the file.",
            ]
            sections: list[Section] = [
                (
                    "data_cache_dir: the path of this silo's data on its own machine. To check and write it: "
                    f"labelskew silo data {stem}.yaml PATH",
                    "data_args",
                    common | ({"data_cache_dir": place} if place else {}),
                ),
                ("send_measures: send losses and accuracy to the server.", "comm_args", {"send_measures": True}),
            ]
            _write_page(part / f"{stem}.yaml", head, sections)
        facts = {"about": about, "stems": stems, "shared": not names, "secure": secure, "here": data.path is not None}
        _finish(part, data, "federation", ["runs/", "certs/", "data/"], **facts)
    first = [f"labelskew silo data {stem}.yaml PATH" for stem in stems[:1] if data.path is None]
    return [*first, f"labelskew certs new --silos {len(stems)}", "labelskew run federation.yaml --run-dir runs/first"]


def _normalisation(data: OwnData) -> dict[str, Any]:
    """Mean and std without sums from silos; empty if unknown."""
    if data.dataset == "image_folder":
        return {"mean": "imagenet"} if data.shape[0] == 3 else dict(zip(("mean", "std"), GREY, strict=True))
    if data.moments is None:
        return {}
    mean, std = ([float(f"{x:.4g}") for x in numbers] for numbers in data.moments)
    return {"mean": mean, "std": std}


def file_names(names: Sequence[str]) -> list[str]:
    """Valid file names, all different, also if case is ignored.

    >>> file_names(["St. Mary's", "north", "../North", "federation", "*", "x-8", "x", "x?"])
    ['St.-Mary-s', 'north', 'North-3', 'federation-4', 'silo-5', 'x-8', 'x', 'x-8-8']
    """
    taken, stems = {"federation"}, []
    for rank, name in enumerate(names, 1):
        stem = re.sub(r"[^\w.-]+", "-", name)[:60].strip("-.") or f"silo-{rank}"
        while stem.lower() in taken:
            stem = f"{stem}-{rank}"
        taken.add(stem.lower())
        stems.append(stem)
    return stems


def _new_folder(data: OwnData, out: Path) -> AbstractContextManager[Path]:
    """The new folder; inside the pictures it would be a class."""
    if data.dataset == "image_folder" and data.path is not None and out.resolve().is_relative_to(data.path.resolve()):
        raise mistake(clean(out), "is inside the data", "a folder outside of them")
    return all_or_nothing(out)


def _about(data: OwnData) -> str:
    parts = [counted(data.samples, "training sample")] if data.samples else []
    parts += [counted(len(data.classes), "class", "classes")]
    parts += [counted(len(data.groups), "group")] if len(data.groups) > 1 else []
    return f"{data.dataset}, {', '.join(parts)}"


def _about_data(data: OwnData) -> str:
    sizes = ("image_size: the side in pixels; larger pictures show more detail and take longer",)
    return ". ".join([*data.notes, *(sizes if data.dataset == "image_folder" else ()), ""]).strip()


def _training(data: OwnData, clients: int, recipe: str) -> Iterator[Section]:
    network, rate = "mlp", 0.05
    if len(data.shape) == 3 and min(data.shape[1:]) >= 16:
        network = "lenet" if min(data.shape[1:]) < 28 else "fedlc_cnn_mnist" if data.shape[0] == 1 else "tfcnn"
        rate = 0.01
    about = "A small network; labelskew models lists others, such as resnet18 for a GPU (device_args)."
    yield about, "model_args", {"model": network}
    large = data.samples >= LARGE
    train = {"client_num_in_total": clients}
    train |= {"client_num_per_round": 10} if clients > ALL_JOIN else {}
    train |= {"comm_round": 20, "epochs": 1 if large else 2, "batch_size": 64 if large else 16}
    yield "", "train_args", train | {"learning_rate": rate, "momentum": 0.9}
    reason = (
        "FedLC (Zhang et al., ICML 2022) lowers each logit by the client's own class counts. It is the default because "
        "clients send only weights, and it costs no extra time. The best method for these data is unknown. "
        f"To compare others: labelskew run {recipe} --set method_args.method=fedavg, then labelskew report runs. "
        "labelskew methods lists them."
    )
    yield reason, "method_args", {"method": "fedlc"}


def _places(data: OwnData, stems: Sequence[str], part: Path, out: Path) -> Iterator[str]:
    """Paths of the silos' data; their rows are written to ``part``, which becomes ``out``."""
    if data.path is None or len(data.groups) < 2:
        yield from [str(data.path or "")] * len(stems)
    elif data.dataset == "image_folder":
        yield from [str(data.path / group) for group in data.groups]
    else:
        (part / "data").mkdir()
        split = _split_archive if data.dataset == "npz" else _split_table
        for file in split(data, data.path, [part / "data" / stem for stem in stems]):
            yield os.path.abspath(out / "data" / file.name)


def _split_archive(data: OwnData, source: Path, paths: Sequence[Path]) -> Iterator[Path]:
    """Write each group's archive; without a test part, it has only ``x`` and ``y``."""
    arrays = read_archive(source, KNOWN)
    train = "_train" if "x_train" in arrays else ""
    labels = arrays[f"y{train}"]  # if they are names, a silo may lack some, so its archive lists all names
    names = arrays.get("class_names", np.unique(labels) if labels.dtype.kind in "US" else np.array(data.classes))
    groups = np.unique(arrays[f"groups{train}"])
    if len(groups) != len(paths):
        raise mistake(clean(source), "has a group that is too small to split off a test part", "larger groups")
    for group, path in zip(groups, paths, strict=True):
        rows = {train: arrays[f"groups{train}"] == group}
        if train and "groups_test" in arrays and (test := arrays["groups_test"] == group).any():
            rows["_test"] = test
        subset = {
            f"{array}{key if len(rows) > 1 else ''}": arrays[f"{array}{key}"][chosen]
            for key, chosen in rows.items()
            for array in "xy"
        }
        file = path.with_name(f"{path.name}.npz")
        np.savez(file, class_names=names, **subset)
        yield file


def _split_table(data: OwnData, source: Path, paths: Sequence[Path]) -> Iterator[Path]:
    args = data.args
    frame = table.rows(source, [args["group"], *args["features"], args["label"]])
    groups = table.texts(frame.pop(args["group"]))
    for group, path in zip(data.groups, paths, strict=True):
        rows, file = frame[groups == group], path.with_name(f"{path.name}.csv")
        if source.suffix.lower() in table.PARQUET:
            file = file.with_suffix(".parquet")
            rows.to_parquet(file, index=False)
        else:
            rows.to_csv(file, index=False)
        yield file


def _write_page(path: Path, head: Sequence[str], sections: Sequence[Section]) -> None:
    lines = [shipped.MODELINE + shipped.SCHEMA, *(_comment(line) for line in head)]
    for comment, name, values in sections:
        lines += [*(["", _comment(comment)] if comment else []), yaml.write({name: values}).rstrip()]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _comment(text: str) -> str:
    return textwrap.fill(text, 118, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)


def _finish(part: Path, data: OwnData, kind: str, ignored: Sequence[str], **facts: Any) -> None:
    example = "/data/table.csv" if data.dataset == "table" else "/data/pictures"
    place = clean(data.path or example, 4096)
    readme = template(Path(__file__).with_name(f"{kind}.md.j2")).render(facts, data=shlex.quote(place), example=example)
    (part / "README.md").write_text(readme, encoding="utf-8")
    (part / ".gitignore").write_text("".join(f"{line}\n" for line in ignored), encoding="utf-8")
    (part / shipped.SCHEMA).write_text(json.dumps(json_schema(), indent=1) + "\n", encoding="utf-8")
