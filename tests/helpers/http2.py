"""HTTP/2 as a proxy recorded it, every byte: frames (RFC 9113) and header blocks (RFC 7541) as gRPC writes them."""

from dataclasses import dataclass

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
KINDS = """
DATA HEADERS PRIORITY RST_STREAM SETTINGS PUSH_PROMISE PING GOAWAY WINDOW_UPDATE CONTINUATION"""
STATIC = """
:authority :method|GET :method|POST :path|/ :path|/index.html :scheme|http :scheme|https :status|200 :status|204
:status|206 :status|304 :status|400 :status|404 :status|500 accept-charset accept-encoding|gzip,_deflate
accept-language accept-ranges accept access-control-allow-origin age allow authorization cache-control
content-disposition content-encoding content-language content-length content-location content-range content-type
cookie date etag expect expires from host if-match if-modified-since if-none-match if-range if-unmodified-since
last-modified link location max-forwards proxy-authenticate proxy-authorization range referer refresh retry-after
server set-cookie strict-transport-security transfer-encoding user-agent vary via www-authenticate"""


@dataclass(frozen=True)
class Frame:
    """One frame; ``payload`` is all of it but the nine bytes before."""

    kind: str
    flags: int
    stream: int
    payload: bytes


def frames(data, *, client, whole=True):
    """All frames of one direction of a connection; ``whole``: there are no other bytes."""
    at, found = 0, []
    if client and data:
        assert data.startswith(PREFACE)
        at = len(PREFACE)
    while at + 9 <= len(data):
        end = at + 9 + int.from_bytes(data[at : at + 3], "big")
        if end > len(data):
            break
        stream = int.from_bytes(data[at + 5 : at + 9], "big")
        found.append(Frame(KINDS.split()[data[at + 3]], data[at + 4], stream, bytes(data[at + 9 : end])))
        at = end
    assert at == len(data) or not whole, "a frame that is cut short"
    return found


class Headers:
    """Decodes the header blocks of one direction of a connection, in order."""

    def __init__(self):
        entries = [entry.partition("|") for entry in STATIC.split()]
        self.table = [(name, value.replace("_", " ")) for name, _, value in entries]
        self.block, self.at = b"", 0

    def decode(self, block):
        """Names and values."""
        self.block, self.at, found = block, 0, []
        while self.at < len(block):
            first = block[self.at]
            if first & 0x80:
                found.append(self.table[self._number(7) - 1])
            elif first & 0xE0 == 0x20:
                self._number(5)  # another size of the table
            else:
                index = self._number(6 if first & 0x40 else 4)
                found.append((self.table[index - 1][0] if index else self._text(), self._text()))
                if first & 0x40:
                    self.table.insert(len(STATIC.split()), found[-1])
        assert self.at == len(block)
        return found

    def _number(self, bits):
        most = 2**bits - 1
        value, shift = self.block[self.at] & most, 0
        self.at += 1
        while value >= most:
            byte = self.block[self.at]
            value += (byte & 0x7F) << shift
            self.at, shift = self.at + 1, shift + 7
            if not byte & 0x80:
                break
        return value

    def _text(self):
        assert not self.block[self.at] & 0x80, "Huffman's code, which gRPC does not write"
        length = self._number(7)
        self.at += length
        return self.block[self.at - length : self.at].decode()
