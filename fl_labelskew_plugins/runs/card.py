"""A run's ``MODEL_CARD.md``: what was trained, on what, how good it is, how to use it, and what it is not good for."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from fl_labelskew_plugins.machine.text import clean, counted, ranged
from fl_labelskew_plugins.recipe import compatibility
from fl_labelskew_plugins.runs.measure import NAMED
from fl_labelskew_plugins.runs.session import Session, made_up

USE = """\
## How to use it

In this folder:

```
labelskew predict . INPUT --out predictions.csv
labelskew evaluate . DATA
labelskew export . --format onnx --out model.onnx
```

From Python: `fl.load_run(".").predict(x)`, after `import fl_labelskew_plugins as fl`."""
MOST_NAMES, MOST_CLIENTS = 100, 50
"""Class names and clients that a card lists."""
WITH_BEST = " With `--best` a command takes `best.safetensors` in place of `model.safetensors`."


def text(session: Session, lines: Sequence[Mapping[str, Any]], result: Mapping[str, Any], *, best: bool) -> str:
    """The card, in Markdown; the same run has the same.

    Args:
        session: the run's.
        lines: of its ``metrics.jsonl``.
        result: its summary.
        best: whether ``best.safetensors`` is there.
    """
    recipe = session.recipe
    rounds = result["rounds"]
    shape = " x ".join(map(str, session.input_shape))
    numbers = sum(p.numel() for p in session.trainer.model.parameters())
    settings = recipe.train
    what = f"{code(recipe.network_name)} with {counted(numbers, 'parameter')}, for samples of shape {shape}"
    files = [f"- `model.safetensors`: the global model after round {rounds}, the last one"]
    if best:
        files.append(f"- `best.safetensors`: the global model after round {result['rounds_to_best']}, the best one")
    if session.method.personalises() and "private_models_accuracy" in result:
        files.append("- `clients/`: each client's personalised model")
    dealt = f"{code(recipe.partition.partition_method)}, {_params(recipe.partitioner.params.model_dump())}"
    how = [
        ("method", f"{code(recipe.method_name)}, {_params(recipe.resolved()['method_args'], 'method')}"),
        ("optimiser", f"{code(settings.federated_optimizer)}, {_params(recipe.optimizer.params.model_dump())}"),
        ("partition", "none: each silo has data of its own" if recipe.own_data else dealt),
        ("federation", f"{counted(settings.client_num_in_total, 'client')}, {settings.clients_per_round} in a round, "
                       f"{counted(rounds, 'round')} of {counted(settings.epochs, 'epoch')}"),
        ("local training", f"{settings.client_optimizer}, batches of {settings.batch_size}, learning rate "
                           f"{settings.learning_rate:g}, momentum {settings.momentum:g}"),
        ("seed", str(recipe.common.random_seed)),
    ]  # fmt: skip
    deviations = [*session.method.deviations(), *recipe.optimizer.deviations()]
    deviations += compatibility.overruled(recipe)
    parts = [
        f"# {code(recipe.method_name)} on {code(recipe.data.dataset)}",
        f"A network, {what}, trained by federated learning (fl-labelskew-plugins).",
        "\n".join(files),
        "## Data",
        *_data(session, result),
        "## Training",
        _table(("what", "which"), how),
        *(["\n".join(f"- {code(line)}" for line in deviations)] if deviations else []),
        "The whole recipe is `recipe.yaml`.",
        "## Numbers",
        *_numbers(session, lines, result),
        USE + (WITH_BEST if best else ""),
        "## Limits",
        "\n".join(f"- {limit}" for limit in _limits(session, result, best=best)),
    ]
    return "\n\n".join(parts) + "\n"


def code(words: object) -> str:
    """Somebody's words as code, of which Markdown takes nothing for its own; also in a table."""
    return f"`{clean(words, 400).replace('`', chr(39)).replace('|', '/') or ' '}`"


def _params(params: Mapping[str, Any], *but: str) -> str:
    said = {key: value for key, value in params.items() if key not in but}
    return ", ".join(code(f"{key}: {json.dumps(value, default=str)}") for key, value in said.items()) or "no parameters"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows))


