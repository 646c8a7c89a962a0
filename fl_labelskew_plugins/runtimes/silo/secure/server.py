"""The server's part in a secure sum."""

from collections.abc import Collection, Mapping
from contextlib import suppress

import numpy as np

from fl_labelskew_plugins.engine.ring import Vector, add, trim, unit
from fl_labelskew_plugins.recipe.sections import LEAST_SUMMED
from fl_labelskew_plugins.runtimes.silo.secure import masks, shares
from fl_labelskew_plugins.runtimes.silo.secure.attempt import Attempt, SecureError, listed
from fl_labelskew_plugins.runtimes.silo.secure.identity import Advert, Authority
from fl_labelskew_plugins.runtimes.silo.secure.shares import Way
from fl_labelskew_plugins.runtimes.silo.secure.silo import agreement, checked, roster_digest


class ServerRound:
    """The server in one attempt. Invalid answers and too few silos raise :class:`.SecureError`."""

    def __init__(self, attempt: Attempt, authority: Authority) -> None:
        self.attempt, self._authority = attempt, authority
        self._threshold = LEAST_SUMMED
        self._shown: dict[int, Advert] = {}
        self._roster: dict[int, bytes] = {}
        self._digest = b""
        self._dealt: dict[int, tuple[dict[int, bytes], bytes]] = {}
        self._confirmed: dict[int, bytes] = {}
        self.cheats: dict[int, str] = {}  # acts of silos, with proof
        self._complainants: list[int] = []
        self._dealers: list[int] = []
        self._sharing: dict[int, bytes] = {}  # signatures of the silos that share masks
        self._added: set[int] = set()
        self._included: list[int] = []
        self._signatures: dict[int, bytes] = {}
        self._revealed: dict[int, dict[int, int]] = {}
        self._secrets: dict[int, int] = {}
        self._total: Vector = np.zeros(attempt.length, unit(attempt.bits))

    def advertised(self, rank: int, advert: bytes) -> None:
        """Step 0: take a silo's keys."""
        self._check_not_ended(rank, self._roster)
        shown = Advert.unpack(advert)
        self._authority.check(rank, shown, self.attempt)
        if known := {other for other, theirs in self._shown.items() if set(theirs.points) & set(shown.points)}:
            raise self.attempt.error(f"silo {rank} sent a key of {listed(known)}")
        self._shown[rank] = shown

    def shared(self, rank: int, sealed: Mapping[int, bytes], commitments: bytes) -> None:
        """Step 1: take a silo's encrypted shares and commitments."""
        self._among(rank, self._roster, "shares")
        self._check_not_ended(rank, self._dealers)
        wrong = [len(text) for text in sealed.values() if len(text) != shares.SEALED]
        if sealed.keys() != self._roster.keys() or wrong:
            what = f"silo {rank} must send exactly one pair of shares"
            raise self.attempt.error(f"{what} to each of {listed(self._roster)}")
        if len(commitments) != 2 * (self._threshold - 1) * masks.POINT:
            raise self.attempt.error(f"silo {rank} did not send {self._threshold} commitments for each of its secrets")
        self._dealt[rank] = dict(sealed), commitments

    def checked(self, rank: int, answer: Mapping[int, bytes]) -> None:
        """Step 2: take a silo's signature, or its complaints."""
        self._among(rank, self._dealers, "an answer")
        self._check_not_ended(rank, self._sharing)
        if answer.keys() == {rank}:
            if not self._shown[rank].signed(answer[rank], checked(self.attempt, self._digest)):
                raise self.attempt.error(f"the signature of silo {rank} does not match its shares")
            self._confirmed[rank] = answer[rank]
            return
        if not answer or not answer.keys() <= {*self._dealers} - {rank}:
            expected = f"expected: other silos among {listed(self._dealers)}"
            raise self.attempt.error(f"silo {rank} complained about {listed(answer)}; {expected}")
        for dealer, secret in answer.items():
            if self._proven(rank, dealer, secret):
                self.cheats[dealer] = f"sent silo {rank} shares that do not fit its commitments"
            else:
                self.cheats[rank] = f"complained about silo {dealer}, but the shares of silo {dealer} match"
                raise self.attempt.error(f"silo {rank} {self.cheats[rank]}")
        self._complainants.append(rank)

    def masked(self, rank: int, vector: Vector) -> None:
        """Step 3: add a silo's masked vector."""
        self._among(rank, self._sharing, "a vector")
        self._check_not_ended(rank, self._included)
        if rank in self._added:
            raise self.attempt.error(f"silo {rank} sent a second vector")
        attempt = self.attempt
        add(self._total, attempt.vector(vector, f"the vector of silo {rank}"), attempt.bits, attempt.wide)
        self._added.add(rank)

    def agreed(self, rank: int, signature: bytes) -> None:
        """Step 4: take a silo's signature of the silos in the sum."""
        self._among(rank, self._included, "a signature")
        text = agreement(self.attempt, self._digest, self._included)
        if not self._shown[rank].signed(signature, text):
            silos = listed(self._included)
            raise self.attempt.error(f"the signature of silo {rank} does not match the sum over {silos}")
        self._signatures[rank] = signature

    def revealed(self, rank: int, given: Mapping[int, bytes]) -> bool:
        """Step 5: take a silo's shares; return whether they suffice to open the sum."""
        self._among(rank, self._included, "shares")
        if given.keys() != set(self._sharing):
            wrong = listed(given.keys() ^ set(self._sharing))
            raise self.attempt.error(f"silo {rank} revealed too few or too many shares: {wrong}")
        self._revealed[rank] = {dealer: int.from_bytes(share, "big") for dealer, share in given.items()}
        with suppress(SecureError):  # wrong shares may be replaced by those of the next silo
            self._combine()
        return bool(self._secrets)

    def roster(self) -> dict[int, bytes]:
        """End step 0; return all keys."""
        if not self._roster:
            self._threshold = self.attempt.threshold(self._shown)
            self._roster = {rank: advert.pack() for rank, advert in sorted(self._shown.items())}
            self._digest = roster_digest(self.attempt, self._roster)
        return self._roster

    def dealt(self, rank: int) -> dict[int, tuple[bytes, bytes]]:
        """End step 1; return a silo's shares and the commitments, by dealer."""
        if not self._dealers:
            self._enough(self._dealt, "have shared")
            self._dealers = sorted(self._dealt)
        dealt = {dealer: self._dealt[dealer] for dealer in self._dealers}
        return {dealer: (sealed[rank], commitments) for dealer, (sealed, commitments) in dealt.items()}

    def sharing(self) -> dict[int, bytes]:
        """End step 2; return signatures. A proven complaint ends the attempt."""
        if not self._sharing:
            if self._complainants:
                raise self.attempt.error(f"{listed(self._complainants)} got wrong shares")
            self._enough(self._confirmed, "have checked their shares")
            self._sharing = dict(sorted(self._confirmed.items()))
        return self._sharing

    def included(self) -> list[int]:
        """End step 3; return the silos in the sum."""
        if not self._included:
            self._enough(self._added, "have sent a vector")
            self._included = sorted(self._added)
        return self._included

    def signatures(self) -> dict[int, bytes]:
        """All signatures so far."""
        self._enough(self._signatures, "have signed the list of silos in the sum")
        return self._signatures

    def total(self) -> Vector:
        """End step 5; return the sum."""
        attempt, total = self.attempt, self._total
        if not self._secrets:
            self._combine()
        for dealer, secret in self._secrets.items():
            if dealer in self._added:
                masks.add_own(total, secret, dealer, attempt, remove=True)
                continue
            key = masks.key_pair(secret)
            for peer in self._included:  # each has added a mask that it shares with the lost silo
                masks.add_shared(total, key, peer, self._shown[peer].mask_key, dealer, attempt, remove=True)
        trim(total, attempt.bits, attempt.wide)
        self._total = np.zeros(0, total.dtype)  # it can be opened only once
        return total

    @property
    def lost(self) -> list[int]:
        """Silos that share masks and are not in the sum."""
        return sorted(set(self._sharing) - set(self._included))

    def _combine(self) -> None:
        self._enough(self._revealed, "have revealed their shares")
        self._secrets = {dealer: self._secret(dealer) for dealer in self._sharing}

    def _secret(self, dealer: int) -> int:
        """A silo's seed, or its key if the silo is not in the sum; single shares are checked only if this is wrong."""
        shown = self._shown[dealer]
        given = {rank: mine[dealer] for rank, mine in sorted(self._revealed.items()) if rank not in self.cheats}
        what, public = (shares.SEED, shown.seed_key) if dealer in self._added else (shares.KEY, shown.mask_key)
        known = shares.commitments(self._dealt[dealer][1], shown.seed_key, shown.mask_key)[what]
        for _ in range(2):
            secret = shares.combined(dict(list(given.items())[: self._threshold]))
            if secret and masks.public(masks.key_pair(secret)) == public:
                return secret
            wrong = {rank for rank, share in given.items() if not shares.fits(share, rank, known)}
            self.cheats |= dict.fromkeys(wrong, "revealed wrong shares")
            given = {rank: share for rank, share in given.items() if rank not in wrong}
            if len(given) < self._threshold:
                break
        usable = f"only {len(given)} shares of the {what} of silo {dealer} can be used"
        raise self.attempt.error(f"{usable}, but {self._threshold} are needed")

    def _proven(self, rank: int, dealer: int, secret: bytes) -> bool:
        """Whether a silo's key proves that a dealer's shares for it are wrong."""
        number, (sealed, commitments) = int.from_bytes(secret, "big"), self._dealt[dealer]
        key = masks.key_pair(number) if len(secret) == masks.SECRET and 0 < number < masks.ORDER else None
        if key is None or masks.public(key) != self._shown[rank].share_key:
            return False
        way = Way(self.attempt, dealer, rank, self._digest, commitments)
        return way.opened(sealed[rank], key, self._shown[dealer], self._threshold) is None

    def _among(self, rank: int, ranks: Collection[int], what: str) -> None:
        if rank not in ranks:
            raise self.attempt.error(f"silo {rank} sent {what} without a request")

    def _check_not_ended(self, rank: int, ended_by: Collection[int]) -> None:
        if ended_by:
            raise self.attempt.error(f"a message of silo {rank} arrived too late")

    def _enough(self, ranks: Collection[int], state: str) -> None:
        if len(ranks) < self._threshold:
            raise self.attempt.error(f"{len(ranks)} silos {state}, but at least {self._threshold} are needed")
