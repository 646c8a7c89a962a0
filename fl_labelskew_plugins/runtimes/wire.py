"""Messages as bytes, for every transport: a fixed header, then tensors and a JSON mapping as one safetensors blob.

The blob is what https://huggingface.co/docs/safetensors describes, so its own library reads and writes it too; the
mapping rides in ``__metadata__`` under ``meta``. Tensors ``(N, C, H, W)`` that lie in memory as ``(N, H, W, C)`` travel
so, and are named under ``channels_last``. Writing goes through views of the tensors' memory and reading returns views
of the received buffer. Whatever bytes arrive, :func:`decode` returns tensors or raises :class:`WireError`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import mmap
import os
import struct
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from fl_labelskew_registry import RunError
from torch import Tensor

from fl_labelskew_plugins.machine.text import clean
from fl_labelskew_plugins.tensors import ON_DISK, PIECE, OnDisk, channels_last

Buffer = bytes | bytearray | memoryview | mmap.mmap
Sha256 = Any  # hashlib has no public name for it

MAGIC = b"FLLS"
VERSION = 1
MOST_JSON = 2**20
"""Bytes of the blob's JSON header, the mapping included."""
MOST_TENSORS = 8192
MOST_NAME = 255
MOST_DIMS = 16
MOST_TEXT = 500
"""Letters of a text in ``meta``; see :func:`cleaned`."""

