"""Silos that the server's operator leaves out of a run: a file in the run's folder, read between rounds."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from fl_labelskew_registry import LabelSkewError, mistake

from fl_labelskew_plugins import seeds
from fl_labelskew_plugins.machine import log
from fl_labelskew_plugins.machine.files import write_text
from fl_labelskew_plugins.machine.text import clean
from fl_labelskew_plugins.recipe import parse as recipes
from fl_labelskew_plugins.runs.folder import RunFolder

NAME = "excluded.json"
LETTERS = 300
"""Of a reason, at most."""


def read(folder: Path) -> dict[int, str]:
    """Ranks of excluded silos, from 1, and why, as far as that was said.

    Raises:
        LabelSkewError: the file is none of ours.
    """
    file = folder / NAME
    try:
        ranks = json.loads(file.read_text(encoding="utf-8"))
        return {int(rank): clean(why, LETTERS) for rank, why in ranks.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError) as error:
        raise LabelSkewError(f"{file}: cannot be read: {clean(error)}; remove it to have all silos take part") from None


class Excluded:
    """Whom a running server leaves out; as text, the end of a message that says so, empty where nobody is.

    ``say`` and, for the audit log, ``note`` are told when somebody is excluded or included; ``clients``: who is
    excluded now, from 0, and why.
    """

    def __init__(self, folder: Path, silos: int, say: Callable[[str], None], note: Callable[..., None]) -> None:
        self.clients: dict[int, str] = {}
        self._folder, self._silos, self._say, self._note = folder, silos, say, note
        self._mistake = ""

    def __str__(self) -> str:
        ranks = ", ".join(str(client + 1) for client in sorted(self.clients))
        return f", excluded: {ranks} (labelskew silo include {self._folder} RANK)" if ranks else ""

    def read(self) -> bool:
        """Look it up; whether anything has changed. A file that makes no sense is said once, and changes nothing."""
        try:
            ranks, mistake = read(self._folder), ""
        except LabelSkewError as error:
            ranks, mistake = {client + 1: why for client, why in self.clients.items()}, str(error)
        if mistake and mistake != self._mistake:
            log.warn(f"{mistake}; until then it stays as it was")
        self._mistake = mistake
        before, self.clients = self.clients, {rank - 1: why for rank, why in ranks.items() if 1 <= rank <= self._silos}
        changed = sorted(before.keys() ^ self.clients.keys())
        for client in changed:
            why = self.clients.get(client, "")
            now = "excluded" if client in self.clients else "included"
            self._say(f"silo {client + 1} is {now}" + (f": {why}" if why else ""))
            self._note(now, rank=client + 1, why=why or None)
        return bool(changed)

    def replaced(self, sampled: Sequence[int], round: int, seed: int) -> list[int]:
        """Clients of a round, ascending, with others drawn in the place of excluded ones, where there are others."""
        clients = [k for k in sampled if k not in self.clients]
        spare = [k for k in range(self._silos) if k not in self.clients and k not in sampled]
        if missing := min(len(sampled) - len(clients), len(spare)):
            rng = seeds.numpy_generator(seed, "instead of excluded silos", round)
            clients += rng.choice(spare, missing, replace=False).tolist()
        return sorted(clients)


def exclude(folder: Path, rank: int, why: str) -> dict[int, str]:
    """Leave a silo out from the next round on; all who are left out then."""
    known = _of(folder, rank)
    if rank in known:
        raise mistake(folder, f"silo {rank} is excluded already", "`labelskew silo include` to bring it back")
    return _write(folder, known | {rank: clean(why, LETTERS)})


def include(folder: Path, rank: int) -> dict[int, str]:
    """Let a silo take part again from the next round on; all who are left out then."""
    known = _of(folder, rank)
    if rank not in known:
        there = f"excluded: {', '.join(map(str, sorted(known)))}" if known else "no silo of this run is"
        raise LabelSkewError(f"{folder}: silo {rank} is not excluded; {there}")
    del known[rank]
    return _write(folder, known)


def _of(folder: Path, rank: int) -> dict[int, str]:
    """Who is excluded in a run that has this rank.

    Raises:
        LabelSkewError: it is no run of silos, or has no such silo.
    """
    run = RunFolder(folder)
    if not folder.is_dir():
        raise mistake(folder, "no such folder", "the folder of the server's run")
    if not run.recipe.is_file():
        raise mistake(folder, "no recipe.yaml in it", "the folder of a server's run that has begun")
    recipe = recipes.load(run.recipe)
    if not recipe.common.across_silos:
        raise mistake(folder, "is no run across silos", "the folder of one (training_type: cross_silo)")
    if not 1 <= rank <= (silos := recipe.train.client_num_in_total):
        raise LabelSkewError(f"{folder}: no silo {rank} in it; allowed: 1 to {silos}")
    return read(folder)


def _write(folder: Path, known: dict[int, str]) -> dict[int, str]:
    try:
        write_text(folder / NAME, json.dumps({str(k): known[k] for k in sorted(known)}, indent=2) + "\n")
    except OSError as error:
        raise LabelSkewError(f"{folder / NAME}: cannot be written: {error.strerror}") from None
    return known
