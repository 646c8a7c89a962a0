"""Compare the bytes that a proxy recorded with the fields that docs/wire.md lists."""

import json
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from http2 import Headers, frames
from wiretap import payloads

from fl_labelskew_plugins.runtimes.transport import Kind

PAGE = (Path(__file__).parents[2] / "docs" / "wire.md").read_text(encoding="utf-8")


def rows(head):
    """The rows of the table of the page that begins with this line, each a list of cells."""
    _, _, rest = PAGE.partition(head + "\n")
    lines = rest.split("\n\n")[0].splitlines()[1:]
    assert lines
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@dataclass(frozen=True)
class Field:
    """A row of the table of fields."""

    message: str
    sender: str
    name: str
    form: str
    when: str


FIELDS = [
    Field(message, sender, name.replace("`", ""), form, when.replace("`", ""))
    for message, sender, name, form, when, _ in rows("| message | from | field | form | when | what it is |")
]
HEADERS = {}
for sender, names, _ in rows("| from | HTTP header | what it is |"):
    HEADERS.setdefault(sender, set()).update(re.findall("`([^`]+)`", names))


def whole(value):
    return type(value) is int


FORMS = {
    "whole number": whole,
    "whole numbers": lambda value: isinstance(value, list) and all(map(whole, value)),
    "whole numbers or null": lambda value: value is None or FORMS["whole numbers"](value),
    "numbers": lambda value: type(value) is float,
    "yes or no": lambda value: type(value) is bool,
    "text": lambda value: isinstance(value, str),
    "texts": lambda value: isinstance(value, list) and all(isinstance(text, str) for text in value),
    "16 hexadecimal digits": lambda value: re.fullmatch("[0-9a-f]{16}", value),
    "32 hexadecimal digits": lambda value: re.fullmatch("[0-9a-f]{32}", value),
    "the recipe's value": lambda value: True,  # see Wire.settings
}


@dataclass
class Wire:
    """What passed a proxy, read to the last byte.

    Args:
        proxy: after all processes have ended.
        sizes: ``C``, ``d`` and ``A``.
        network: name to type and shape of its tensors.
    """

    proxy: object
    sizes: dict
    network: dict

    def __post_init__(self):
        self.seen, self.settings = set(), []
        self.headers = {"silo": [], "server": []}
        for sender, streams in (("silo", self.proxy.sent), ("server", self.proxy.received)):
            for stream in streams:
                self._frames(sender, bytes(stream))
                for header, payload in payloads(stream, client=sender == "silo", whole=True):
                    ranks = (header.sender, header.receiver)
                    assert min(ranks) == 0 < max(ranks)
                    assert (header.sender > 0) == (sender == "silo")
                    self._message(sender, Kind(header.kind).name, bytes(payload))

    def _frames(self, sender, stream):
        headers = Headers()
        for frame in frames(stream, client=sender == "silo"):
            assert frame.stream in (0, 1)
            if frame.kind == "HEADERS":
                assert not frame.flags & ~0b101, "padding, or a block that goes on"
                self.headers[sender].append(dict(headers.decode(frame.payload)))
            elif frame.kind == "SETTINGS":
                assert len(frame.payload) % 6 == 0
            elif frame.kind == "GOAWAY":
                assert frame.payload[8:] in (b"", b"max_idle", b"Server shutdown", b"Cancelling all calls"), frame
            else:
                size = {"PING": 8, "WINDOW_UPDATE": 4, "RST_STREAM": 4}
                assert frame.kind == "DATA" or len(frame.payload) == size[frame.kind]

    def _message(self, sender, kind, payload):
        start = 8 + int.from_bytes(payload[:8], "little")
        text = payload[8:start]
        described = json.loads(text)
        plain = json.dumps(described, separators=(",", ":")).encode()
        assert text == plain + b" " * (-len(plain) % 8)  # nothing twice, nothing beside it
        metadata, end = described.pop("__metadata__"), 0
        assert metadata.keys() == {"meta", "nonce"}
        assert re.fullmatch("[0-9a-f]{32}", metadata["nonce"])
        meta = json.loads(metadata["meta"])
        assert json.dumps(meta) == metadata["meta"]
        for name, entry in sorted(described.items(), key=lambda item: item[1]["data_offsets"]):
            assert entry.keys() == {"dtype", "shape", "data_offsets"}
            assert entry["data_offsets"][0] == end
            end = entry["data_offsets"][1]
            field = self._field(kind, sender, f"tensor {name}")
            form = f"{entry['dtype']} {tuple(entry['shape'])}"
            if field.form == "the network's":
                assert form == self.network[name.removeprefix("model/")]
            else:
                letters = re.sub(r"\b[ACd]\b", lambda letter: str(self.sizes[letter[0]]), field.form)
                assert form.replace(",)", ")") == letters, name
        assert start + end == len(payload)
        for name, value in flat(meta):
            field = self._field(kind, sender, name)
            assert FORMS[field.form](value), (field, value)
        if "settings" in meta:
            self.settings.append(meta["settings"])
        self.seen.add((kind, sender))

    def _field(self, kind, sender, name):
        here = [f for f in FIELDS if (f.message, f.sender) == (kind, sender) and fnmatchcase(name, f.name)]
        assert len(here) == 1, f"docs/wire.md lists {len(here)} fields {name} of {kind} that the {sender} sends"
        self.seen.add(here[0])
        return here[0]

    def check(self, *whens):
        """Exactly those fields came that the page has for these circumstances, and those HTTP headers."""
        came = {row for row in self.seen if isinstance(row, Field)}
        kinds = {field.message for field in came}
        odd = [field for field in came if field.when not in ("always", *whens)]
        missing = [
            f for f in FIELDS if f not in came and (f.when in whens or (f.when == "always" and f.message in kinds))
        ]
        assert not odd, f"not listed in docs/wire.md: {odd}"
        assert not missing, f"did not come, though docs/wire.md lists it: {missing}"
        for sender, listed in HEADERS.items():
            names = {name for headers in self.headers[sender] for name in headers}
            assert names == listed, f"HTTP headers of the {sender}: {names ^ listed}"
        for headers in self.headers["silo"]:
            constant = {name: headers.pop(name) for name in (":authority", "user-agent")}
            assert constant[":authority"] == self.proxy.address
            assert re.fullmatch(r"grpc-python/[\d.]+ grpc-c/[\d.]+ \(linux; chttp2\)", constant["user-agent"])
        assert len({json.dumps(headers, sort_keys=True) for headers in self.headers["silo"]}) == 1
        assert {headers.get("grpc-message", "") for headers in self.headers["server"]} == {""}


def flat(meta, before=""):
    """Names with dots, and values; the settings' own values are not taken apart."""
    for name, value in meta.items():
        if isinstance(value, dict) and before.count(".") < 2:
            yield from flat(value, f"{before}{name}.")
        else:
            yield before + name, value
