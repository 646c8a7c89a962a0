"""One silo's part in a secure sum: each method is a step, and takes what the server sent for it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Mapping

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fl_labelskew_plugins.engine.ring import Vector, trim
from fl_labelskew_plugins.runtimes.silo.secure import masks, shares
from fl_labelskew_plugins.runtimes.silo.secure.account import Account
from fl_labelskew_plugins.runtimes.silo.secure.attempt import LEAST, Attempt, SitsOutError, listed
from fl_labelskew_plugins.runtimes.silo.secure.identity import Advert, Authority, Identity, seed_digest
from fl_labelskew_plugins.runtimes.silo.secure.shares import Way

STEPS = ("advertise", "share", "open", "mask", "agree", "reveal")


def roster_digest(attempt: Attempt, roster: Mapping[int, bytes]) -> bytes:
    """Which keys of which silos an attempt is with."""
    parts = [attempt.about("roster", sorted(roster))]
    parts += [hashlib.sha256(roster[rank]).digest() for rank in sorted(roster)]
    return hashlib.sha256(b"".join(parts)).digest()


def agreement(attempt: Attempt, roster: bytes, there: Collection[int]) -> bytes:
    """What silos sign of who is in the sum."""
    return attempt.about("there", sorted(there), roster.hex())


class SiloRound:
    """A silo, by its rank from 1, in one attempt; its secrets are in memory alone, and end with it.

    ``least``: silos that a sum has to be of, by this silo's own policy; ``noisy``: the vector has noise of this attempt
    only. All steps raise :class:`SecureError` where the
    server, or a silo behind it, does not keep to the protocol, and each can be taken once.
    """

    def __init__(
        self,
        attempt: Attempt,
        rank: int,
        identity: Identity,
        authority: Authority,
        account: Account,
        *,
        least: int = 0,
        noisy: bool = False,
        random: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self.attempt, self.rank = attempt, rank
        self._identity, self._authority, self._account, self._least = identity, authority, account, least
        self._noisy = noisy
        self._seed, self._secret = random(masks.SECRET), random(masks.SECRET)
        self._share_key = X25519PrivateKey.from_private_bytes(random(32))
        self._mask_key = masks.key_pair(self._secret, attempt)
        self._done = 0
        self._advert = b""
        self._adverts: dict[int, Advert] = {}
        self.roster = b""
        """Digest of everybody's keys, which no other attempt has."""
        self._threshold = LEAST
        self._shares: dict[int, tuple[bytes, bytes]] = {}
        self.there: list[int] = []
        """Who is in the sum, once this silo has agreed to it."""

    @property
    def step(self) -> str:
        """The next step; empty after the last."""
        return (*STEPS, "")[self._done]

    @property
    def lost(self) -> list[int]:
        """Who has shared masks and is not in the sum."""
        return sorted(self._shares.keys() - set(self.there))

    def advertise(self) -> bytes:
        """Step 0: this silo's public keys, signed."""
        self._begin("advertise")
        digest = seed_digest(self._seed, self.rank, self.attempt)
        keys = masks.public(self._share_key), masks.public(self._mask_key)
        self._advert = self._identity.advert(self.rank, *keys, digest, self.attempt).pack()
        return self._advert

    def share(self, roster: Mapping[int, bytes]) -> dict[int, bytes]:
        """Step 1: of everybody's keys, a pair of sealed shares for each."""
        self._begin("share")
        attempt, ranks = self.attempt, sorted(roster)
        if roster.get(self.rank) != self._advert:
            raise attempt.error("the server's list has not this silo's own keys")
        self._threshold = attempt.threshold(len(ranks))
        self._enough(ranks, "are there")
        self._adverts = {rank: Advert.unpack(roster[rank]) for rank in ranks}
        for rank, advert in self._adverts.items():
            self._authority.check(rank, advert, attempt)
        shown = [key for advert in self._adverts.values() for key in (advert.share_key, advert.mask_key)]
        if len(set(shown)) != len(shown):
            raise attempt.error("the server's list has a key twice")
        self.roster = roster_digest(attempt, roster)
        dealt = [shares.dealt(secret, self._threshold, ranks) for secret in (self._seed, self._secret)]
        # its own pair, too: it is one of those that open the sum
        return {rank: self._sealed((dealt[0][rank], dealt[1][rank]), rank) for rank in ranks}

    def open(self, sealed: Mapping[int, bytes]) -> None:
        """Step 2: what those who have shared have sealed for this silo; with them its masks are shared."""
        self._begin("open")
        if self.rank not in sealed or not sealed.keys() <= self._adverts.keys():
            raise self.attempt.error(f"the server sends shares of {listed(sealed)}, of {listed(self._adverts)} in all")
        self._enough(sealed, "have shared")
        for dealer, text in sealed.items():
            self._shares[dealer] = self._opened(dealer, text)

    def mask(self, vector: Vector) -> Vector:
        """Step 2, once the vector is known: it, with a mask of its own and one shared with each other silo."""
        self._begin("mask")
        attempt = self.attempt
        if not self._noisy:
            self._account.mask(attempt, sorted(self._shares))
        masked = attempt.vector(vector, "what this silo would send").copy()
        masks.add_own(masked, self._seed, self.rank, attempt)
        for peer in self._shares.keys() - {self.rank}:
            key = self._adverts[peer].mask_key
            try:
                masks.add_shared(masked, self._mask_key, self.rank, key, peer, attempt)
            except ValueError:
                raise attempt.error(f"the keys of silo {peer} are none") from None
        trim(masked, attempt.bits, attempt.wide)
        return masked

    def agree(self, there: Collection[int]) -> bytes:
        """Step 3: sign who is in the sum, as the server says."""
        self._begin("agree")
        ranks = sorted(there)
        if self.rank not in ranks or len(set(ranks)) < len(ranks) or not set(ranks) <= self._shares.keys():
            raise self.attempt.error(
                f"the server says that the sum is of {listed(ranks)}, and {listed(self._shares)} have shared, this one "
                f"is {self.rank}"
            )
        self._enough(ranks, "are in the sum")
        self._account.check(self.attempt, ranks)
        self.there = ranks
        return self._identity.sign(agreement(self.attempt, self.roster, ranks))

    def reveal(self, signatures: Mapping[int, bytes]) -> dict[int, bytes]:
        """Step 4: once enough have signed the same, a share of each seed, or of the key of who is not in the sum."""
        self._begin("reveal")
        attempt, text = self.attempt, agreement(self.attempt, self.roster, self.there)
        for rank, signature in signatures.items():
            if rank not in self.there or not self._authority.signed(rank, self._adverts[rank], signature, text):
                raise attempt.error(f"silo {rank} has not signed that the sum is of {listed(self.there)}")
        self._enough(signatures, f"have signed that the sum is of {listed(self.there)}")
        self._account.open(attempt, self.there)
        return {dealer: pair[dealer not in self.there] for dealer, pair in sorted(self._shares.items())}

    def _begin(self, step: str) -> None:
        if self.step != step:
            raise self.attempt.error(f"the server asks this silo to {step} out of turn; each step is taken once")
        self._done += 1

    def _enough(self, ranks: Collection[int], what: str) -> None:
        needed = max(self._threshold, self._least)
        if len(ranks) < needed:  # which may be a loss, and no cheating
            why = f"{len(ranks)} silos {what}, and this silo takes part with {needed} at least"
            raise SitsOutError(f"{self.attempt.where}: {why}")

    def _sealed(self, pair: tuple[bytes, bytes], rank: int) -> bytes:
        key = self._adverts[rank].share_key
        try:
            return Way(self.attempt, self.rank, rank).sealed(pair, self._share_key, key, self.roster)
        except ValueError:
            raise self.attempt.error(f"the keys of silo {rank} are none") from None

    def _opened(self, dealer: int, text: bytes) -> tuple[bytes, bytes]:
        attempt, key, way = self.attempt, self._adverts[dealer].share_key, Way(self.attempt, dealer, self.rank)
        pair = way.opened(text, self._share_key, key, self.roster) if len(text) == shares.SEALED else None
        if pair is None:
            what = f"the shares of silo {dealer} do not open"
            why = "they were changed, are of another attempt, or it was shown another list"
            raise SitsOutError(f"{attempt.where}: {what}: {why}")
        for (what, digest), share in zip(shares.digests(text).items(), pair, strict=True):
            if way.digest(what, share) != digest:
                why = f"silo {dealer} has dealt another share of its {what} than it has committed to"
                raise SitsOutError(f"{attempt.where}: {why}")
        return pair