DTYPES = {
    "F64": torch.float64,
    "I64": torch.int64,
    "F32": torch.float32,
    "I32": torch.int32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_FORM = struct.Struct("<4sHHiiqQ")
_LENGTH = struct.Struct("<Q")
_META = "__metadata__"
_LAST = "channels_last"


class WireError(RunError):
    """Bytes that are no message of ours; the text says what is wrong, to follow "it sent ..."."""


class CutShortError(WireError):
    """A message whose stream ended before it did: a lost connection, more often than a wrong peer."""


@dataclass(frozen=True)
class Header:
    """What precedes every payload.

    Args:
        kind: type of the message.
        sender: rank.
        receiver: rank.
        round: -1 where there is none.
        length: bytes of the payload.
    """

    kind: int
    sender: int
    receiver: int
    round: int
    length: int

    SIZE: ClassVar[int] = _FORM.size

    def pack(self) -> bytes:
        """The header's ``SIZE`` bytes."""
        return _FORM.pack(MAGIC, VERSION, self.kind, self.sender, self.receiver, self.round, self.length)

    @classmethod
    def unpack(cls, start: Buffer) -> Header:
        """The header that these bytes begin with.

        Raises:
            WireError: they do not.
        """
        if len(start) < cls.SIZE:
            raise WireError(f"{len(start)} bytes where a message begins, fewer than its header has")
        magic, version, *fields = _FORM.unpack_from(start)
        if magic != MAGIC:
            raise WireError("bytes that are no message of ours")
        if version != VERSION:
            raise WireError(f"a message of format {version}; {VERSION}, the same version of this package, is right")
        return cls(*fields)


def dense(tensor: Tensor) -> bool:
    """Whether its memory can travel as it is: on the CPU without gaps, in the order of its axes or channels last."""
    return tensor.device.type == "cpu" and (tensor.is_contiguous() or channels_last(tensor))


def plain(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors on the CPU and :func:`dense`; those that are so already are not copied."""
    moved = {name: tensor.detach().to("cpu") for name, tensor in tensors.items()}
    return {name: tensor if dense(tensor) else tensor.contiguous() for name, tensor in moved.items()}


def encode(
    kind: int,
    sender: int,
    receiver: int,
    round: int,
    meta: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
) -> list[bytes | memoryview]:
    """A message's bytes in parts: header and JSON, then a view of each tensor's memory.

    The tensors must not change until the parts are sent. Only those that :func:`plain` copies are copied.

    Raises:
        TypeError: ``meta`` holds something that JSON has not, or a tensor's dtype is none of :data:`DTYPES`.
        ValueError: ``meta`` holds a number that is not finite.
        WireError: more than a receiver would take of names or of ``meta``.
    """
    # Larger items first, so that every tensor is aligned to its own size; the JSON keeps the caller's order.
    ready = plain(tensors)
    last = [name for name, tensor in ready.items() if channels_last(tensor)]
    ready |= {name: ready[name].permute(0, 2, 3, 1) for name in last}
    placed: dict[str, tuple[int, int]] = {}
    views: list[memoryview] = []
    end = 0
    for name in sorted(ready, key=lambda name: -ready[name].element_size()):
        tensor = ready[name]
        if tensor.dtype not in _NAMES:
            raise TypeError(f"{name} is {tensor.dtype}, which does not travel")
        placed[name] = (end, end + tensor.numel() * tensor.element_size())
        end = placed[name][1]
        if tensor.numel():
            views.append(tensor.reshape(-1).view(torch.uint8).numpy().data)
    described: dict[str, Any] = {_META: {"meta": json.dumps(meta, allow_nan=False)}}
    if last:
        described[_META][_LAST] = json.dumps(last)
    for name, tensor in ready.items():
        described[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": placed[name]}
    text = json.dumps(described, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > MOST_JSON or len(ready) > MOST_TENSORS or any(map(_strange, ready)):
        raise WireError(
            f"{len(ready)} tensors with {len(text)} bytes of names and settings; at most {MOST_TENSORS} and "
            f"{MOST_JSON}, and printable names of up to {MOST_NAME} letters, can be sent"
        )
    header = Header(kind, sender, receiver, round, _LENGTH.size + len(text) + end)
    return [header.pack() + _LENGTH.pack(len(text)) + text, *views]


def cut(parts: Iterable[bytes | memoryview], size: int) -> Iterator[bytes]:
    """The same bytes in chunks of ``size``, the last one shorter."""
    pending: list[memoryview] = []
    room = size
    for part in parts:
        view = memoryview(part)
        at = 0
        while at < len(view):
            piece = view[at : at + room]
            pending.append(piece)
            at += len(piece)
            room -= len(piece)
            if not room:
                yield b"".join(pending)
                pending.clear()
                room = size
    if pending:
        yield b"".join(pending)


def hashed(parts: Sequence[bytes | memoryview], tensors: Sha256 | None = None) -> str:
    """SHA-256 of a message: of its tensors' bytes and then of its header and JSON, so that many can share the former.

    Args:
        parts: what :func:`encode` made.
        tensors: the state after the tensors' bytes, from :func:`tensors_hashed`, where it is known.
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
    """Chunks of messages on their way through; see :func:`hashed`.

    Args:
        chunks: of a stream, each message in chunks of its own.
        wanted: whether anybody asks for the digests.
    """

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
        if not self._length and len(self._head) >= Header.SIZE + _LENGTH.size:
            # of one that says more than a message may have, the rest is as good as tensors: it is refused
            json_bytes = min(_LENGTH.unpack_from(self._head, Header.SIZE)[0], MOST_JSON)
            self._length = Header.SIZE + _LENGTH.size + json_bytes
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

    Args:
        chunks: what :func:`cut` made of messages, one after the other.
        admit: raises for a header whose message is not wanted, before anything is allocated.
        spool: makes the buffer.

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


def decode(payload: Buffer) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The mapping and the tensors of a payload, which is what follows the header.

    Args:
        payload: a writable buffer; a read-only one is copied.

    Returns:
        The mapping, and tensors in the sender's order. They are views of ``payload`` and keep it alive, all of it.

    Raises:
        WireError: the payload is no such blob.
    """
    view = memoryview(payload).cast("B")
    if view.readonly:
        view = memoryview(bytearray(view))
    if len(view) < _LENGTH.size:
        raise WireError(f"a payload of {len(view)} bytes")
    (length,) = _LENGTH.unpack_from(view)
    start = _LENGTH.size + length
    if length > MOST_JSON or start > len(view):
        raise WireError(f"a JSON header of {length} bytes in a payload of {len(view)}; at most {MOST_JSON} are taken")
    described = _mapping(view[_LENGTH.size : start])
    meta, last = _meta(described.pop(_META, {}))
    if len(described) > MOST_TENSORS:
        raise WireError(f"{len(described)} tensors; at most {MOST_TENSORS} are taken")
    entries = {name: _entry(name, entry) for name, entry in described.items()}
    end = 0
    for name, (*_, begin, finish) in sorted(entries.items(), key=lambda entry: entry[1][2:]):
        if begin != end:
            raise WireError(f"tensor {name} where another one is, or after a gap")
        end = finish
    if end != len(view) - start:
        raise WireError(f"tensors of {end} bytes in {len(view) - start} bytes")
    data = torch.frombuffer(view, dtype=torch.uint8, offset=start) if end else torch.empty(0, dtype=torch.uint8)
    if isinstance(payload, OnDisk) and end:
        ON_DISK[data.untyped_storage().data_ptr()] = payload
    tensors = {name: _tensor(data, name, *entry) for name, entry in entries.items()}
    for name in last:
        if name not in tensors or tensors[name].dim() != 4:
            raise WireError("channels_last that does not name tensors of four dimensions")
        tensors[name] = tensors[name].permute(0, 3, 1, 2)
    return meta, tensors


def cleaned(value: Any) -> Any:
    """JSON that somebody else wrote, with every name and text in it fit for a line of a log, see :func:`.words.clean`.

    Raises:
        WireError: it is nested too deeply.
    """
    if isinstance(value, str):
        return clean(value, MOST_TEXT)
    try:
        if isinstance(value, list):
            return [cleaned(item) for item in value]
        return {cleaned(key): cleaned(item) for key, item in value.items()} if isinstance(value, dict) else value
    except RecursionError:
        raise WireError("JSON that is not well-formed") from None


def _tensor(data: Tensor, name: str, dtype: torch.dtype, shape: Sequence[int], begin: int, end: int) -> Tensor:
    """One tensor of the blob; copied where it is not aligned, as another writer may leave it."""
    part = data[begin:end]
    if dtype is torch.bool and end > begin and int(part.max()) > 1:  # torch takes every byte of a bool for 0 or 1
        raise WireError(f"tensor {name} with truth values other than 0 and 1")
    if begin % dtype.itemsize or part.data_ptr() % dtype.itemsize:
        part = part.clone()
    return part.view(dtype).reshape(shape)


def _entry(name: str, entry: Any) -> tuple[torch.dtype, list[int], int, int]:
    """Dtype, shape, begin and end of a tensor."""
    if _strange(name):
        raise WireError(f"a tensor whose name is not 1 to {MOST_NAME} printable letters")
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise WireError(f"tensor {name} without exactly dtype, shape and data_offsets")
    dtype = DTYPES.get(entry["dtype"]) if isinstance(entry["dtype"], str) else None
    if dtype is None:
        raise WireError(f"tensor {name} of a dtype that is none of {', '.join(DTYPES)}")
    shape, offsets = entry["shape"], entry["data_offsets"]
    if not _whole_numbers(shape) or len(shape) > MOST_DIMS:
        raise WireError(f"tensor {name} with a shape that is not up to {MOST_DIMS} whole numbers")
    # Strides are products of sizes, also of a tensor without entries: they have to fit 64 bits.
    if math.prod(max(size, 1) for size in shape) * dtype.itemsize >= 2**63:
        raise WireError(f"tensor {name} with a shape that no memory holds")
    if not _whole_numbers(offsets) or len(offsets) != 2:
        raise WireError(f"tensor {name} with data_offsets that are not two whole numbers")
    if offsets[1] - offsets[0] != math.prod(shape) * dtype.itemsize:
        raise WireError(f"tensor {name} with data_offsets that do not fit its shape")
    return dtype, shape, offsets[0], offsets[1]


def _whole_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(type(n) is int and n >= 0 for n in value)


def _strange(name: str) -> bool:
    """Whether a name is unfit for a line of a log, or is not a tensor's."""
    return not 1 <= len(name) <= MOST_NAME or not name.isprintable() or name == _META


def _meta(metadata: Any) -> tuple[dict[str, Any], list[str]]:
    """What stands in a blob's ``__metadata__``: our mapping, and names; empty where another writer left none."""
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        raise WireError("a __metadata__ that is no mapping of names to texts")
    meta, last = _mapping(metadata.get("meta", "{}")), _parse(metadata.get(_LAST, "[]"))
    if not isinstance(last, list) or not all(isinstance(name, str) for name in last) or len(set(last)) != len(last):
        raise WireError("channels_last that is no list of names")
    return meta, last


def _mapping(text: str | memoryview) -> dict[str, Any]:
    parsed = _parse(text)
    if not isinstance(parsed, dict):
        raise WireError("JSON that is no mapping")
    return parsed


def _parse(text: str | memoryview) -> Any:
    """JSON of finite numbers and texts that can be printed."""
    try:
        parsed = json.loads(
            text if isinstance(text, str) else str(text, "utf-8"),
            object_pairs_hook=_without_duplicates,
            parse_int=_int,
            parse_float=_float,
            parse_constant=_float,
        )
        json.dumps(parsed, ensure_ascii=False).encode()  # raises for half a surrogate pair
    except (ValueError, RecursionError):
        raise WireError("JSON that is not well-formed") from None
    return parsed


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise WireError("JSON that has a name twice")
    return made


def _int(text: str) -> int:
    if len(text) > 20:  # 64 bits and a sign
        raise WireError("JSON with a number of more than 20 digits")
    return int(text)


def _float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise WireError("JSON with a number that is not finite")
    return number


class Spool:
    """Buffers for payloads that are being received or wait for their turn; beyond a bound they are on disk.

    Args:
        memory_bytes: held in memory by all buffers together, at most.
        folder: of the files of further buffers, which have no name there.
    """

    def __init__(self, memory_bytes: float = math.inf, folder: Path | None = None) -> None:
        self.memory_bytes = memory_bytes
        self.folder = folder
        self._held: dict[int, int] = {}
        self._count = 0
        self._lock = threading.Lock()

    @property
    def held(self) -> int:
        """Bytes that buffers hold in memory now."""
        return sum(list(self._held.values()))

    def buffer(self, size: int) -> bytearray | mmap.mmap:
        """``size`` writable bytes, let go with the last reference to them.

        Raises:
            OSError: there is no room.
        """
        if size == 0:
            return bytearray()
        with self._lock:
            # A finaliser may run at any point of this thread: it takes no lock, and one pop is one step.
            if self.held + size <= self.memory_bytes:
                self._count += 1
                made = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
                if hasattr(mmap, "MADV_HUGEPAGE"):  # or the kernel would fetch it page by page, as slow as the network
                    with contextlib.suppress(OSError):  # a kernel without them
                        made.madvise(mmap.MADV_HUGEPAGE)
                self._held[self._count] = size
                weakref.finalize(made, self._held.pop, self._count, None).atexit = False
                return made
        with tempfile.TemporaryFile(dir=self.folder) as file:
            file.truncate(size)
            if hasattr(os, "posix_fallocate"):  # room that is missing only when a page is written ends the process
                os.posix_fallocate(file.fileno(), 0, size)
            return OnDisk(file.fileno(), size)
