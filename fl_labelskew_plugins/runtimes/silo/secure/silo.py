"""One silo's part in a secure sum: each method is a step, and takes what the server sent for it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Mapping

from fl_labelskew_plugins.engine.ring import Vector, trim
from fl_labelskew_plugins.runtimes.silo.secure import masks, shares
from fl_labelskew_plugins.runtimes.silo.secure.account import Account
from fl_labelskew_plugins.runtimes.silo.secure.attempt import LEAST, OPENING, Attempt, SitsOutError, listed
from fl_labelskew_plugins.runtimes.silo.secure.identity import Advert, Authority, Identity
from fl_labelskew_plugins.runtimes.silo.secure.shares import Way

STEPS = ("advertise", "share", "check", "mask", "agree", "reveal")


def roster_digest(attempt: Attempt, roster: Mapping[int, bytes]) -> bytes:
    """Which keys of which silos an attempt is with."""
    parts = [attempt.about("roster", sorted(roster))]
    parts += [hashlib.sha256(roster[rank]).digest() for rank in sorted(roster)]
    return hashlib.sha256(b"".join(parts)).digest()


def agreement(attempt: Attempt, roster: bytes, there: Collection[int]) -> bytes:
    """What silos sign of who is in the sum."""
    return attempt.about("there", sorted(there), roster.hex())


def checked(attempt: Attempt, roster: bytes) -> bytes:
    """What a silo signs after it has checked its shares, if all of them fit."""
    return attempt.about("checked", roster.hex())


class SiloRound:
    """A silo, by its rank from 1, in one attempt; its secrets are in memory alone, and end with it.

    ``least``: silos that a sum has to be of, by this silo's own policy; ``noisy`` adds noise of this attempt to the
    vector of a round, once all checks of the step have passed. All steps raise :class:`SecureError` where the server,
    or a silo behind it, does not keep to the protocol, and each can be taken once.
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
        noisy: Callable[[SiloRound, Vector], Vector] | None = None,
        random: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self.attempt, self.rank = attempt, rank
        self._identity, self._authority, self._account, self._least = identity, authority, account, least
        self._noisy = noisy
        self._random, self._seed, self._secret = random, masks.scalar(random), masks.scalar(random)
        self._share_secret = masks.scalar(random)
        self._share_key, self._mask_key = masks.key_pair(self._share_secret), masks.key_pair(self._secret)
        self._commitments = b""
        self._done = 0
        self._advert = b""
        self._adverts: dict[int, Advert] = {}
        self.roster = b""
        """Digest of everybody's keys, which no other attempt has."""
        self._threshold = LEAST
        self._shares: dict[int, tuple[int, int]] = {}
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
        share, mask, seed = map(masks.public, (self._share_key, self._mask_key, masks.key_pair(self._seed)))
        self._advert = self._identity.advert(self.rank, share, mask, seed, self.attempt).pack()
        return self._advert

    def share(self, roster: Mapping[int, bytes]) -> tuple[dict[int, bytes], bytes]:
        """Step 1: of everybody's keys, a pair of sealed shares for each, and the commitments of both secrets."""
        self._begin("share")
        attempt, ranks = self.attempt, sorted(roster)
        if roster.get(self.rank) != self._advert:
            raise attempt.error("the server's list has not this silo's own keys")
        self._threshold = attempt.threshold(ranks)
        self._enough(ranks, "are there")
        self._adverts = {rank: Advert.unpack(roster[rank]) for rank in ranks}
        for rank, advert in self._adverts.items():
            self._authority.check(rank, advert, attempt)
        shown = [key for advert in self._adverts.values() for key in advert.points]
        if len(set(shown)) != len(shown):
            raise attempt.error("the server's list has a key twice")
        self.roster = roster_digest(attempt, roster)
        seeds, of_seed = shares.dealt(self._seed, self._threshold, ranks, self._random)
        keys, of_key = shares.dealt(self._secret, self._threshold, ranks, self._random)
        self._commitments = shares.published(of_seed, of_key)
        # its own pair, too: it is one of those that open the sum
        return {rank: self._sealed((seeds[rank], keys[rank]), rank) for rank in ranks}, self._commitments

    def check(self, dealt: Mapping[int, tuple[bytes, bytes]]) -> dict[int, bytes]:
        """Step 2: by dealer, the pair that it has sealed for this silo, and its commitments.

        Returns:
            By its own rank, this silo's signature that all shares fit. Else for each dealer whose shares are wrong, the
            key of this silo that opens them, so that the server can see it; this silo has then no further step in the
            attempt. Silos mask their vectors only with signatures of ``t`` silos, so at most ``n - t`` keys are known
            to the server then.
        """
        self._begin("check")
        if self.rank not in dealt or not dealt.keys() <= self._adverts.keys():
            raise self.attempt.error(f"the server sends shares of {listed(dealt)}, of {listed(self._adverts)} in all")
        if dealt[self.rank][1] != self._commitments:
            raise self.attempt.error("the server has changed this silo's own commitments")
        self._enough(dealt, "have shared")
        for dealer, (text, published) in dealt.items():
            way, shown = Way(self.attempt, dealer, self.rank, self.roster, published), self._adverts[dealer]
            pair = shares.checked(way, text, self._share_key, shown, self._threshold)
            if pair is not None:
                self._shares[dealer] = pair
        if wrong := sorted(dealt.keys() - self._shares.keys()):
            self._done = len(STEPS)
            return dict.fromkeys(wrong, self._share_secret.to_bytes(masks.SECRET, "big"))
        return {self.rank: self._identity.sign(checked(self.attempt, self.roster))}

    def mask(self, vector: Vector, sharing: Mapping[int, bytes]) -> Vector:
        """Step 3: the vector, with a mask of its own and one for each other silo that has signed that shares fit."""
        self._begin("mask")
        attempt, text = self.attempt, checked(self.attempt, self.roster)
        if self.rank not in sharing or not sharing.keys() <= self._shares.keys():
            raise attempt.error(f"the server says that {listed(sharing)} share masks, of {listed(self._shares)}")
        for rank, signature in sharing.items():
            if not self._authority.signed(rank, self._adverts[rank], signature, text):
                raise attempt.error(f"silo {rank} has not signed that all shares fit")
        self._enough(sharing, "share masks")
        self._account.check(attempt, sorted(sharing), final=False)  # before anything is charged
        self._shares = {rank: self._shares[rank] for rank in sharing}
        noisy = None if attempt.round <= OPENING else self._noisy
        vector = self._account.only(attempt, vector) if noisy is None else noisy(self, vector)
        masked = attempt.vector(vector, "what this silo would send").copy()
        masks.add_own(masked, self._seed, self.rank, attempt)
        for peer in self._shares.keys() - {self.rank}:
            key = self._adverts[peer].mask_key
            masks.add_shared(masked, self._mask_key, self.rank, key, peer, attempt)
        trim(masked, attempt.bits, attempt.wide)
        return masked

    def agree(self, there: Collection[int]) -> bytes:
        """Step 4: sign who is in the sum, as the server says."""
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
        """Step 5: once enough have signed the same, a share of each seed, or of the key of who is not in the sum."""
        self._begin("reveal")
        attempt, text = self.attempt, agreement(self.attempt, self.roster, self.there)
        for rank, signature in signatures.items():
            if rank not in self.there or not self._authority.signed(rank, self._adverts[rank], signature, text):
                raise attempt.error(f"silo {rank} has not signed that the sum is of {listed(self.there)}")
        self._enough(signatures, f"have signed that the sum is of {listed(self.there)}")
        self._account.open(attempt, self.there)
        given = {dealer: pair[dealer not in self.there] for dealer, pair in sorted(self._shares.items())}
        return {dealer: share.to_bytes(masks.SECRET, "big") for dealer, share in given.items()}

    def _begin(self, step: str) -> None:
        if self.step != step:
            raise self.attempt.error(f"the server asks this silo to {step} out of turn; each step is taken once")
        self._done += 1

    def _enough(self, ranks: Collection[int], what: str) -> None:
        needed = max(self._threshold, self._least)
        if len(ranks) < needed:  # which may be a loss, and no cheating
            why = f"{len(ranks)} silos {what}, and this silo takes part with {needed} at least"
            raise SitsOutError(f"{self.attempt.where}: {why}")

    def _sealed(self, pair: tuple[int, int], rank: int) -> bytes:
        way = Way(self.attempt, self.rank, rank, self.roster, self._commitments)
        return way.sealed(pair, self._share_key, self._adverts[rank].share_key)
