"""``comm_args``: how clients and server talk, and what is kept secret between them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator

from fl_labelskew_plugins.params import IS_PATH, Params
from fl_labelskew_plugins.recipe import addresses
from fl_labelskew_plugins.recipe.sections import Positive

LEAST_SUMMED = 3
"""Clients below which a sum hides nobody."""


def to_the_end(clients: int) -> int:
    """How many of so many a sum with noise needs to its end by default: more than two thirds.

    >>> [to_the_end(clients) for clients in (3, 4, 5, 6, 10)]
    [3, 3, 4, 5, 7]
    """
    return max(LEAST_SUMMED, 2 * clients // 3 + 1)


class CommArgs(Params):
    """How clients and server talk, and how long they wait for each other; times in seconds.

    Paths are relative to the file that names them, or to the current folder on the command line.
    """

    backend: str = Field(
        "sp", description="name of a runtime; sp: all in one process; MPI: several; GRPC: across silos"
    )
    workers: Positive | None = Field(
        None, description="MPI: worker processes; default: one per GPU, else per core, at most clients per round"
    )
    hostfile: Annotated[str | None, IS_PATH] = Field(
        None, description="MPI: file of nodes and their slots, as mpirun's, this machine first; default: this machine"
    )
    server_address: str = Field("127.0.0.1:8890", description="cross_silo: host:port where silos find the server")
    listen_address: str | None = Field(
        None, description="cross_silo: host:port where the server listens; default: server_address"
    )
    certs: Annotated[str | None, IS_PATH] = Field(
        None, description="cross_silo: folder of labelskew certs new for this machine; not needed on loopback"
    )
    round_deadline_s: float = Field(
        3600.0, gt=0, description="cross_silo: how long a round waits for its uploads and all steps of a sum"
    )
    reconnect_s: float = Field(
        60.0, ge=0, description="cross_silo: how long a silo that lost its connection in a round is waited for"
    )
    min_clients: Positive | None = Field(
        None, description="cross_silo: uploads that a round needs; default: 2, or 1 where one client joins a round"
    )
    quorum_timeout_s: float = Field(
        600.0, gt=0, description="cross_silo: how long the server waits for min_clients; it then stops, resumable"
    )
    send_measures: bool = Field(
        False,
        description="cross_silo: a silo also reports its loss terms and accuracies on its own test part",
    )
    send_contributions: bool = Field(
        True, description="cross_silo; false: no prototypes or other contributions leave a silo, weights alone do"
    )
    upload_memory_mb: int = Field(
        256, ge=0, description="messages that arrive or wait for their turn held in memory; the rest is on disk"
    )
    audit_digests: bool = Field(True, description="cross_silo: the audit log has the SHA-256 of every message")
    max_update_ratio: float | None = Field(
        1000.0,
        ge=1,
        description="cross_silo: an upload whose norm is so many times the median of the others' and of its own past"
        " is refused; null: never",
    )
    max_samples: int = Field(
        10**9, ge=1, le=10**12, description="cross_silo: training samples that a silo may say it has"
    )

    secure_aggregation: bool = Field(
        False, description="the server sees the sum of what clients send, in whole numbers, and no client's part of it"
    )
    secure_bits: int = Field(
        32, ge=16, le=32, description="secure_aggregation: bits of each of these numbers; 16 halve the bytes"
    )
    secure_clip: float | None = Field(
        None,
        gt=0,
        description="secure_aggregation: the most that a parameter may change in a client's round, an error beyond it;"
        " the smaller, the finer the steps; default: 2^(secure_bits / 8), 16 with 32 bits and 4 with 16",
    )
    secure_threshold: int | None = Field(
        None,
        ge=LEAST_SUMMED,
        description="cross_silo with secure_aggregation: silos that a round's sum needs to its end; default: all of"
        " the round, or more than two thirds with privacy_args.noise_multiplier",
    )

    @property
    def largest_change(self) -> float:
        """``secure_clip``, or its default."""
        return 2.0 ** (self.secure_bits / 8) if self.secure_clip is None else self.secure_clip

    @property
    def in_process(self) -> bool:
        """Whether one process is the server and all clients."""
        return self.backend == "sp"

    @property
    def over_mpi(self) -> bool:
        """Whether the processes of a simulation talk over MPI."""
        return self.backend == "MPI"

    def quorum(self, clients_per_round: int) -> int:
        """Uploads that a round needs: with secure aggregation no fewer than hide each other in a sum."""
        least = min(2, clients_per_round) if self.min_clients is None else self.min_clients
        return max(least, LEAST_SUMMED) if self.secure_aggregation else least

    @field_validator("server_address", "listen_address")
    @classmethod
    def _is_an_address(cls, value: str | None) -> str | None:
        if value is not None:
            addresses.split(value)
        return value
