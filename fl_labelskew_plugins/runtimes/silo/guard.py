"""Enforce a silo's policy, and count its answers across processes and runs."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fl_labelskew_registry import Federation, LabelSkewError, RunError, shareable
from pydantic import BaseModel
from torch import Tensor

from fl_labelskew_plugins.machine.files import locked, read_bytes, write_text
from fl_labelskew_plugins.machine.text import clean
from fl_labelskew_plugins.recipe.mistakes import quoted
from fl_labelskew_plugins.recipe.model import POLICY, Recipe
from fl_labelskew_plugins.recipe.policy import OPTIMIZER, OTHER
from fl_labelskew_plugins.recipe.sections import ACCOUNT, Policy
from fl_labelskew_plugins.tensors import State, content


class PolicyError(RunError):
    """The policy does not allow a request or a tensor."""


class AnswersFile(BaseModel):
    """Digests of answered requests, by run and round."""

    runs: dict[str, dict[str, list[str]]]


class Guard:
    """Enforces the policy in ``file`` in a running silo. Raises LabelSkewError for an unreadable record of answers."""

    def __init__(self, policy: Policy, file: str, folder: Path) -> None:
        self.policy, self.file = policy, file
        self.account = folder / ACCOUNT if policy.account is None else Path(policy.account)
        self._runs()

    def check_server(self, fingerprint: str) -> None:
        """Raise PolicyError for another server's fingerprint."""
        if self.policy.server_fingerprint not in (None, fingerprint):
            self._refuse("server_fingerprint", f"a certificate with {fingerprint}", "which the server has")

    def check_run(self, federation: Federation, quorum: Any) -> None:
        """Raise PolicyError unless the policy allows a run; ``quorum``: least number of uploads in a round."""
        # max_rounds was checked with the recipe
        least = self.policy.min_clients
        if least is not None:
            if type(quorum) is not int:
                self._refuse("min_clients", "a server that does not say how many uploads a round needs")
            if min(quorum, federation.clients_per_round) < least:
                self._refuse("min_clients", f"rounds of {min(quorum, federation.clients_per_round)} uploads")

    def count_answer(self, run: str, round: int, question: str, *, kind: str = "") -> None:
        """Count an answer before it is computed, unless the same request was answered before.

        ``kind``: empty for training; other kinds are counted separately. Raises PolicyError if the
        policy allows no more answers, and RunError if the account cannot be written.
        """
        self._count(run, str(round), question, f"round {round + 1} of run {run}", kind)

    def begin_survey(self) -> None:
        """Raise PolicyError if the policy allows no survey."""
        if self.policy.require_secure_aggregation:
            demand = "a survey, in which each silo sends its number of samples and its class counts"
            self._refuse("require_secure_aggregation", demand, "and this silo was started for a survey")

    def count_survey(self, question: str) -> None:
        """Record that this silo answers a survey with its class counts; raises as :meth:`count_answer`."""
        if self.policy.send is not None and "counts" not in self.policy.send:
            self._refuse("send", "class counts for a survey")
        self._count("survey", question, question, "a survey")

    def _count(self, run: str, round: str, question: str, request: str, kind: str = "") -> None:
        try:
            with locked(self.account.parent):  # a silo may answer several runs at the same time
                self._add(run, round, question, request, kind)
        except OSError as error:
            what = f"cannot be written: {error.strerror}; without the account of its policy this silo answers nothing"
            raise RunError(f"{self.account}: {what}") from None

    def _add(self, run: str, round: str, question: str, request: str, kind: str) -> None:
        runs = self._runs()
        answered = runs.setdefault(run, {}).setdefault(f"{round} {kind}".strip(), [])
        if question in answered:
            return
        most, per_round = self.policy.max_rounds, self.policy.max_answers_per_round
        rounds_of_kind = sum(key.partition(" ")[2] == kind for rounds in runs.values() for key in rounds)
        if not answered and most is not None and rounds_of_kind > most:
            self._refuse("max_rounds", f"an answer to {request} after {most} earlier ones", more=f" ({self.account})")
        if answered and per_round is not None and len(answered) >= per_round:
            self._refuse("max_answers_per_round", f"another answer to {request}")
        answered.append(question)
        write_text(self.account, json.dumps({"policy": self.file, "runs": runs}, indent=1), durable=True)

    def check_contributions(self, names: Iterable[str], kinds: Mapping[str, str]) -> None:
        """Raise PolicyError unless the policy allows these tensors; ``kinds``: ``Method.sends``."""
        for name in names:
            kind = OPTIMIZER if name.startswith(f"{OPTIMIZER}/") else kinds.get(name, OTHER)
            if self.policy.send is not None and kind not in self.policy.send:
                self._refuse("send", f"{kind}: {clean(name)}", "which the method would send")

    def _refuse(self, key: str, demand: str, origin: str = "which the server asks for", more: str = "") -> None:
        value = getattr(self.policy, key)
        limit = value if isinstance(value, str) else quoted(value)
        refused = f"{POLICY}.{key}: {limit} does not allow {demand}, {origin}"
        raise shareable(PolicyError(f"{self.file}: {refused}{more}"), refused)

    def _runs(self) -> dict[str, dict[str, list[str]]]:
        # read each time, because another process may have changed the file
        try:
            return AnswersFile.model_validate_json(read_bytes(self.account)).runs
        except FileNotFoundError:
            return {}
        except (OSError, ValueError):
            use = "restore the original file, or remove it to begin a new one"
            raise LabelSkewError(f"{self.account}: is not a valid record of a silo's answers; {use}") from None


def guard_of(recipe: Recipe, rank: int, folder: Path) -> Guard | None:
    """The guard of silo ``rank``, if any. Raises LabelSkewError if its policy or account is missing or damaged."""
    if recipe.policy is not None:
        return Guard(recipe.policy, recipe.client_specific.data_silo_config[rank - 1], folder)
    if (folder / ACCOUNT).exists():
        what = "this silo has answered under a policy, but this recipe names no file with a policy"
        use = "name the silo's own file in client_specific_args.data_silo_config, or remove the account"
        raise LabelSkewError(f"{folder / ACCOUNT}: {what}; {use}")
    return None


def request_digest(
    federation: Federation, round: int, meta: Mapping[str, Any], tensors: Mapping[str, Tensor], state: State
) -> str:
    """Digest of all that affects the answer to a request; ``state``: private."""
    digest = hashlib.sha256(json.dumps([asdict(federation), round, meta, len(tensors)], sort_keys=True).encode())
    for name, value in (*sorted(tensors.items()), *sorted(state.items())):
        digest.update(f"{name} {value.dtype} {list(value.shape)}\n".encode())
        digest.update(content(value))
    return digest.hexdigest()
