"""A run's ``MODEL_CARD.md``, from the template ``card.md.j2``."""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined, Template

from fl_labelskew_plugins.machine.text import clean, counted, percent, ranged
from fl_labelskew_plugins.recipe import compatibility
from fl_labelskew_plugins.runs.measure import GLOBAL, NAMED
from fl_labelskew_plugins.runs.session import Session, made_up
from fl_labelskew_plugins.show.tables import result_rows

MAX_CLIENTS = 50


def text(session: Session, lines: Sequence[Mapping[str, Any]], result: Mapping[str, Any], *, best: bool) -> str:
    """The card of a run; ``lines``: of ``metrics.jsonl``; ``result``: its summary."""
    recipe, model, clients = session.recipe, session.trainer.model, session.clients
    names = [code(name) for name in session.class_names]
    recalls = [line["recall"] for line in lines if "recall" in line]
    held = [] if clients is None else (clients.counts > 0).sum(1).tolist()
    unseen = [] if clients is None else (clients.counts.sum(0) == 0).nonzero()[0].tolist()
    facts: dict[str, Any] = {
        "parameters": sum(p.numel() for p in model.parameters()),
        "tested": len(session.trainer.test.y),
        "samples": _samples(session, result),
        "classes": _classes(session, names),
        "training": _training(session, result),
        "deviations": [*session.method.deviations(), *recipe.optimizer.deviations(), *compatibility.overruled(recipe)],
        "measured_on": NAMED[result.get("measure", GLOBAL)].samples,
        "numbers": [(label, code(value)) for label, value in result_rows(session, result)],
        "clients": [
            [code(row["name"]), row["training_samples"] or "-", row["test_samples"] or "-", _percent(row["accuracy"])]
            for row in result.get("clients", [])[:MAX_CLIENTS]
        ],
        "recall": list(zip(names, map(_percent, recalls[-1]), strict=True)) if recalls else [],
        "made_up": made_up(recipe),
        "few_classes": ranged(held, "class", "classes") if held and min(held) < len(names) else "",
        "unseen": [names[c] for c in unseen],
    }
    return template(Path(__file__).with_name("card.md.j2")).render(
        facts, session=session, recipe=recipe, result=result, best=best, names=names, code=code, counted=counted
    )


@cache
def template(file: Path) -> Template:
    """A template of a Markdown page."""
    page = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    return page.from_string(file.read_text(encoding="utf-8"))


def code(words: object) -> str:
    """Quote untrusted text as Markdown code, also for tables."""
    return f"`{clean(words, 400).replace('`', chr(39)).replace('|', '/') or ' '}`"


def _params(params: Mapping[str, Any], *excluded: str) -> str:
    values = {key: json.dumps(value, default=str) for key, value in params.items() if key not in excluded}
    return ", ".join(code(f"{key}: {value}") for key, value in values.items()) or "no parameters"


def _samples(session: Session, result: Mapping[str, Any]) -> str:
    sizes, tested = [n for n in session.sizes if n], len(session.trainer.test.y)
    number = "Training samples" if session.recipe.only_sums else counted(sum(sizes), "training sample")
    tests = counted(tested, "test sample")
    if not tested:
        of_clients = sum(row["test_samples"] or 0 for row in result.get("clients", ()))
        of_clients = result.get("client_test_samples", of_clients)
        tests = f"{counted(of_clients, 'test sample')} at the clients" if of_clients else "no known test samples"
    classes = counted(len(session.class_names), "class", "classes")
    return f"{number} of {counted(len(sizes), 'client')}, {tests}, {classes}"


def _classes(session: Session, names: Sequence[str]) -> list[tuple[Any, ...]]:
    tested = session.trainer.test.y.bincount(minlength=len(names)).tolist()
    if session.clients is None:
        return [("class", "test samples"), *zip(names, tested, strict=True)]
    counts = session.clients.counts
    rows = zip(names, counts.sum(0).tolist(), (counts > 0).sum(0).tolist(), tested, strict=True)
    return [("class", "training samples", "clients that hold it", "test samples"), *rows]


def _training(session: Session, result: Mapping[str, Any]) -> dict[str, str]:
    recipe, train = session.recipe, session.recipe.train
    partition = f"{code(recipe.partition.partition_method)}, {_params(recipe.partitioner.params.model_dump())}"
    return {
        "method": f"{code(recipe.method_name)}, {_params(recipe.resolved()['method_args'], 'method')}",
        "optimiser": f"{code(train.federated_optimizer)}, {_params(recipe.optimizer.params.model_dump())}",
        "partition": "none: each silo has its own data" if recipe.own_data else partition,
        "federation": f"{counted(train.client_num_in_total, 'client')}, {train.clients_per_round} in a round, "
        f"{counted(result['rounds'], 'round')} of {counted(train.epochs, 'epoch')}",
        "local training": f"{train.client_optimizer}, batches of {train.batch_size}, learning rate "
        f"{train.learning_rate:g}, momentum {train.momentum:g}",
        "seed": str(recipe.common.random_seed),
    }


def _percent(share: float | None) -> str:
    return percent(share) + (" %" if share is not None else "")
