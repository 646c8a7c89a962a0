"""A silo's part in a secure sum: one method per step."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Mapping

from fl_labelskew_plugins.engine.ring import Vector, trim
from fl_labelskew_plugins.recipe.sections import LEAST_SUMMED
from fl_labelskew_plugins.runtimes.silo.secure import masks, shares
from fl_labelskew_plugins.runtimes.silo.secure.account import Account
from fl_labelskew_plugins.runtimes.silo.secure.attempt import OPENING, Attempt, SitsOutError, listed
from fl_labelskew_plugins.runtimes.silo.secure.identity import Advert, Authority, Identity
from fl_labelskew_plugins.runtimes.silo.secure.shares import Way

STEPS = ("advertise", "share", "check", "mask", "agree", "reveal")


def roster_digest(attempt: Attempt, roster: Mapping[int, bytes]) -> bytes:
    """Digest of all silos' keys."""
    parts = [attempt.about("roster", sorted(roster))]
    parts += [hashlib.sha256(roster[rank]).digest() for rank in sorted(roster)]
    return hashlib.sha256(b"".join(parts)).digest()


def agreement(attempt: Attempt, roster: bytes, included: Collection[int]) -> bytes:
    """The text that silos sign to confirm a sum."""
    return attempt.about("included", sorted(included), roster.hex())


def checked(attempt: Attempt, roster: bytes) -> bytes:
    """The text that a silo signs if all of its shares match."""
    return attempt.about("checked", roster.hex())


