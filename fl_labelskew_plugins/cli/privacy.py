from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click
from fl_labelskew_registry import LabelSkewError, mistake

from fl_labelskew_plugins.cli import completion, table
from fl_labelskew_plugins.cli.options import PATH, SET
from fl_labelskew_plugins.machine.text import clean, counted, ranged, wrapped

if TYPE_CHECKING:
    from fl_labelskew_plugins.ledgers.privacy import Ledger, LedgerEntry
    from fl_labelskew_plugins.recipe.model import Recipe
    from fl_labelskew_plugins.recipe.privacy import Noise
    from fl_labelskew_plugins.recipe.sections import PrivacyBudget

MAX_CLIENTS = 20
LEVELS = (
    "silo: all samples of the silo are replaced by as many others; proven for values that are clipped and have noise",
    "claim: one sample of the silo is replaced by another; proven for class counts; for weights it relies on the claim "
    "of FedRS's appendix B that a sample moves an update by at most 2L/m, or on the author of dp_args.sensitivity",
)


@click.command("privacy")
@click.argument("place", metavar="RUN|RECIPE", type=PATH, shell_complete=completion.recipes)
@SET
@click.option(
    "--samples",
    type=click.IntRange(1),
    metavar="N",
    help="Training samples of the smallest silo.  [default: by RECIPE's own partition]",
)
def privacy_command(place: Path, overrides: tuple[str, ...], samples: int | None) -> None:
    """Show epsilon so far and what was revealed, or how many rounds a budget allows.

    RUN is the folder of a silo or of a simulation, or a ledger's file (.jsonl): the command lists answers or clients.
    For a RECIPE, it lists the data that leave a client, their noise, and the rounds that the budget allows. --set and
    --samples need a RECIPE. docs/privacy.md explains epsilon and its two levels.
    """
    if not (place.is_dir() or place.suffix == ".jsonl"):
        _show(_forecast(place, overrides, samples))
        return
    if given := [option for option, value in (("--set", overrides), ("--samples", samples)) if value]:
        raise mistake(" and ".join(given), "needs a recipe, but this is a ledger", "a recipe, or only the ledger")
    from fl_labelskew_plugins.ledgers.privacy import NAME, Ledger

    file = place / NAME if place.is_dir() else place
    if not file.is_file():
        use = "the folder of a run with noise or a budget, or the file of its privacy_args.ledger"
        if others := sorted(other.parent for other in place.glob(f"silos/*/{NAME}")):
            use = f"a silo's own folder, such as {others[0]}"
        problem = f"contains no ledger ({NAME})" if place.is_dir() else "no such file"
        raise mistake(str(place), problem, use)
    ledger = Ledger(file)
    simulated = any(entry.client is not None for entry in ledger.entries)
    _show(_clients(ledger) if simulated else _answers(ledger))


def _show(parts: Iterable[str]) -> None:
    click.echo("\n\n".join([*parts, "\n".join(map(wrapped, LEVELS))]))


def _answers(ledger: Ledger) -> Iterator[str]:
    rows = [[entry.time, clean(entry.run, 16), *_cells(entry)] for entry in ledger.entries]
    yield f"{ledger.file}: {counted(len(rows), 'answer')}"
    yield table.plain(["time", "run", "round", "epsilon, silo", "claim", "at delta", "answered"], rows)


def _clients(ledger: Ledger) -> Iterator[str]:
    last: dict[int, LedgerEntry] = {}
    times: dict[int, int] = {}
    for entry in ledger.entries:
        client = entry.client or 0
        last[client], times[client] = entry, times.get(client, 0) + (entry.round >= 0)
    order = sorted(last, key=lambda client: (-times[client], client))
    rows = [[str(client), str(times[client]), *_cells(last[client])] for client in order[:MAX_CLIENTS]]
    more = f"; the {MAX_CLIENTS} with the most answers are listed" if len(order) > MAX_CLIENTS else ""
    yield f"{ledger.file}: {counted(len(order), 'client')}{more}"
    yield table.plain(["client", "rounds", "last", "epsilon, silo", "claim", "at delta", "answered last"], rows)


