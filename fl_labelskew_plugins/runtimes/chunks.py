"""Messages in chunks, as a stream carries them: cut, hashed on their way, and put together again."""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from fl_labelskew_plugins.runtimes.spool import Spool
from fl_labelskew_plugins.runtimes.wire import LENGTH, MOST_JSON, Header, WireError
from fl_labelskew_plugins.tensors import PIECE, OnDisk

Sha256 = Any  # hashlib has no public name for it


class CutShortError(WireError):
    """A message whose stream ended before it did: a lost connection, more often than a wrong peer."""


def cut(parts: Iterable[bytes | memoryview], size: int) -> Iterator[bytes]:
    """The same bytes in chunks of ``size``, the last one shorter."""
    pending: list[memoryview] = []
    room = size
    for part in parts:
        view = memoryview(part)
        while view:
            pending.append(view[:room])
            view = view[room:]
            room -= len(pending[-1])
            if not room:
                yield b"".join(pending)
                pending, room = [], size
    if pending:
        yield b"".join(pending)


def hashed(parts: Sequence[bytes | memoryview], tensors: Sha256 | None = None) -> str:
    """SHA-256 of a message: of its tensors' bytes and then of its header and JSON, so that many can share the former.

    ``tensors``: the state after the tensors' bytes, from :func:`tensors_hashed`, where it is known.
    """
    state = tensors_hashed(parts) if tensors is None else tensors.copy()
    state.update(parts[0])
    digest: str = state.hexdigest()
    return digest


def tensors_hashed(parts: Sequence[bytes | memoryview]) -> Sha256:
    """The state of SHA-256 after the bytes of a message's tensors."""
    state = hashlib.sha256()
    for view in parts[1:]:
        state.update(view)
    return state


class Hashing:
    """Chunks on their way through, each message in chunks of its own; see :func:`hashed`, which may not be wanted."""

    def __init__(self, chunks: Iterable[bytes], *, wanted: bool = True) -> None:
        self._chunks, self._wanted = iter(chunks), wanted
        self._begin()

    def _begin(self) -> None:
        self._tensors, self._head, self._length = hashlib.sha256(), bytearray(), 0

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        chunk = next(self._chunks)
        if not self._wanted:
            return chunk
        if self._length and len(self._head) == self._length:
            self._tensors.update(chunk)
            return chunk
        self._head += chunk
        if not self._length and len(self._head) >= Header.SIZE + LENGTH.size:
            # of one that says more than a message may have, the rest is as good as tensors: it is refused
            json_bytes = min(LENGTH.unpack_from(self._head, Header.SIZE)[0], MOST_JSON)
            self._length = Header.SIZE + LENGTH.size + json_bytes
        if self._length:
            self._tensors.update(self._head[self._length :])
            del self._head[self._length :]
        return chunk

    def digest(self) -> str | None:
        """SHA-256 of the message that came since this was asked for; None where it is not wanted."""
        if not self._wanted:
            return None
        state, head = self._tensors, self._head
        self._begin()
        state.update(head)
        digest: str = state.hexdigest()
        return digest


def assemble(
    chunks: Iterator[bytes], admit: Callable[[Header], None], spool: Spool
) -> tuple[Header, bytearray | mmap.mmap] | None:
    """The next message of a stream of chunks, each message in chunks of its own; None at the stream's end.

    ``admit`` raises for a header whose message is not wanted, before the spool makes room for it.

    Raises:
        WireError: the chunks are no message; CutShortError where they end before it does.
        OSError: there is no room for the payload.
    """
    first = next(chunks, None)
    if first is None:
        return None
    header = Header.unpack(first)
    admit(header)
    buffer = spool.buffer(header.length)
    rest = memoryview(first)[Header.SIZE :]
    at = resident = 0
    with memoryview(buffer) as view:
        while True:
            if at + len(rest) > header.length:
                raise WireError("more bytes than its header tells")
            view[at : at + len(rest)] = rest
            at += len(rest)
            resident += len(rest)
            if isinstance(buffer, OnDisk) and (resident > PIECE or at == header.length):
                buffer.evict()
                resident = 0
            if at == header.length:
                return header, buffer
            chunk = next(chunks, None)
            if chunk is None:
                raise CutShortError("fewer bytes than its header tells")
            if not chunk:
                raise WireError("a chunk of no bytes")
            rest = memoryview(chunk)
