"""The server's part in a secure sum: it passes on, adds, and takes off what masks are left."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from fl_labelskew_plugins.engine.ring import Vector, add, trim, unit
from fl_labelskew_plugins.runtimes.silo.secure import masks, shares
from fl_labelskew_plugins.runtimes.silo.secure.attempt import LEAST, Attempt, listed
from fl_labelskew_plugins.runtimes.silo.secure.identity import Advert, Authority, seed_digest
from fl_labelskew_plugins.runtimes.silo.secure.silo import agreement, roster_digest


class ServerRound:
    """One attempt. What silos send is taken one by one, and refused with a :class:`.SecureError` that names what was
    wrong; a step is closed by asking for what follows from it, which raises one where too few are left.
    """

    def __init__(self, attempt: Attempt, authority: Authority) -> None:
        self.attempt, self._authority = attempt, authority
        self._threshold = LEAST
        self._adverts: dict[int, bytes] = {}
        self._shown: dict[int, Advert] = {}
        self._roster: dict[int, bytes] = {}
        self._digest = b""
        self._dealt: dict[int, dict[int, bytes]] = {}
        self._sharing: list[int] = []
        self._added: set[int] = set()
        self._there: list[int] = []
        self._signatures: dict[int, bytes] = {}
        self._revealed: dict[int, dict[int, bytes]] = {}
        self._total: Vector = np.zeros(attempt.length, unit(attempt.bits))

    # -- what silos send

    def advertised(self, rank: int, advert: bytes) -> None:
        """Step 0: a silo's keys."""
        self._in_time(rank, self._roster)
        shown = Advert.unpack(advert)
        self._authority.check(rank, shown, self.attempt)
        self._adverts[rank], self._shown[rank] = advert, shown

    def shared(self, rank: int, sealed: Mapping[int, bytes]) -> None:
        """Step 1: a silo's sealed shares."""
        self._among(rank, self._roster, "shares")
        self._in_time(rank, self._sharing)
        wrong = [len(text) for text in sealed.values() if len(text) != shares.SEALED]
        if sealed.keys() != self._roster.keys() or wrong:
            raise self.attempt.error(f"silo {rank} has not sent one pair of shares for each of {listed(self._roster)}")
        self._dealt[rank] = dict(sealed)

    def masked(self, rank: int, vector: Vector) -> None:
        """Step 2: a silo's masked vector, which is added; once."""
        self._among(rank, self._sharing, "a vector")
        self._in_time(rank, self._there)
        if rank in self._added:
            raise self.attempt.error(f"silo {rank} sends a second vector")
        attempt = self.attempt
        add(self._total, attempt.vector(vector, f"what silo {rank} sends"), attempt.bits, attempt.wide)
        self._added.add(rank)

    def agreed(self, rank: int, signature: bytes) -> None:
        """Step 3: a silo's signature of who is in the sum."""
        self._among(rank, self._there, "a signature")
        text = agreement(self.attempt, self._digest, self._there)
        if not self._authority.signed(rank, self._shown[rank], signature, text):
            raise self.attempt.error(f"the signature of silo {rank} is not of the sum of {listed(self._there)}")
        self._signatures[rank] = signature

    def revealed(self, rank: int, given: Mapping[int, bytes]) -> None:
        """Step 4: a silo's shares, one of each silo that has shared."""
        self._among(rank, self._there, "shares")
        if given.keys() != set(self._sharing):
            raise self.attempt.error(f"silo {rank} reveals no share of {listed(set(self._sharing) - given.keys())}")
        for dealer, share in given.items():
            what = self._what(dealer)
            known = shares.digests(self._dealt[dealer][rank])[what]
            if len(share) != masks.SECRET or shares.Way(self.attempt, dealer, rank).digest(what, share) != known:
                raise self.attempt.error(f"silo {rank} reveals a wrong share of the {what} of silo {dealer}")
        self._revealed[rank] = dict(given)

    # -- what they are told

    def roster(self) -> dict[int, bytes]:
        """Everybody's keys, for everybody; closes step 0."""
        if not self._roster:
            self._threshold = self.attempt.threshold(len(self._adverts))
            self._roster = dict(sorted(self._adverts.items()))
            self._digest = roster_digest(self.attempt, self._roster)
        return self._roster

    def sealed(self, rank: int) -> dict[int, bytes]:
        """The shares for a silo, of all who have shared; closes step 1."""
        if not self._sharing:
            self._enough(self._dealt, "have shared")
            self._sharing = sorted(self._dealt)
        return {dealer: self._dealt[dealer][rank] for dealer in self._sharing}

    def there(self) -> list[int]:
        """Who is in the sum; closes step 2."""
        if not self._there:
            self._enough(self._added, "have sent a vector")
            self._there = sorted(self._added)
        return self._there

    def signatures(self) -> dict[int, bytes]:
        """Everybody's signatures, for everybody; those that come later are as good."""
        self._enough(self._signatures, "have signed who is in the sum")
        return self._signatures

    def total(self) -> Vector:
        """The sum modulo ``2 ** bits``."""
        attempt, total = self.attempt, self._total
        self._enough(self._revealed, "have revealed their shares")
        for dealer in self._sharing:
            secret = shares.combined(self._chosen(dealer), list(self._roster))
            shown = self._shown[dealer]
            if dealer in self._added:
                if seed_digest(secret, dealer, attempt) != shown.seed_digest:
                    raise attempt.error(f"the shares that silo {dealer} has dealt of its seed do not fit together")
                masks.add_own(total, secret, dealer, attempt, remove=True)
                continue
            key = masks.key_pair(secret, attempt)
            if masks.public(key) != shown.mask_key:
                raise attempt.error(f"the shares that silo {dealer} has dealt of its key do not fit together")
            for peer in self._there:  # who has added a mask that it shares with the one that is lost
                masks.add_shared(total, key, peer, self._shown[peer].mask_key, dealer, attempt, remove=True)
        trim(total, attempt.bits, attempt.wide)
        self._total = np.zeros(0, total.dtype)  # once
        return total

    @property
    def lost(self) -> list[int]:
        """Who has shared and is not in the sum."""
        return sorted(set(self._sharing) - set(self._there))

    def _what(self, dealer: int) -> str:
        return shares.SEED if dealer in self._added else shares.KEY

    def _chosen(self, dealer: int) -> dict[int, bytes]:
        return {rank: self._revealed[rank][dealer] for rank in sorted(self._revealed)[: self._threshold]}

    def _among(self, rank: int, ranks: Collection[int], what: str) -> None:
        if rank not in ranks:
            raise self.attempt.error(f"silo {rank} sends {what} and was not asked for any")

    def _in_time(self, rank: int, closed: Collection[int]) -> None:
        if closed:
            raise self.attempt.error(f"what silo {rank} sends comes too late")

    def _enough(self, ranks: Collection[int], what: str) -> None:
        if len(ranks) < self._threshold:
            raise self.attempt.error(f"{len(ranks)} silos {what}, and it needs {self._threshold} at least")
