"""Where silos find the server: ``host:port``, from the recipe or from the host's CSV file."""

from __future__ import annotations

import csv
import ipaddress
import re
from pathlib import Path
from urllib.parse import unquote

from fl_labelskew_registry import LabelSkewError, mistake

_NAME = re.compile(r"(?!-)[A-Za-z0-9_.-]{1,253}\Z")
_FORM = "use host:port with a port from 0 to 65535, such as 127.0.0.1:8890 or [::1]:8890"
_COLUMNS = ("eid", "rank", "grpc_server_ip", "grpc_server_port")


def split(address: str) -> tuple[str, int]:
    """Host and port of an address; an IPv6 host comes without its brackets.

    Raises:
        ValueError: the address is of another form; one line.

    >>> split("[::1]:8890")
    ('::1', 8890)
    """
    host, colon, port = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    known = _ipv6(host[1:-1]) if bracketed else _NAME.match(host)
    # \d would let digits of other scripts through
    if not (colon and known and re.fullmatch("[0-9]{1,5}", port)) or int(port) > 65535:
        raise ValueError(f"'{' '.join(address.split())}' is no address; {_FORM}")
    return host.strip("[]"), int(port)


def join(host: str, port: int) -> str:
    """The address of a host and a port.

    >>> join("::1", 8890)
    '[::1]:8890'
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def of_peer(peer: str) -> tuple[str, int]:
    """Host and port of what gRPC calls a peer.

    >>> of_peer("ipv6:%5B::ffff:10.0.0.1%5D:4711"), of_peer("ipv4:10.0.0.1:4711")
    (('10.0.0.1', 4711), ('10.0.0.1', 4711))
    """
    _, _, address = unquote(peer).partition(":")
    host, _, port = address.rpartition(":")
    return plain(host.strip("[]")), int(port)


def plain(host: str) -> str:
    """An address without its zone; one of IPv4 in its own form."""
    return host.partition("%")[0].removeprefix("::ffff:")


def loopback(address: str) -> bool:
    """Whether an address can be reached from its own machine alone.

    >>> loopback("127.0.0.1:8890"), loopback("0.0.0.0:8890")
    (True, False)
    """
    host, _ = split(address)
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name
        return host.lower() == "localhost"


def from_csv(path: str | Path) -> str:
    """The server's address from the host's CSV file, ``eid,rank,grpc_server_ip,grpc_server_port``: the row of rank 0.

    Raises:
        LabelSkewError: the file cannot be read, or does not hold that address.
    """
    where = f"comm_args.grpc_ipconfig_path: {path}"
    try:
        with Path(path).open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.DictReader(file, skipinitialspace=True))
    except OSError as error:
        raise LabelSkewError(f"{where}: cannot be read: {error.strerror or error}") from None
    except (UnicodeDecodeError, ValueError, csv.Error):
        raise mistake(where, "is no CSV text", f"the columns {','.join(_COLUMNS)} and a row for each process") from None
    servers = [row for row in rows if (row.get("rank") or "").strip() == "0"]
    if len(servers) != 1:
        use = f"the columns {','.join(_COLUMNS)} and one such row, the server's"
        raise mistake(where, f"has {len(servers)} rows of rank 0", use)
    host, port = ((servers[0].get(column) or "").strip() for column in _COLUMNS[2:])
    address = f"[{host}]:{port}" if _ipv6(host) else f"{host}:{port}"
    try:
        split(address)
    except ValueError as error:
        raise LabelSkewError(f"{where}: rank 0: {error}") from None
    return address


def _ipv6(host: str) -> bool:
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return True
