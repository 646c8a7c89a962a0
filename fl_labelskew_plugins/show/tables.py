"""Texts before the first and after the last round of a run."""

from collections.abc import Mapping
from typing import Any

from fl_labelskew_plugins.data.stats import IMAGENET
from fl_labelskew_plugins.machine.text import clean, counted, few, percent, ranged, wrapped
from fl_labelskew_plugins.recipe import compatibility, privacy
from fl_labelskew_plugins.recipe.network_file import files
from fl_labelskew_plugins.runs.measure import GLOBAL, NAMED
from fl_labelskew_plugins.runs.record import Record
from fl_labelskew_plugins.runs.session import Session, of_classes
from fl_labelskew_plugins.show.progress import clock
from fl_labelskew_plugins.tensors import num_bytes


def describe(session: Session) -> str:
    """Describe a run before it starts."""
    recipe, federation = session.recipe, session.federation
    sizes = [n for n in session.sizes if n]
    held = f"{counted(len(sizes), 'client')} of {ranged(sizes, 'sample')}" if sizes else "clients not yet connected"
    if recipe.only_sums and sizes:
        sizes, held = [], counted(len(sizes), "client")  # the server does not know their samples
    counts = None if session.counts is None else session.counts[session.counts.sum(1) > 0]
    if counts is not None and len(counts):
        held += f" and {ranged((counts > 0).sum(1).tolist(), 'class', 'classes')}"
    if session.clients is not None:
        of_groups = list(session.clients.groups.values())
        held += f" ({recipe.partition.partition_method}{f': {few(of_groups)}' if of_groups else ''})"
    numbers = sum(p.numel() for p in session.trainer.model.parameters())
    size = num_bytes(session.start.values()) / 1e6
    trained = f"{recipe.method_name} with {recipe.train.federated_optimizer}"
    if recipe.train.reference is not None:
        trained = f"reference run, {recipe.train.reference}"
    lines = [
        f"{recipe.name}: {trained}, {recipe.comm.backend}",
        f"data: {recipe.data.dataset}, {of_classes(session.class_names, counts, sum(sizes))}, {held}",
        f"network: {recipe.network_name}, {numbers} parameters, {size:.2f} MB per message, "
        f"{federation.num_features} features",
    ]
    if recipe.only_sums:
        lines.append(privacy.reported_accuracy(recipe))
    if (weights := files(recipe).get("weights")) is not None:
        normalised = (session.mean, session.std) == IMAGENET
        hint = "" if normalised else "; ImageNet's weights expect data_args.mean: imagenet"
        lines.append(f"first weights: {clean(weights['file'], 4096)}; the classifier is initialised randomly{hint}")
    return "\n".join([*lines, *compatibility.overruled(recipe)])


def result_rows(session: Session, result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Labels and texts of a summary's accuracies."""
    rows = []
    if "final_accuracy" in result:
        measure = NAMED[result.get("measure", GLOBAL)]
        if measure.key != GLOBAL:
            rows.append(("tested on", measure.samples))
        tests = counted(result["last_tests"], "test").removeprefix("1 ")
        mean = f"{100 * result['last_mean']:.2f} % (std {100 * result['last_std']:.2f})"
        rows.append(("accuracy, last test", f"{100 * result['final_accuracy']:.2f} %"))
        rows.append((f"accuracy, last {tests}", mean))
        if "balanced_last_mean" in result:
            rows.append(("balanced accuracy, same tests", f"{100 * result['balanced_last_mean']:.2f} %"))
        rows.append(("best accuracy", f"{100 * result['best_accuracy']:.2f} % in round {result['rounds_to_best']}"))
    for key, label in (
        ("personalised_last_mean", f"{session.client_models}, own test splits"),
        ("private_models_accuracy", "inherited private models"),
    ):
        if key in result:
            rows.append((label, f"{100 * result[key]:.2f} %"))
    if "client_accuracy_pooled" in result:
        samples = counted(result["client_test_samples"], "sample")
        text = f"{100 * result['client_accuracy_pooled']:.2f} % of {samples} together"
        rows.append(("global model, all clients' tests", text))
    of_all = session.client_models if session.recipe.train.reference == "local" else "global model"
    for key, label in (("client_accuracy", of_all), ("client_personalised_accuracy", session.client_models)):
        if f"{key}_mean" in result and (f"{label}, over the clients",) not in {row[:1] for row in rows}:
            mean, std, worst = (f"{100 * result[f'{key}_{part}']:.2f}" for part in ("mean", "std", "worst"))
            name = result[f"{key}_worst_client"]
            text = f"all {mean} %" if worst == mean else f"mean {mean} % (std {std}), worst {worst} %: {name}"
            rows.append((f"{label}, over the clients", text))
    return rows


def table(record: Record) -> str:
    """The final table."""
    result, session = record.folder.results, record.session
    rows = result_rows(session, result)
    for key, label in (("client_accuracy", "accuracy"), ("client_balanced_accuracy", "balanced accuracy")):
        if key in result:
            if session.clients is not None:
                names = dict(session.trainer.names)
            else:  # without silos' ranks
                names = {k: name.partition(", ")[2] or name for k, name in enumerate(session.client_names)}
            texts = (percent(share, 1) for share in result[key])
            shares = [f"{names[k]} {text}" if names else text for k, text in enumerate(texts)]
            rows.append((f"{label}, each client's tests", (", " if names else " ").join(shares)))
    if "opening_left_out" in result:
        silos = " ".join(str(client + 1) for client in result["opening_left_out"])
        rows.append(("missing in the opening", f"silo {silos}"))
    rows.append(("sent up / down", f"{result['bytes_up'] / 1e6:.1f} / {result['bytes_down'] / 1e6:.1f} MB"))
    rows.append(("time", clock(result["seconds"])))
    width = max(len(label) for label, _ in rows)
    return "\n".join(wrapped(f"  {label:<{width}}  {value}", " " * (width + 4)) for label, value in rows)
