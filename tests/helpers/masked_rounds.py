"""Rounds of secure aggregation without a network: silos and a server with replaceable parts."""

import numpy as np

from fl_labelskew_plugins.engine.ring import unit
from fl_labelskew_plugins.runtimes.silo import certs
from fl_labelskew_plugins.runtimes.silo.secure.account import Account
from fl_labelskew_plugins.runtimes.silo.secure.attempt import Attempt, Sizes
from fl_labelskew_plugins.runtimes.silo.secure.identity import Authority, Identity
from fl_labelskew_plugins.runtimes.silo.secure.server import ServerRound
from fl_labelskew_plugins.runtimes.silo.secure.silo import SiloRound

RUN = "0123456789abcdef"


class Hospital:
    """A folder of a silo for its account."""

    def __init__(self, certificates, folder, rank):
        files = certs.read(certificates, f"silo-{rank}")
        self.rank, self.folder = rank, folder / f"silo-{rank}"
        self.folder.mkdir(exist_ok=True)
        self.identity, self.authority = Identity(files), Authority(files.ca)

    def joins(self, attempt, **options):
        account = Account(self.folder)  # read anew, as a restarted process does
        return SiloRound(attempt, self.rank, self.identity, self.authority, account, **options)


def attempt(round=0, number=0, *, bits=32, length=7, at_least=3, at_most=99, wide=0):
    return Attempt(RUN, round, number, bits, length, Sizes(at_least, at_most, 99), wide=wide)


def vectors(ranks, about, seed=0):
    """What silos would send: any numbers of the ring."""
    rng = np.random.default_rng(seed)
    return {rank: rng.integers(0, 2**about.bits, about.length, np.uint64).astype(unit(about.bits)) for rank in ranks}


def naive(values, about):
    """The sum modulo ``2 ** bits``, with Python's own numbers."""
    return [sum(map(int, column)) % 2**about.bits for column in zip(*values, strict=True)]


class Play:
    """One attempt, step by step; silos that are ``lost`` at a step (0 to 5) send nothing from this step on."""

    def __init__(self, hospitals, about, values, lost=None, **options):
        self.about, self.values, self.lost = about, values, lost or {}
        self.silos = {hospital.rank: hospital.joins(about, **options) for hospital in hospitals}
        self.server = ServerRound(about, hospitals[0].authority)
        self.sent = {}
        """All that the server has received, by step and rank."""

    def here(self, step):
        return [rank for rank in self.silos if self.lost.get(rank, 9) > step]

    def _received(self, step, rank, what):
        self.sent[step, rank] = what
        return what

    def advertise(self):
        for rank in self.here(0):
            self.server.advertised(rank, self._received(0, rank, self.silos[rank].advertise()))

    def share(self):
        for rank in self.here(1):
            self.server.shared(rank, *self._received(1, rank, self.silos[rank].share(self.server.roster())))

    def check(self):
        for rank in self.here(2):
            self.server.checked(rank, self._received(2, rank, self.silos[rank].check(self.server.dealt(rank))))

    def mask(self):
        sharing = self.server.sharing()
        for rank in self.here(3):
            self.server.masked(rank, self._received(3, rank, self.silos[rank].mask(self.values[rank], sharing)))

    def agree(self):
        for rank in self.here(4):
            self.server.agreed(rank, self._received(4, rank, self.silos[rank].agree(self.server.included())))

    def reveal(self):
        signatures = dict(self.server.signatures())
        for rank in self.here(5):
            if rank in signatures:
                self.server.revealed(rank, self._received(5, rank, self.silos[rank].reveal(signatures)))

    def upto(self, step):
        for name in ("advertise", "share", "check", "mask", "agree", "reveal")[:step]:
            getattr(self, name)()
        return self

    def total(self):
        return self.upto(6).server.total().tolist()
