"""Clients' private states in files, by client and round.

An interrupted round has no effect: a commit makes all states of a round valid. Files of a checkpoint never change.
"""

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from safetensors.torch import load_file

from fl_labelskew_plugins.tensors import State, save_atomic

StateKey = tuple[int, int]  # a client and the round that wrote its state


class StateStore:
    """Private tensors of clients.

    Of a resumed run: ``index`` from :meth:`flush`, numbers of ``selections`` per client, and indices of ``earlier``
    checkpoints that are kept, oldest first.
    """

    def __init__(
        self,
        folder: Path,
        index: dict[int, int] | None = None,
        selections: dict[int, int] | None = None,
        earlier: Sequence[dict[int, int]] = (),
    ) -> None:
        self.folder = folder
        self.committed: dict[int, int] = dict(index or {})
        self.selections = Counter(selections)
        self._kept: list[dict[int, int]] = [dict(rounds) for rounds in (*earlier, index or {})]
        self._replaced = {key for rounds in earlier for key in rounds.items()} - self.committed.items()
        """Superseded states that checkpoints refer to."""
        self._pending: dict[int, int] = {}
        self._selected: list[int] = []
        self._unsynced: set[StateKey] = set()
        """States that a power failure may still erase."""
        wanted = {self._file(key) for kept in self._kept for key in kept.items()}
        for file in folder.glob("*.safetensors*"):  # leftovers of a killed process
            if file not in wanted:
                file.unlink()

    def select(self, client: int) -> int:
        """Count a selection of this client in this round; return its number of selections."""
        self._selected.append(client)
        return self.selections[client] + 1

    def get(self, client: int, *, latest: bool = False) -> State:
        """The client's last committed state, or its ``latest``; may be empty."""
        rounds = {**self.committed, **self._pending} if latest else self.committed
        return load_file(self._file((client, rounds[client]))) if client in rounds else {}

    def put(self, client: int, round: int, state: State) -> None:
        """Set the client's state; valid from the next :meth:`commit`."""
        if not state:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        save_atomic(state, self._file((client, round)), durable=False)
        self._unsynced.add((client, round))
        self.note(client, round)

    def note(self, client: int, round: int) -> None:
        """Like :meth:`put`, for a client that stores its state itself."""
        self._pending[client] = round

    def kept(self, client: int) -> list[int]:
        """Rounds of the client's states in checkpoints, ascending."""
        return sorted({index[client] for index in self._kept if client in index})

    def commit(self) -> None:
        """Make this round's states valid."""
        for client in self._pending.keys() & self.committed.keys():
            old = (client, self.committed[client])
            if old[1] in self.kept(client):
                self._replaced.add(old)
            else:
                self._file(old).unlink(missing_ok=True)
        self.committed |= self._pending
        self.selections.update(self._selected)
        self._pending, self._selected = {}, []

    def discard(self) -> None:
        """Drop the current round's states."""
        for key in self._pending.items():
            self._file(key).unlink(missing_ok=True)
        self._pending, self._selected = {}, []

    def flush(self) -> dict[int, int]:
        """Make all committed states durable; return the index for a checkpoint."""
        for key in self._unsynced & self.committed.items():
            with self._file(key).open("rb+") as file:
                os.fsync(file.fileno())
        self._unsynced.clear()
        return dict(self.committed)

    def checkpointed(self, keep: int = 1) -> None:
        """Record a checkpoint; delete states of checkpoints before the last ``keep``."""
        self._kept = [*self._kept, dict(self.committed)][-keep:]
        unneeded = {(client, round) for client, round in self._replaced if round not in self.kept(client)}
        for key in unneeded:
            self._file(key).unlink(missing_ok=True)
        self._replaced -= unneeded

    def _file(self, key: StateKey) -> Path:
        return self.folder / f"client{key[0]:06d}-round{key[1]:06d}.safetensors"


class Versions:
    """One client's private states in files, one per round."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get(self, round: int) -> State:
        """The state of this round; empty by default."""
        file = self._file(round)
        return load_file(file) if file.exists() else {}

    def has(self, round: int) -> bool:
        """Whether this round has a state, possibly an empty one."""
        return self._file(round).exists()

    def put(self, round: int, state: State) -> None:
        """Write a state; an empty one, too, because a missing file looks lost."""
        self.folder.mkdir(parents=True, exist_ok=True)
        save_atomic(state, self._file(round))

    def keep(self, rounds: set[int]) -> None:
        """Delete all other rounds' states, and incomplete files."""
        wanted = {self._file(round) for round in rounds}
        for file in self.folder.glob("round*.safetensors*"):
            if file not in wanted:
                file.unlink()

    def _file(self, round: int) -> Path:
        return self.folder / f"round{round:06d}.safetensors"
