"""A silo's side of secure sums over the network."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fl_labelskew_registry import LabelSkewError, RunError
from torch import Tensor

from fl_labelskew_plugins.engine.ring import Ring, Vector
from fl_labelskew_plugins.engine.sums import as_tensor
from fl_labelskew_plugins.ledgers.audit import Audit
from fl_labelskew_plugins.machine.text import clean
from fl_labelskew_plugins.runtimes.silo.secure import wire
from fl_labelskew_plugins.runtimes.silo.secure.account import Account
from fl_labelskew_plugins.runtimes.silo.secure.attempt import (
    Attempt,
    SecureError,
    SitsOutError,
    Sizes,
    about,
    invalid_message,
    listed,
    where,
)
from fl_labelskew_plugins.runtimes.silo.secure.identity import Authority, Identity
from fl_labelskew_plugins.runtimes.silo.secure.shares import SEALED
from fl_labelskew_plugins.runtimes.silo.secure.silo import SiloRound
from fl_labelskew_plugins.runtimes.transport import SERVER, Kind, Message


@dataclass(repr=False)  # it contains shares of secrets
class SiloSums:
    """A silo's part in secure sums.

    ``vector``: returns the ring of a round's sum, the silo's vector, and the digest of the request, or None.
    ``warn``: gets the kind of a warning and its text, and limits each kind: a server can cause warnings without end.
    """

    rank: int
    identity: Identity
    authority: Authority
    account: Account
    vector: Callable[[int], tuple[Ring, Vector, str] | None]
    noisy: Callable[[SiloRound, Vector], Vector] | None
    send: Callable[..., None]
    warn: Callable[[str, str], None]
    audit: Audit
    sizes: Callable[[int], Sizes]
    _round: SiloRound | None = None
    _answered: tuple[Any, ...] = ()
    _answer: Mapping[str, Any] = field(default_factory=dict)

    def take(self, run: str, message: Message) -> None:
        """Answer a request; a repeated one gets the same answer. Raises SecureError for an invalid one."""
        kind, round, number = message.kind, message.round, message.meta["attempt"]
        if type(number) is not int:
            raise RunError("the number of the server's attempt is not an integer")
        step = (run, round, number, kind)
        if step != self._answered:
            try:
                tensors = self._tensors(run, message)
            except SecureError as error:
                self.audit.note("sum", **about(run, round, number), reason=str(error))
                if not isinstance(error, SitsOutError):
                    raise
                self._round = None
                self.warn("no part in a sum:", str(error))
                self._answer = {"meta": {"attempt": number, "reason": error.public}}
            except LabelSkewError:
                raise
            except Exception as error:  # it may contain values of this silo
                self.warn("invalid:", str(invalid_message(round, "the server", error)))
                raise SecureError(f"{where(round)}: this silo received an invalid message from the server") from None
            else:
                if tensors is None:
                    return
                self._answer = {"meta": {"attempt": number}, "tensors": tensors}
            self._answered = step
        self.send(kind, SERVER, round=round, **self._answer)

    def end(self) -> None:
        """Forget all keys and masks."""
        self._round, self._answered, self._answer = None, (), {}

    def _tensors(self, run: str, message: Message) -> dict[str, Tensor] | None:
        kind, round, number = message.kind, message.round, message.meta["attempt"]
        if kind == Kind.KEYS:
            contribution = self.vector(round)
            if contribution is None:
                raise SitsOutError(f"{where(round)}: this silo has nothing to send")
            ring, _, question = contribution
            attempt = Attempt(run, round, number, ring.bits, ring.size, self.sizes(round), question, ring.wide)
            parties = self.identity, self.authority, self.account
            self._round = SiloRound(attempt, self.rank, *parties, noisy=self.noisy)
            return wire.tensors({self.rank: self._round.advertise()})
        part = self._round
        if part is None or (part.attempt.run, part.attempt.round, part.attempt.number) != (run, round, number):
            return None
        attempt, tensors = part.attempt, message.tensors
        if kind == Kind.MASKED:
            sharing = wire.texts(tensors, attempt)
            contribution = self.vector(round)
            if contribution is None or contribution[2] != attempt.question:
                raise SitsOutError(f"{attempt.where}: this silo has nothing to send any more")
            return {wire.VECTOR: as_tensor(part.mask(contribution[1], sharing))}
        texts = wire.texts(tensors, attempt)
        if kind == Kind.SHARES:
            sealed, commitments = part.share(texts)
            answer = {0: commitments, **sealed}
        elif kind == Kind.CHECKED:
            answer = part.check({dealer: (text[:SEALED], text[SEALED:]) for dealer, text in texts.items()})
            if self.rank not in answer:
                problem = f"the shares of {listed(answer)} do not fit their commitments"
                self.warn("complaint:", f"{attempt.where}: {problem}")
                self.audit.note("complaint", **about(run, round, number), reason=problem)  # the complaint reveals keys
        elif kind == Kind.INCLUDED:
            ranks = message.meta["included"]
            if not isinstance(ranks, list) or not all(type(rank) is int for rank in ranks):
                raise attempt.error(f"the server sent {clean(ranks)} instead of a list of silos")
            answer = {self.rank: part.agree(ranks)}
        else:
            answer = part.reveal(texts)
            self.audit.note("revealed", **about(run, round, number), silos=part.included, lost=part.lost)
        return wire.tensors(answer)
