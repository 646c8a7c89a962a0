"""A silo's policy at work: what a server asks for beyond it is refused; the account of answers outlives the process."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fl_labelskew_registry import Federation, LabelSkewError, RunError, shareable
from pydantic import BaseModel
from torch import Tensor, uint8

from fl_labelskew_plugins.machine.files import read_bytes, write_text
from fl_labelskew_plugins.machine.text import clean
from fl_labelskew_plugins.recipe.mistakes import show
from fl_labelskew_plugins.recipe.model import POLICY, Recipe
from fl_labelskew_plugins.recipe.policy import OPTIMIZER, OTHER
from fl_labelskew_plugins.recipe.sections import ACCOUNT, Policy
from fl_labelskew_plugins.tensors import State


class PolicyError(RunError):
    """What a server asked for, or a method was about to send, and a silo's policy does not allow."""


class AnswersFile(BaseModel):
    """A file of answers: digests of the questions that were answered, by run and round."""

    runs: dict[str, dict[str, list[str]]]


class Guard:
    """A policy at work in a running silo, with the file that it stands in and the silo's own folder.

    Raises:
        LabelSkewError: the account cannot be read.
    """

    def __init__(self, policy: Policy, file: str, folder: Path) -> None:
        self.policy, self.file = policy, file
        self.account = folder / ACCOUNT if policy.account is None else Path(policy.account)
        self._runs()

    def server(self, fingerprint: str) -> None:
        """Raise PolicyError unless the server that this fingerprint is of may be joined."""
        if self.policy.server_fingerprint not in (None, fingerprint):
            self._refuse("server_fingerprint", f"a server whose certificate has {fingerprint}")

    def join(self, federation: Federation, quorum: Any) -> None:
        """Raise PolicyError unless a run may be joined; ``quorum``: uploads that its rounds need, by the server."""
        least = self.policy.min_clients  # its rounds are the recipe's, which was looked at when it was read
        if least is not None:
            if type(quorum) is not int:
                self._refuse("min_clients", "a server that does not say how many uploads a round needs")
            if min(quorum, federation.clients_per_round) < least:
                self._refuse("min_clients", f"rounds of {min(quorum, federation.clients_per_round)} uploads")

    def answer(self, run: str, round: int, question: str, *, of: str = "") -> None:
        """Write an answer down before it is worked out; nothing where the same question was answered already.

        ``of``: of another kind than training; each kind is counted by itself.

        Raises:
            PolicyError: there have been as many answers as the policy allows.
            RunError: the account cannot be written.
        """
        self._write_down(run, str(round), question, f"round {round + 1} of run {run}", of)

    def survey(self, question: str) -> None:
        """Raise PolicyError unless class counts may leave for a survey; it is an answer, and written down as such."""
        if self.policy.require_secure_aggregation:
            self._refuse("require_secure_aggregation", "a survey, whose class counts leave singly")
        if self.policy.send is not None and "counts" not in self.policy.send:
            self._refuse("send", "counts: those of its classes, for a survey")
        self._write_down("survey", question, question, "a survey")

    def _write_down(self, run: str, round: str, question: str, what: str, of: str = "") -> None:
        """Write an answer to ``what`` into the account; see :meth:`answer`."""
        runs = self._runs()
        answered = runs.setdefault(run, {}).setdefault(f"{round} {of}".strip(), [])
        if question in answered:
            return
        most, often = self.policy.max_rounds, self.policy.max_answers_per_round
        alike = sum(key.partition(" ")[2] == of for rounds in runs.values() for key in rounds)
        if not answered and most is not None and alike > most:
            self._refuse("max_rounds", f"an answer to {what}: {most} are given ({self.account})")
        if answered and often is not None and len(answered) >= often:
            self._refuse("max_answers_per_round", f"another answer to {what}")
        answered.append(question)
        try:
            write_text(self.account, json.dumps({"policy": self.file, "runs": runs}, indent=1), durable=True)
        except OSError as error:
            raise RunError(
                f"{self.account}: cannot be written: {error.strerror}; without the account of its policy this silo "
                "answers nothing"
            ) from None

    def leaving(self, names: Iterable[str], kinds: Mapping[str, str]) -> None:
        """Raise PolicyError unless tensors of these names, announced in a method's ``sends`` or not, may leave."""
        for name in names:
            kind = OPTIMIZER if name.startswith(f"{OPTIMIZER}/") else kinds.get(name, OTHER)
            if self.policy.send is not None and kind not in self.policy.send:
                self._refuse("send", f"{kind}: {clean(name)}", "which the method would send")

    def _refuse(self, key: str, demand: str, whose: str = "which the server asks for") -> None:
        value = getattr(self.policy, key)
        limit = value if isinstance(value, str) else show(value)
        raise shareable(PolicyError(f"{self.file}: {POLICY}.{key}: {limit} does not allow {demand}, {whose}"))

    def _runs(self) -> dict[str, dict[str, list[str]]]:
        """Questions answered, by run and round; read each time, for another process may have written them."""
        try:
            return AnswersFile.model_validate_json(read_bytes(self.account)).runs
        except FileNotFoundError:
            return {}
        except (OSError, ValueError):
            raise LabelSkewError(
                f"{self.account}: is no account of a silo's answers; put back what was there, or remove it to "
                "begin anew"
            ) from None


def guard_of(recipe: Recipe, rank: int, folder: Path) -> Guard | None:
    """What keeps a silo, by its rank from 1, to its policy; None where it has none.

    Raises:
        LabelSkewError: the silo has answered under a policy and now has none, or its account cannot be read.
    """
    if recipe.policy is not None:
        return Guard(recipe.policy, recipe.client_specific.data_silo_config[rank - 1], folder)
    if (folder / ACCOUNT).exists():
        raise LabelSkewError(
            f"{folder / ACCOUNT}: this silo has answered under a policy, and this recipe names no file with one; name "
            "the silo's own file in client_specific_args.data_silo_config, or remove the account"
        )
    return None


def question(
    federation: Federation, round: int, meta: Mapping[str, Any], tensors: Mapping[str, Tensor], state: State
) -> str:
    """Digest of all that an answer rests on and that a server can choose; ``state``: what the request names of it."""
    digest = hashlib.sha256(json.dumps([asdict(federation), round, meta], sort_keys=True).encode())
    for name, value in (*sorted(tensors.items()), *sorted(state.items())):
        digest.update(f"{name} {value.dtype} {list(value.shape)}\n".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(uint8).numpy().data)
    return digest.hexdigest()[:32]
