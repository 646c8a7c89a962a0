"""A silo's own policy: what it takes part in, and how often it answers, whatever a recipe or a server asks for.

It stands in the silo's own file, as the section ``policy``. What a recipe asks for beyond it is refused before
anything starts, what a server asks for when it does; the account of answers outlives the process.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fl_labelskew_registry import Federation, LabelSkewError, RunError
from pydantic import Field, field_validator

from fl_labelskew_plugins.machine.files import replacing
from fl_labelskew_plugins.machine.text import clean
from fl_labelskew_plugins.params import Params
from fl_labelskew_plugins.recipe.mistakes import show

if TYPE_CHECKING:
    from torch import Tensor

    from fl_labelskew_plugins.recipe.parse import Recipe
    from fl_labelskew_plugins.tensors import State

SECTION = "policy"
ACCOUNT = "account.json"
OTHER, OPTIMIZER = "other", "optimizer"
SENT = Literal["weights", "prototypes", "counts", "measures", "optimizer", "other"]
NOISES = ("count_noise", "upload_sigma", "dp")

Positive = Annotated[int, Field(ge=1)]


class Policy(Params):
    """What a silo takes part in; what is not given is not limited."""

    methods: list[str] | None = Field(None, description="methods that may run, of a combination each of them")
    max_rounds: Positive | None = Field(None, description="rounds that this silo answers, all runs together")
    max_answers_per_round: Positive | None = Field(
        None,
        description="different answers to one round of a run; the same question gets the same answer, which is one",
    )
    min_clients: Positive | None = Field(
        None, description="uploads that a round needs, by the recipe's comm_args.min_clients and the server's word"
    )
    send: list[SENT] | None = Field(
        None,
        description="what may leave: weights; prototypes (means of a class); counts (of each class); measures;"
        " optimizer (what an optimiser sends beside weights); other (of methods that do not say what it is)",
    )
    server_fingerprint: str | None = Field(
        None,
        pattern="^[0-9a-f]{64}$",
        description="SHA-256 of the server's certificate, as labelskew certs show has it",
    )
    noise_at_least: dict[str, float] = Field(
        {},
        description="least noise: count_noise (scale, on class counts), upload_sigma (std, on weights), dp (scale of"
        " the host's noise on weights, dp_args)",
        json_schema_extra={
            "properties": {name: {"type": "number", "exclusiveMinimum": 0} for name in NOISES},
            "additionalProperties": False,
        },
    )
    account: str | None = Field(
        None, description=f"file of the account of answers; default: {ACCOUNT} in the silo's folder"
    )

    @field_validator("noise_at_least", mode="before")
    @classmethod
    def _known_noise(cls, value: Any) -> Any:
        numbers: list[Any] = list(value.values()) if isinstance(value, dict) else [None]
        if not all(type(number) in (int, float) and number > 0 for number in numbers) or not value.keys() <= {*NOISES}:
            raise ValueError(
                f"{show(value)} is no mapping of noise; allowed: {', '.join(NOISES)}, each a number above 0"
            )
        return value


class PolicyError(RunError):
    """What a server asked for, or a method was about to send, and a silo's policy does not allow."""


def refused(policy: Policy, recipe: Recipe) -> Iterator[tuple[str, str]]:
    """What a recipe asks for beyond a policy: the policy's key, and the rest of a line.

    Args:
        policy: the silo's.
        recipe: as this silo would run it.
    """
    for name in recipe.method_name.split("+"):
        if policy.methods is not None and name not in policy.methods:
            yield _line(policy, "methods", f"method_args.method {name}")
    train = recipe.train
    everybody = train.clients_per_round == train.client_num_in_total
    if policy.max_rounds is not None and everybody and train.comm_round > policy.max_rounds:
        yield _line(policy, "max_rounds", f"train_args.comm_round {train.comm_round}")
    if policy.min_clients is not None and (quorum := recipe.comm.quorum(train.clients_per_round)) < policy.min_clients:
        yield _line(policy, "min_clients", f"comm_args.min_clients {quorum}")
    if policy.server_fingerprint is not None and recipe.comm.certs is None:
        yield _line(policy, "server_fingerprint", "a connection without certificates (comm_args.certs)")
    sent = list(_sent(recipe))
    for kind, what in sent:
        if policy.send is not None and kind not in policy.send:
            yield _line(policy, "send", f"{kind}: {what}")
    for name, least in policy.noise_at_least.items():
        if (strength := _noise(recipe, name, [what for kind, what in sent if kind == "counts"])) < least:
            key, text = f"noise_at_least.{name}", f"noise of {strength:g}"
            yield key, f"{least:g} does not allow {text}; set more noise, or change this policy"


def _line(policy: Policy, key: str, asked: str) -> tuple[str, str]:
    limit = show(getattr(policy, key))
    return key, f"{limit} does not allow {asked}; use a recipe that keeps to it, or change this policy"


