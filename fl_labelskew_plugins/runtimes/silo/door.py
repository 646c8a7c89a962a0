"""Who may hold a connection to the server's port: strangers' places are limited in number and in time.

gRPC accepts connections itself, with one limit for all of them, so whoever comes first keeps everybody else out. A
:class:`Door` looks at the sockets that were accepted at a port of this process and shuts down those that have no
stream: after a while, or earlier where they are many. To gRPC that is a peer that hangs up. It counts, too, who comes
and goes without a stream, as gRPC tells nobody of a handshake that fails.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import resource
import socket
import stat
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from fl_labelskew_plugins.recipe.addresses import of_peer, plain

PLACES = 4096
"""Connections at a time, those of silos included. Without a stream: half of them in all, a quarter of one address."""
OTHER_FILES = 512
"""Open files that the process needs beside its connections."""
WAIT_S = 10.0
"""How long a connection may be without a stream; TLS takes some of it."""
GRACE_S = 1.0
"""How long it is left alone in any crowd."""
HANDSHAKE_S, LATE_S = 10.0, 2.0
"""How long TLS may take, and how much later a stream may be told of here."""
LOOK_S = 0.25
TELL_S = 60.0

Peer = tuple[str, int]
"""Address and port."""


@dataclass(frozen=True, order=True)
class Stranger:
    """A connection without a stream."""

    since: float
    inode: int
    host: str
    descriptor: int


def places() -> int:
    """How many connections this process may hold; raises its limit of open files where that is allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = PLACES + OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        allowed = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
        with contextlib.suppress(OSError, ValueError):  # a system with a lower limit than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
            soft = allowed
    return PLACES if soft == resource.RLIM_INFINITY else min(PLACES, max(soft - OTHER_FILES, soft // 2))


class Door:
    """Watches the connections at one port, in a thread of its own.

    Args:
        places: connections that gRPC takes, see :func:`places`.
        tell: told, at most once a minute, how many connections have come to nothing since the last time.
        tls: whether each connection is told of by :meth:`knock`. Then those count that had no stream in time, whoever
            closed them; else those that were shut down here.
    """

    def __init__(self, places: int, tell: Callable[[int], None], *, tls: bool = False) -> None:
        self._share, self._most, self._tell = places // 4, places // 2, tell
        self._tls, self._port = tls, 0
        self._guests: Counter[Peer] = Counter()
        self._knocks: deque[float] = deque()
        self._peers: dict[int, Peer | None] = {}
        self._since: dict[int, float] = {}
        self._lock, self._closed = threading.Lock(), threading.Event()

    def open(self, port: int) -> None:
        """Begin to watch."""
        self._port = port
        threading.Thread(target=self._watch, name="door", daemon=True).start()

    def close(self) -> None:
        """Watch no longer."""
        self._closed.set()

    def knock(self) -> None:
        """A connection has come whose handshake begins."""
        self._knocks.append(time.monotonic())

    def enter(self, peer: str, *, member: bool, looked: bool = False) -> None:
        """A stream has begun.

        Args:
            peer: its connection, as gRPC names it.
            member: whether it keeps the connection its place.
            looked: whether the peer has come twice, the first time only to look at this server's certificate.
        """
        guest = of_peer(peer)
        with self._lock:
            for _ in range(0 if self._guests[guest] else min(1 + looked, len(self._knocks))):
                self._knocks.pop()
            if member:
                self._guests[guest] += 1

    def leave(self, peer: str) -> None:
        """It is over."""
        with self._lock:
            self._guests -= Counter([of_peer(peer)])

    def _watch(self) -> None:
        count, told_at = 0, -TELL_S
        while not self._closed.wait(LOOK_S):
            now = time.monotonic()
            closed, failed = self._look(now), self._failed(now)
            count += failed if self._tls else closed
            if count and now - told_at >= TELL_S:
                self._tell(count)
                count, told_at = 0, now

    def _look(self, now: float) -> int:
        """Shut down who has no place; their number."""
        descriptors = dict(_sockets())
        self._peers = {inode: self._peers.get(inode) or self._peer(n) for inode, n in descriptors.items()}
        with self._lock:
            strangers = {inode: p for inode, p in self._peers.items() if p is not None and p not in self._guests}
        self._since = {inode: self._since.get(inode, now) for inode in strangers}
        crowd = sorted(Stranger(self._since[i], i, host, descriptors[i]) for i, (host, _) in strangers.items())
        leaving = {s.inode: s for s in crowd if now - s.since >= WAIT_S}
        staying = [s for s in crowd if s.inode not in leaving]
        leaving |= {s.inode: s for s in self._crowd(staying) if now - s.since >= GRACE_S}
        return sum(_shut_down(s) for s in leaving.values())

    def _failed(self, now: float) -> int:
        """How many knocked and have had the time to enter."""
        count = 0
        with self._lock:
            while self._knocks and self._knocks[0] < now - HANDSHAKE_S - LATE_S:
                self._knocks.popleft()
                count += 1
        return count

    def _crowd(self, strangers: list[Stranger]) -> Iterator[Stranger]:
        """Those beyond the limits, the longest there first, of the address that has most."""
        hosts: dict[str, deque[Stranger]] = defaultdict(deque)
        for stranger in strangers:
            hosts[stranger.host].append(stranger)
        heap = [(-len(queue), host) for host, queue in hosts.items()]
        heapq.heapify(heap)
        over = len(strangers) - self._most
        while heap and (over > 0 or -heap[0][0] > self._share):
            length, host = heap[0]
            yield hosts[host].popleft()
            heapq.heapreplace(heap, (length + 1, host))
            over -= 1

    def _peer(self, descriptor: int) -> Peer | None:
        """Whose connection to the port this is; None for other sockets."""
        with contextlib.suppress(OSError), _copied(descriptor) as copy:
            if copy.family in (socket.AF_INET, socket.AF_INET6) and copy.getsockname()[1] == self._port:
                host, port, *_ = copy.getpeername()
                return plain(host), port
        return None


def _sockets() -> Iterator[tuple[int, int]]:
    """Inode, which is never used twice, and descriptor of every socket of this process."""
    for name in os.listdir("/dev/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile
            info = os.fstat(int(name))
            if stat.S_ISSOCK(info.st_mode):
                yield info.st_ino, int(name)


def _copied(descriptor: int) -> socket.socket:
    """A socket that stays the same when its owner closes the descriptor and another takes the number."""
    copy = os.dup(descriptor)
    try:
        return socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        raise


def _shut_down(stranger: Stranger) -> bool:
    with contextlib.suppress(OSError), _copied(stranger.descriptor) as copy:
        if os.fstat(copy.fileno()).st_ino == stranger.inode:
            copy.shutdown(socket.SHUT_RDWR)
            return True
    return False