class SiloRound:
    """A silo in one attempt. Each step can be taken once; a violation of the protocol raises :class:`.SecureError`.

    ``noisy``: adds noise to a round's vector.
    """

    def __init__(
        self,
        attempt: Attempt,
        rank: int,
        identity: Identity,
        authority: Authority,
        account: Account,
        *,
        noisy: Callable[[SiloRound, Vector], Vector] | None = None,
        random: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self.attempt, self.rank = attempt, rank
        self._identity, self._authority, self._account = identity, authority, account
        self._noisy = None if attempt.round <= OPENING else noisy
        self._random, self._seed, self._secret = random, masks.scalar(random), masks.scalar(random)
        self._share_secret = masks.scalar(random)
        self._share_key, self._mask_key = masks.key_pair(self._share_secret), masks.key_pair(self._secret)
        self._commitments = b""
        self._done = 0  # steps
        self._advert = b""
        self._adverts: dict[int, Advert] = {}
        self.roster = b""  # its digest, unique to this attempt
        self._threshold = LEAST_SUMMED
        self._shares: dict[int, tuple[int, int]] = {}
        self.included: list[int] = []  # once this silo has agreed

    @property
    def lost(self) -> list[int]:
        """Silos that share masks and are not in the sum."""
        return sorted(self._shares.keys() - set(self.included))

    def advertise(self) -> bytes:
        """Step 0: create signed public keys."""
        self._begin("advertise")
        share, mask, seed = map(masks.public, (self._share_key, self._mask_key, masks.key_pair(self._seed)))
        self._advert = self._identity.advert(self.rank, share, mask, seed, self.attempt).pack()
        return self._advert

    def share(self, roster: Mapping[int, bytes]) -> tuple[dict[int, bytes], bytes]:
        """Step 1: check all keys; return encrypted shares per silo, and the commitments."""
        self._begin("share")
        attempt, ranks = self.attempt, sorted(roster)
        if roster.get(self.rank) != self._advert:
            raise attempt.error("the server's list does not contain this silo's keys")
        self._threshold = attempt.threshold(ranks)
        self._enough(ranks, "take part")
        self._adverts = {rank: Advert.unpack(roster[rank]) for rank in ranks}
        for rank, advert in self._adverts.items():
            self._authority.check(rank, advert, attempt)
        shown = [key for advert in self._adverts.values() for key in advert.points]
        if len(set(shown)) != len(shown):
            raise attempt.error("the server's list contains a key twice")
        self.roster = roster_digest(attempt, roster)
        seeds, of_seed = shares.dealt(self._seed, self._threshold, ranks, self._random)
        keys, of_key = shares.dealt(self._secret, self._threshold, ranks, self._random)
        self._commitments = shares.published(of_seed, of_key)
        sealed: dict[int, bytes] = {}
        for rank in ranks:  # with its own, because it also helps to open the sum
            way = Way(attempt, self.rank, rank, self.roster, self._commitments)
            sealed[rank] = way.sealed((seeds[rank], keys[rank]), self._share_key, self._adverts[rank].share_key)
        return sealed, self._commitments

    def check(self, dealt: Mapping[int, tuple[bytes, bytes]]) -> dict[int, bytes]:
        """Step 2: verify the shares for this silo; ``dealt``: encrypted shares and commitments, by dealer.

        Return the signature that all shares match, by its own rank. Otherwise return the key that decrypts the shares,
        by dealer of wrong ones, as a proof, and leave the attempt.
        """
        self._begin("check")
        if self.rank not in dealt or not dealt.keys() <= self._adverts.keys():
            what = f"the server sent shares of {listed(dealt)}"
            raise self.attempt.error(f"{what}; expected: this silo and others among {listed(self._adverts)}")
        if dealt[self.rank][1] != self._commitments:
            raise self.attempt.error("the server has changed this silo's own commitments")
        self._enough(dealt, "have shared")
        for dealer, (text, published) in dealt.items():
            way, shown = Way(self.attempt, dealer, self.rank, self.roster, published), self._adverts[dealer]
            if (pair := way.opened(text, self._share_key, shown, self._threshold)) is not None:
                self._shares[dealer] = pair
        if wrong := sorted(dealt.keys() - self._shares.keys()):
            self._done = len(STEPS)
            return dict.fromkeys(wrong, self._share_secret.to_bytes(masks.SECRET, "big"))
        return {self.rank: self._identity.sign(checked(self.attempt, self.roster))}

    def mask(self, vector: Vector, sharing: Mapping[int, bytes]) -> Vector:
        """Step 3: mask the vector; ``sharing``: signatures of the silos that share masks."""
        self._begin("mask")
        attempt, text = self.attempt, checked(self.attempt, self.roster)
        if self.rank not in sharing or not sharing.keys() <= self._shares.keys():
            what = f"the server reports that {listed(sharing)} share masks"
            raise attempt.error(f"{what}; expected: this silo and others among {listed(self._shares)}")
        for rank, signature in sharing.items():
            if not self._adverts[rank].signed(signature, text):
                raise attempt.error(f"silo {rank} has not signed that all shares match")
        self._enough(sharing, "share masks")
        self._shares = {rank: self._shares[rank] for rank in sharing}
        vector = self._account.only(attempt, vector) if self._noisy is None else self._noisy(self, vector)
        masked = attempt.vector(vector, "the vector of this silo").copy()
        masks.add_own(masked, self._seed, self.rank, attempt)
        for peer in self._shares.keys() - {self.rank}:
            key = self._adverts[peer].mask_key
            masks.add_shared(masked, self._mask_key, self.rank, key, peer, attempt)
        trim(masked, attempt.bits, attempt.wide)
        return masked

    def agree(self, included: Collection[int]) -> bytes:
        """Step 4: sign the list of the silos in the sum."""
        self._begin("agree")
        ranks = sorted(included)
        if self.rank not in ranks or len(set(ranks)) < len(ranks) or not set(ranks) <= self._shares.keys():
            what = f"the server reports a sum over {listed(ranks)}"
            expected = f"only {listed(self._shares)}, each at most once, with silo {self.rank}"
            raise self.attempt.error(f"{what}; expected: {expected}")
        self._enough(ranks, "are in the sum")
        if self._noisy is None:  # with noise, each sum is charged to the ledger
            self._account.check(self.attempt, ranks)
        self.included = ranks
        return self._identity.sign(agreement(self.attempt, self.roster, ranks))

    def reveal(self, signatures: Mapping[int, bytes]) -> dict[int, bytes]:
        """Step 5: return a share of each silo's seed, or of its key if it is not in the sum."""
        self._begin("reveal")
        attempt, text = self.attempt, agreement(self.attempt, self.roster, self.included)
        for rank, signature in signatures.items():
            if rank not in self.included or not self._adverts[rank].signed(signature, text):
                raise attempt.error(f"silo {rank} has not signed that the sum includes {listed(self.included)}")
        self._enough(signatures, f"have signed that the sum includes {listed(self.included)}")
        if self._noisy is None:
            self._account.check(attempt, self.included)
        self._account.open(attempt, self.included)
        given = {dealer: pair[dealer not in self.included] for dealer, pair in sorted(self._shares.items())}
        return {dealer: share.to_bytes(masks.SECRET, "big") for dealer, share in given.items()}

    def _begin(self, step: str) -> None:
        if self._done == len(STEPS) or STEPS[self._done] != step:
            raise self.attempt.error(f"the server requested the step '{step}' out of order; each step runs once")
        self._done += 1

    def _enough(self, ranks: Collection[int], state: str) -> None:
        if len(ranks) < self._threshold:  # they may be lost, which is not a violation
            reason = f"{len(ranks)} silos {state}, but this silo requires at least {self._threshold}"
            raise SitsOutError(f"{self.attempt.where}: {reason}")