def _sent(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """What leaves a silo, by kind, and where the recipe says so."""
    yield "weights", "every upload"
    if recipe.comm.send_measures:
        yield "measures", "comm_args.send_measures true"
    if recipe.train.proxy_aggregation == "class":
        yield "counts", "train_args.proxy_aggregation class"
    method, names = recipe.method, recipe.method_name
    some = Federation(2, 2, 1, 1, 2, 1, 2, 1, 0)  # names do not depend on sizes
    for name in method.opening_shapes(some) if method.uses("opening") else ():
        yield method.sends.get(name, OTHER), f"{name} in the opening exchange of {names}"
    if recipe.comm.send_contributions:
        for name in method.contribution_shapes(some):
            yield method.sends.get(name, OTHER), f"{name} in the uploads of {names}"
        if recipe.optimizer.contribution_shapes({"classifier.weight": (1, 1)}):
            yield OPTIMIZER, f"what {recipe.train.federated_optimizer} sends beside weights"


def _noise(recipe: Recipe, name: str, counts: list[str]) -> float:
    """Strength of one kind of noise, 0 without; infinite where there is nothing to add it to."""
    if name == "dp":
        return _host_noise(recipe)
    methods = list(getattr(recipe.method, "parts", {"": recipe.method}).values())
    strengths = [float(getattr(method.params, name, None) or 0) for method in methods]
    if name == "upload_sigma":
        return max(strengths)
    # only an opening's counts may have noise; those of an upload or of HELLO are exact
    exact = [what for what in counts if " in the opening exchange " not in what]
    opens = [method.uses("opening") and "counts" in method.sends.values() for method in methods]
    return 0.0 if exact else min(itertools.compress(strengths, opens), default=math.inf)


def _host_noise(recipe: Recipe) -> float:
    """The scale that FedML 0.9.6 computes for the noise that a client adds (``fedml/core/dp/mechanisms``)."""
    dp = recipe.dp
    if not dp.enable_dp or dp.dp_solution_type != "ldp" or dp.epsilon is None or dp.sensitivity is None:
        return 0.0
    delta = dp.delta or 0.0
    if dp.mechanism_type == "laplace":
        return dp.sensitivity / (dp.epsilon - math.log(1 - delta))
    return math.sqrt(2 * math.log(1.25 / delta)) * dp.sensitivity / dp.epsilon


class Guard:
    """A policy at work in a running silo.

    Args:
        policy: the silo's.
        file: where it stands.
        folder: the silo's own.

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
        """Raise PolicyError unless a run may be joined.

        Args:
            federation: as the server tells it.
            quorum: uploads that a round needs, as the server tells it.
        """
        least = self.policy.min_clients  # its rounds are the recipe's, which was looked at when it was read
        if least is not None:
            if type(quorum) is not int:
                self._refuse("min_clients", "a server that does not say how many uploads a round needs")
            if min(quorum, federation.clients_per_round) < least:
                self._refuse("min_clients", f"rounds of {min(quorum, federation.clients_per_round)} uploads")

    def answer(self, run: str, round: int, question: str) -> None:
        """Write an answer down before it is worked out; nothing where the same question was answered already.

        Args:
            run: the run's name.
            round: from 0.
            question: :func:`question`.

        Raises:
            PolicyError: there have been as many answers as the policy allows.
            RunError: the account cannot be written.
        """
        runs = self._runs()
        rounds = runs.setdefault(run, {})
        answered = rounds.setdefault(str(round), [])
        if question in answered:
            return
        most, often = self.policy.max_rounds, self.policy.max_answers_per_round
        if not answered and most is not None and sum(map(len, runs.values())) > most:
            self._refuse(
                "max_rounds", f"an answer to round {round + 1} of run {run}: {most} are given ({self.account})"
            )
        if answered and often is not None and len(answered) >= often:
            self._refuse("max_answers_per_round", f"another answer to round {round + 1} of run {run}")
        answered.append(question)
        try:
            with replacing(self.account) as part, part.open("w", encoding="utf-8") as file:
                json.dump({"policy": self.file, "runs": runs}, file, indent=1)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise RunError(
                f"{self.account}: cannot be written: {error.strerror}; without the account of its policy this silo "
                "answers nothing"
            ) from None

    def leaving(self, names: Iterable[str], kinds: Mapping[str, str]) -> None:
        """Raise PolicyError unless tensors of these names may leave beside weights.

        Args:
            names: of what a client has made, announced or not.
            kinds: a method's ``sends``.
        """
        for name in names:
            kind = OPTIMIZER if name.startswith(f"{OPTIMIZER}/") else kinds.get(name, OTHER)
            if self.policy.send is not None and kind not in self.policy.send:
                self._refuse("send", f"{kind}: {clean(name)}", "which the method would send")

    def _refuse(self, key: str, asked: str, whose: str = "which the server asks for") -> None:
        value = getattr(self.policy, key)
        limit = value if isinstance(value, str) else show(value)
        raise PolicyError(f"{self.file}: {SECTION}.{key}: {limit} does not allow {asked}, {whose}")

    def _runs(self) -> dict[str, dict[str, list[str]]]:
        """Questions answered, by run and round; read each time, for another process may have written them."""
        try:
            runs = json.loads(self.account.read_text(encoding="utf-8"))["runs"]
            sound = all(isinstance(q, str) for rounds in runs.values() for given in rounds.values() for q in given)
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            sound = False
        if not sound:
            raise LabelSkewError(
                f"{self.account}: is no account of a silo's answers; put back what was there, or remove it to "
                "begin anew"
            )
        return dict(runs)


def guard(recipe: Recipe, rank: int, folder: Path) -> Guard | None:
    """What keeps a silo to its policy; None where it has none.

    Args:
        recipe: the silo's own.
        rank: which silo, from 1.
        folder: the silo's own.

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
    """Digest of all that an answer rests on and that a server can choose.

    Args:
        federation: as the server told it.
        round: from 0.
        meta: of the request.
        tensors: weights and what is shared.
        state: the private state that the request names.
    """
    from torch import uint8

    digest = hashlib.sha256(json.dumps([asdict(federation), round, meta], sort_keys=True).encode())
    for name, value in (*sorted(tensors.items()), *sorted(state.items())):
        digest.update(f"{name} {value.dtype} {list(value.shape)}\n".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(uint8).numpy().data)
    return digest.hexdigest()[:32]