def _data(session: Session, result: Mapping[str, Any]) -> list[str]:
    """Samples by class; across silos, where nobody may know that, how many there are in all."""
    names, test = session.class_names, session.trainer.test.y
    tested = test.bincount(minlength=len(names)).tolist()
    whose = [n for n in session.sizes if n]
    number = "Training samples" if session.recipe.sums_alone else counted(sum(whose), "training sample")
    training = f"{number} of {counted(len(whose), 'client')}"
    tests = counted(len(test), "test sample")
    if not len(test):
        known = sum(row["test_samples"] or 0 for row in result.get("clients", ()))
        known = result.get("client_test_samples", known)
        tests = f"{counted(known, 'test sample')} at the clients" if known else "no known test samples"
    lines = [f"{training}, {tests}, {counted(len(names), 'class', 'classes')}."]
    rows = [[code(name), str(n)] for name, n in zip(names, tested, strict=True)]
    head = ["class", "test samples"]
    if (clients := session.clients) is not None:
        head = ["class", "training samples", "clients that hold it", "test samples"]
        totals, holders = clients.counts.sum(0).tolist(), (clients.counts > 0).sum(0).tolist()
        rows = [[row[0], str(n), str(k), row[1]] for row, n, k in zip(rows, totals, holders, strict=True)]
    elif not len(test):
        lines.append("The samples are the silos'; their classes are not counted here. The classes:")
        return [*lines, ", ".join(map(code, names[:MOST_NAMES])) + ", ..." * (len(names) > MOST_NAMES)]
    else:
        lines.append("The training samples are the silos'; their classes are not counted here.")
    return [*lines, _table(head, rows)]


def _numbers(session: Session, lines: Sequence[Mapping[str, Any]], result: Mapping[str, Any]) -> list[str]:
    rows = []
    if "final_accuracy" in result:
        rows = [
            ("accuracy in the last test", _percent(result["final_accuracy"])),
            (f"the same, mean and std of the last {counted(result['last_tests'], 'test')}",
             f"{_percent(result['last_mean'])}, {_percent(result['last_std'])}"),
            (f"best accuracy, after round {result['rounds_to_best']}", _percent(result["best_accuracy"])),
        ]  # fmt: skip
        if "balanced_last_mean" in result:
            rows.append(("balanced accuracy, mean of the same tests", _percent(result["balanced_last_mean"])))
    if "client_accuracy_mean" in result:
        mean, worst = _percent(result["client_accuracy_mean"]), _percent(result["client_accuracy_worst"])
        rows.append(("accuracy on clients' own test parts after the last round, mean and worst", f"{mean}, {worst}"))
    if "personalised_last_mean" in result:
        label = f"{session.own_models} on their clients' own test splits, mean of the same tests"
        rows.append((label, _percent(result["personalised_last_mean"])))
    if "private_models_accuracy" in result:
        label = "inherited private models, as they were kept, likewise"
        rows.append((label, _percent(result["private_models_accuracy"])))
    parts = [_table(("measure", "value"), rows)] if rows else ["The global model was not tested here."]
    if "final_accuracy" in result:
        parts.insert(0, f"Accuracy is that on {NAMED[result['measure']].samples}.")
    if clients := result.get("clients", [])[:MOST_CLIENTS]:
        head = ("client", "training samples", "test samples", "accuracy after the last round")
        table = [
            (code(row["name"]), *(str(row[key] or "-") for key in ("training_samples", "test_samples")),
             _percent(row["accuracy"])) for row in clients
        ]  # fmt: skip
        parts.append(_table(head, table))
        if len(result["clients"]) > len(clients):
            parts.append(f"These are {len(clients)} of {len(result['clients'])} clients; `summary.json` has all.")
    tests = [line["recall"] for line in lines if "recall" in line]
    if tests:
        recalls = [(code(name), _percent(r)) for name, r in zip(session.class_names, tests[-1], strict=True)]
        parts.append(_table(("class", "recall after the last round"), recalls))
    return parts


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.2f} %"


def _limits(session: Session, result: Mapping[str, Any], *, best: bool) -> list[str]:
    limits = []
    if made_up(session.recipe):
        limits.append("**The data are made up** (`labelskew data fake`): the numbers say nothing about real ones.")
    if session.clients is not None:
        held = (session.clients.counts > 0).sum(1).tolist()
        classes = len(session.class_names)
        if min(held) < classes:
            hold = f"Clients hold {ranged(held, 'class', 'classes')} of {classes}"
            limits.append(f"{hold}: it was trained under label skew, and classes that few clients hold suffer first.")
        nobody = [code(session.class_names[c]) for c in (session.clients.counts.sum(0) == 0).nonzero()[0].tolist()]
        if nobody:
            limits.append(f"No client holds {', '.join(nobody[:20])}: the model has never seen it.")
    if "final_accuracy" in result:
        limits.append("The test samples came with the training samples; other sources may give other numbers.")
        chosen = "`best.safetensors` and the best accuracy were" if best else "The best accuracy was"
        where = NAMED[result["measure"]].samples
        limits.append(f"{chosen} chosen on the test samples themselves ({where}), so that number is optimistic.")
        limits.append("It is one run with one seed; another seed gives other numbers.")
    limits.append(
        "Probabilities are those of the softmax; whether they are as often right as they say was not checked."
    )
    limits.append("A sample of no class above gets one of them all the same.")
    limits.append(
        "It is the result of an experiment: no medical device, and for no decision about people, unless somebody has "
        "examined it for just that."
    )
    return limits