def _cells(entry: LedgerEntry) -> list[str]:
    round_ = "before" if entry.round < 0 else str(entry.round + 1)
    epsilons = (_epsilon(entry.epsilon[level]) if entry.epsilon else "?" for level in ("silo", "claim"))
    return [round_, *epsilons, f"{entry.delta:g}", _revealed(entry.answered)]


def _epsilon(value: float | None) -> str:
    return "no bound" if value is None else f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def _revealed(noises: list[Noise]) -> str:
    exact = [f"{clean(noise.on, 80)} (exact)" for noise in noises if noise.kind == "none"]
    noisy = [f"{clean(noise.on, 80)} ({noise.kind} noise)" for noise in noises if noise.kind != "none"]
    return "; ".join([*noisy, *exact])


def _forecast(path: Path, overrides: tuple[str, ...], samples: int | None) -> Iterator[str]:
    from fl_labelskew_plugins.ledgers import privacy
    from fl_labelskew_plugins.recipe.parse import load
    from fl_labelskew_plugins.recipe.privacy import sent_noise

    privacy.require("labelskew privacy")
    recipe = load(path, overrides)
    if samples is not None:
        sizes = [samples]
    elif recipe.own_data:
        problem = "the silos' own data are not available to this command; use --samples N"
        raise LabelSkewError(f"client_specific_args.data_silo_config: {problem}")
    else:
        from fl_labelskew_plugins.runs.session import divided

        sizes = [int(n) for n in divided(recipe)[1].counts.sum(1) if n]
    train, budget = recipe.train, recipe.privacy.budget
    joining = f"{train.clients_per_round} of {counted(train.client_num_in_total, 'client')}"
    title = f"{clean(recipe.name)}: {recipe.method_name}, {counted(train.comm_round, 'round')} of {joining}"
    yield wrapped(f"{title}, of {ranged(sizes, 'training sample')}")
    parts = sent_noise(recipe, max(sizes), min(sizes))
    rows = [
        [when, *(f"{value:.3g}" if value else "-" for value in (noise.silo, noise.claim)), _revealed([noise])]
        for when, noises in (("once", parts.once), ("each round", parts.upload))
        for noise in noises
    ]
    head = ["when", "silo", "claim", "what leaves a client"]
    yield "Noise divided by sensitivity, for the client with the smallest ratio:\n" + table.plain(head, rows)
    delta = privacy.DELTA if budget is None else budget.delta
    answers = dict.fromkeys((1, privacy.expected(recipe), train.comm_round))
    rows = []
    for level in privacy.LEVELS:
        values = (privacy.after(parts.once, parts.upload, number, level, delta) for number in answers)
        rows.append([level, *(_epsilon(value if math.isfinite(value) else None) for value in values)])
    columns = ["epsilon", *(f"after {counted(number, 'answer')}" for number in answers)]
    yield f"For one client, at delta {delta:g}:\n" + table.plain(columns, rows)
    unlimited = "privacy_args.budget: not set, so the number of answers is not limited"
    yield unlimited if budget is None else wrapped(_allowed(recipe, sizes, budget))


def _allowed(recipe: Recipe, sizes: list[int], budget: PrivacyBudget) -> str:
    from fl_labelskew_plugins.ledgers import privacy

    train, most = recipe.train, privacy.affordable_uploads(recipe, sizes, budget)
    spent = f"budget of epsilon {budget.epsilon:g} at delta {budget.delta:g}, level {recipe.privacy.level}"
    if most < 1:
        refused = "the opening exchange" if most < 0 else "one answer of a client"
        return f"{spent}: too small for {refused}; use more noise, or a larger budget"
    if most >= privacy.MAX_ANSWERS:
        return f"{spent}: allows more answers per client than are counted (maximum {privacy.MAX_ANSWERS})"
    rounds, joining, clients = "", train.clients_per_round, train.client_num_in_total
    if joining < clients:
        rounds = f", about {counted(most * clients // joining, 'round')} if each round selects {joining} of {clients}"
    return f"{spent}: allows {counted(most, 'answer')} per client{rounds} (the recipe has {train.comm_round} rounds)"
