"""A tamper-evident log, see docs/audit_log.md."""

import contextlib
import hashlib
import json
import os
import re
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fl_labelskew_registry import LabelSkewError, RunError

from fl_labelskew_plugins.machine import log
from fl_labelskew_plugins.machine.files import open_regular
from fl_labelskew_plugins.machine.text import clean, utc

NAME = "audit.jsonl"
SECURE = "sum", "complaint", "revealed"  # of secure aggregation
EVENTS = (
    *("connected", "left", "refused", "received", "sent", "sent in part", "run", "list", "excluded", "included"),
    *SECURE,
    *("began", "opened", "closed", "repaired", "gap", "repeated"),
)
MAX_FILE_BYTES = 64 * 2**20
MAX_TEXT = 300
MAX_WAITING = 1000  # lines before Audit.open
MINUTE = 60.0
# further lines of an event and a peer are only counted, so that no peer can fill the disk
EVENTS_PER_MINUTE = dict.fromkeys(("connected", "left", "refused"), 60)
MESSAGES_PER_MINUTE = 1200
ANSWERS = "OPENING", "UPLOAD", "TESTED", "SURVEY", "MASKED"  # of a silo
ANSWERS_PER_MINUTE = 60  # for each round of a run


class Audit:
    """A process's audit log; thread-safe, and never raises an error. It calls ``observe`` with each line."""

    def __init__(
        self, *, observe: Callable[[Mapping[str, Any]], None] = lambda line: None, digests: bool = True
    ) -> None:
        self.last = ""  # SHA-256 of the last written line
        self.digests, self._observe = digests, observe  # digests: of messages
        self._folder: Path | None = None
        self._file, self._size = -1, 0
        self._waiting: deque[dict[str, Any]] = deque(maxlen=MAX_WAITING)
        self._lost, self._lost_since, self._warned = 0, "", False
        self._cut: dict[str, Any] = {}
        self._seen: dict[tuple[Any, ...], list[Any]] = {}
        self._seen_since, self._run, self._written_run = time.monotonic(), "", ""
        self._lock, self._busy = threading.RLock(), False

    def open(self, folder: Path, role: str) -> None:
        """Begin or continue a log; ``role``: such as ``silo-2``."""
        with self._lock:
            self._folder = folder
            self._waiting.appendleft({"event": "opened", "role": role, "process": os.getpid()})
            self._write_waiting()

    def note(self, event: str, **facts: Any) -> None:
        """Add a line; ``event``: one of :data:`EVENTS`."""
        line: dict[str, Any] = {"time": utc(), "event": event}
        line |= {k: clean(v, MAX_TEXT) if isinstance(v, str) else v for k, v in facts.items() if v is not None}
        self._waiting.append(line)
        self._observe(line)
        with self._lock:
            self._write_waiting()

    def sync(self) -> None:
        """Force all lines to the disk."""
        with self._lock, contextlib.suppress(OSError):  # writing the next line reports it
            if self._file >= 0:
                os.fsync(self._file)

    def close(self) -> str:
        """Write the last line; return a message with its SHA-256, if any."""
        with self._lock:
            if self._folder is None:
                return ""
            self._write_waiting()
            self._busy = True
            self._write_repeated(now=True)
            self._append({"event": "closed"})
            self.sync()
            self._close_file()
            file, self._folder, self._busy = self._folder / NAME, None, False
            return f"audit log: {file}, last line's SHA-256 {self.last}; keep that elsewhere" if self.last else ""

    # the following methods need the lock

    def _write_waiting(self) -> None:
        if self._folder is None or self._busy:  # a finaliser may add a line while another is written
            return
        self._busy = True
        try:
            self._write_repeated()
            while self._waiting:
                line = self._waiting.popleft()
                self._run = line.get("run", self._run)
                key = tuple(map(line.get, ("event", "rank", "fingerprint")))
                if _is_answer(line):
                    key += self._run, *map(line.get, ("kind", "round", "of"))
                seen = self._seen.setdefault(key, [0, line])
                seen[0] += 1
                if seen[0] > _most(line):
                    continue
                if _is_answer(line) and self._run != self._written_run:  # the line of this run was only counted
                    self._append({"event": "run", "run": self._run})
                if _is_answer(line) or line["event"] == "run":
                    self._written_run = self._run
                self._append(line)
        finally:
            self._busy = False

    def _write_repeated(self, *, now: bool = False) -> None:
        if not now and time.monotonic() - self._seen_since < MINUTE:
            return
        for times, line in self._seen.values():
            if (more := times - _most(line)) > 0:
                parts = "rank", "peer", "fingerprint", *(("kind", "round", "of") if _is_answer(line) else ())
                known = {key: line[key] for key in parts if key in line}
                self._append({"event": "repeated", **known, "times": more, "reason": line["event"]})
        self._seen, self._seen_since = {}, time.monotonic()

    def _append(self, facts: Mapping[str, Any]) -> None:
        try:
            if self._file < 0:
                self._reopen()
            if self._cut:
                self._write(self._cut)
                self._cut = {}
            if self._lost:
                self._write({"event": "gap", "times": self._lost, "since": self._lost_since})
                self._lost = 0
            self._write(facts)
        except OSError as error:
            self._lost_since = self._lost_since if self._lost else utc()
            self._lost += 1
            self._close_file()
            if not self._warned:
                self._warned = True
                text = f"cannot be written: {error.strerror}; the run continues, and the log will list missing lines"
                log.warn(f"{self._folder}/{NAME}: {text}")
        except BaseException:  # Ctrl-C within a line, which _reopen removes
            self._close_file()
            raise

    def _close_file(self) -> None:
        if self._file >= 0:
            with contextlib.suppress(OSError):
                os.close(self._file)
        self._file = -1

    def _write(self, facts: Mapping[str, Any]) -> None:
        text = json.dumps({"time": utc(), **facts, "before": self.last}, ensure_ascii=False).encode()
        if self._size and self._size + len(text) >= MAX_FILE_BYTES:
            self._rotate()
        rest = memoryview(text + b"\n")
        while rest:
            rest = rest[os.write(self._file, rest) :]
        self._size += len(text) + 1
        self.last = hashlib.sha256(text).hexdigest()

    def _rotate(self) -> None:
        assert self._folder is not None
        self.sync()
        old = [_number(path) for path in files(self._folder) if path.name != NAME]
        os.rename(self._folder / NAME, self._folder / f"audit-{max(old, default=0) + 1:06d}.jsonl")
        self._close_file()
        self._reopen()

    def _reopen(self) -> None:
        """Open the file; remove an incomplete last line."""
        assert self._folder is not None
        self._file = open_regular(self._folder / NAME, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        self._size = os.fstat(self._file).st_size
        tail, self.last = b"", ""
        for path in reversed(files(self._folder)):
            with open(path, "rb", opener=open_regular) as file:
                file.seek(max(0, path.stat().st_size - 2**16))
                tail = file.read()
            if tail:
                break
        whole, _, half = tail.rpartition(b"\n")
        if whole:
            self.last = hashlib.sha256(whole.rpartition(b"\n")[2]).hexdigest()
        if half and self._size >= len(half):
            self._size -= len(half)
            os.ftruncate(self._file, self._size)
            reason = clean(half.decode(errors="replace"), MAX_TEXT)
            self._cut = {"event": "repaired", "bytes": len(half), "reason": reason}
        if not self.last:
            self._write({"event": "began", "log": secrets.token_hex(16)})


def _is_answer(line: Mapping[str, Any]) -> bool:
    """Whether a line has a limit for its kind and round, so that repeats of one answer do not hide another one."""
    if line["event"] == "sum" and "reason" in line:
        return False  # a refusal; a server could ask for any number of rounds
    return line["event"] in SECURE or (line["event"] == "sent" and line.get("kind") in ANSWERS)


def _most(line: Mapping[str, Any]) -> int:
    """Lines of this kind per minute and peer."""
    return ANSWERS_PER_MINUTE if _is_answer(line) else EVENTS_PER_MINUTE.get(line["event"], MESSAGES_PER_MINUTE)


def files(folder: Path) -> list[Path]:
    """A log's files, oldest first."""
    old = [path for path in folder.glob("audit-*.jsonl") if belongs(path.name)]
    current = folder / NAME
    return [*sorted(old, key=_number), *([current] if current.exists() else [])]


def _number(path: Path) -> int:
    return int(path.stem.removeprefix("audit-"))


def belongs(name: str) -> bool:
    """Whether this is a log's file."""
    return re.fullmatch(r"audit(-\d{6,9})?\.jsonl", name) is not None


@dataclass(frozen=True)
class Verified:
    """A valid log; ``missing``: lines that could not be written; ``repaired``: incomplete ones."""

    lines: int
    files: int
    missing: int
    repaired: int
    last: str


def read(folder: Path) -> Iterator[tuple[str, bytes, dict[str, Any]]]:
    """Place, bytes and content of each line. Raises LabelSkewError."""
    paths = files(folder)
    if not paths:
        raise LabelSkewError(f"{folder}: contains no {NAME}; use the folder of a server's run, or a silo's own folder")
    for path in paths:
        try:
            with open(path, "rb", opener=open_regular) as file:
                for number, line in enumerate(file, 1):
                    yield f"{path.name} line {number}", line, _content(f"{path.name} line {number}", line)
        except OSError as error:
            raise LabelSkewError(f"{path}: cannot be read: {error.strerror}") from None


def verify(folder: Path, last: str = "") -> Verified:
    """Check a log; ``last``: SHA-256 of a line that must exist. Raises as :func:`read`."""
    before, previous, count, missing, repaired, complete = "", "", 0, 0, 0, not last
    for where, line, content in read(folder):
        if not line.endswith(b"\n"):
            reason = "because the process was killed or the file was edited"
            raise RunError(f"{where}: is incomplete, {reason}; it is repaired when the run resumes")
        if count == 0 and (content.get("event") != "began" or content["before"] != ""):
            raise RunError(f"{where}: is not the start of a log; earlier lines are missing")
        if content["before"] != before:
            what = "one of them was changed, or lines were removed or moved"
            raise RunError(f"{where}: this line does not follow {previous}; {what}")
        before, previous, count = hashlib.sha256(line[:-1]).hexdigest(), where, count + 1
        complete = complete or before == last
        missing += content["times"] if content.get("event") == "gap" and type(content.get("times")) is int else 0
        repaired += content.get("event") == "repaired"
    if not count:
        raise RunError(f"{folder}: the log is empty; its first line is missing")
    if not complete:
        raise RunError(f"{folder}: no line has the SHA-256 {clean(last)}; the log was cut short, or changed at its end")
    return Verified(count, len(files(folder)), missing, repaired, before)


def _content(where: str, line: bytes) -> dict[str, Any]:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict) or not isinstance(content.get("before"), str):
        raise RunError(f"{where}: is not a line of an audit log; it was changed or damaged")
    return content
