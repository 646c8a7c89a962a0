"""Limit connections without a stream, which could block the silos: gRPC has one limit for all connections."""

import contextlib
import os
import resource
import socket
import stat
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from fl_labelskew_plugins.recipe.addresses import of_peer, plain

PLACES = 4096  # maximum connections; without a stream, half of them, and a quarter from one address
OTHER_FILES = 512
WAIT_S = 10.0  # seconds without a stream, TLS handshake included
GRACE_S = 1.0  # seconds for which a connection is never shut down
HANDSHAKE_S, LATE_S = 10.0, 2.0  # maximum seconds of a TLS handshake, and until the note of its stream
LOOK_S = 0.25
TELL_S = 60.0

Peer = tuple[str, int]


class Stranger(NamedTuple):
    """A connection without a stream."""

    since: float
    inode: int
    host: str
    descriptor: int


def places() -> int:
    """Maximum connections here; raises the process's limit of open files if allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = PLACES + OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        allowed = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
        with contextlib.suppress(OSError, ValueError):  # the system's limit is lower than reported
            resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
            soft = allowed
    return PLACES if soft == resource.RLIM_INFINITY else min(PLACES, max(soft - OTHER_FILES, soft // 2))


class ConnectionLimit:
    """Shuts down connections without a stream at one port: after a while, or earlier if they are many.

    ``report`` is called at most once per minute with the number of failed connections: with ``tls``, those without a
    stream in time, also after a failed handshake; otherwise, those that were shut down here.
    """

    def __init__(self, places: int, report: Callable[[int], None], *, tls: bool) -> None:
        self._most_per_host, self._most_in_all, self._report = places // 4, places // 2, report
        self._tls, self._port = tls, 0
        self._streams: Counter[Peer] = Counter()
        self._handshakes: deque[float] = deque()
        self._peers: dict[int, Peer | None] = {}
        self._since: dict[int, float] = {}
        self._lock, self._closed = threading.Lock(), threading.Event()

    def open(self, port: int) -> None:
        """Start watching."""
        self._port = port
        threading.Thread(target=self._watch, name="connection-limit", daemon=True).start()

    def close(self) -> None:
        """Stop watching."""
        self._closed.set()

    def connected(self) -> None:
        """Note a new connection, before its handshake."""
        self._handshakes.append(time.monotonic())

    def begin_stream(self, peer: str, *, member: bool, looked: bool) -> None:
        """Note the start of a stream of ``peer``, as gRPC names it.

        ``member``: the stream protects its connection; ``looked``: there was a connection to check the certificate.
        """
        address = of_peer(peer)
        with self._lock:
            for _ in range(0 if self._streams[address] else min(1 + looked, len(self._handshakes))):
                self._handshakes.pop()
            if member:
                self._streams[address] += 1

    def end_stream(self, peer: str) -> None:
        """Note the end of a stream."""
        with self._lock:
            self._streams -= Counter([of_peer(peer)])

    def _watch(self) -> None:
        count, reported_at = 0, -TELL_S
        while not self._closed.wait(LOOK_S):
            now = time.monotonic()
            closed, failed = self._shut_down_idle(now), self._failed(now)
            count += failed if self._tls else closed
            if count and now - reported_at >= TELL_S:
                self._report(count)
                count, reported_at = 0, now

    def _shut_down_idle(self, now: float) -> int:
        descriptors = dict(_sockets())
        self._peers = {inode: self._peers.get(inode) or self._peer(n) for inode, n in descriptors.items()}
        with self._lock:
            strangers = {inode: p for inode, p in self._peers.items() if p is not None and p not in self._streams}
        self._since = {inode: self._since.get(inode, now) for inode in strangers}
        idle = sorted(Stranger(self._since[i], i, host, descriptors[i]) for i, (host, _) in strangers.items())
        expired = [s for s in idle if now - s.since >= WAIT_S]
        excess = self._excess([s for s in idle if now - s.since < WAIT_S])
        return sum(map(_shut_down, [*expired, *(s for s in excess if now - s.since >= GRACE_S)]))

    def _failed(self, now: float) -> int:
        count = 0
        with self._lock:
            while self._handshakes and self._handshakes[0] < now - HANDSHAKE_S - LATE_S:
                self._handshakes.popleft()
                count += 1
        return count

    def _excess(self, strangers: list[Stranger]) -> Iterator[Stranger]:
        """Connections beyond the limits: the oldest of the address with the most."""
        hosts: dict[str, deque[Stranger]] = defaultdict(deque)
        for stranger in strangers:
            hosts[stranger.host].append(stranger)
        over = len(strangers) - self._most_in_all
        while hosts:
            most = max(hosts.values(), key=len)
            if over <= 0 and len(most) <= self._most_per_host:
                return
            yield most.popleft()
            over -= 1

    def _peer(self, descriptor: int) -> Peer | None:
        with contextlib.suppress(OSError), _copied(descriptor) as copy:
            if copy.family in (socket.AF_INET, socket.AF_INET6) and copy.getsockname()[1] == self._port:
                host, port, *_ = copy.getpeername()
                return plain(host), port
        return None


def _sockets() -> Iterator[tuple[int, int]]:
    """Inode, which is never reused, and descriptor of each socket."""
    for name in os.listdir("/dev/fd"):
        with contextlib.suppress(OSError):  # closed in the meantime
            info = os.fstat(int(name))
            if stat.S_ISSOCK(info.st_mode):
                yield info.st_ino, int(name)


def _copied(descriptor: int) -> socket.socket:
    """Duplicate a descriptor, as its number may be reused."""
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
