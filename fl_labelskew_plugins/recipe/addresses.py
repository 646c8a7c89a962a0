"""Addresses of the server, ``host:port``."""

import ipaddress
import re
from contextlib import suppress
from urllib.parse import unquote


def split(address: str) -> tuple[str, int]:
    """Host, without brackets, and port; raises ValueError for other text.

    >>> split("[::1]:8890")
    ('::1', 8890)
    """
    host, _, port = address.rpartition(":")
    with suppress(ValueError):
        bracketed = host.startswith("[") and host.endswith("]")
        known = ipaddress.IPv6Address(host[1:-1]) if bracketed else re.fullmatch(r"(?!-)[A-Za-z0-9_.-]{1,253}", host)
        # \d would also match digits of other scripts
        if known and re.fullmatch("[0-9]{1,5}", port) and int(port) <= 65535:
            return host.strip("[]"), int(port)
    use = "use host:port with a port from 0 to 65535, such as 127.0.0.1:8890 or [::1]:8890"
    raise ValueError(f"'{' '.join(address.split())}' is not an address; {use}")


def join(host: str, port: int) -> str:
    """``host:port``; IPv6 hosts in brackets.

    >>> join("::1", 8890)
    '[::1]:8890'
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def of_peer(peer: str) -> tuple[str, int]:
    """Host and port of a peer name of gRPC.

    >>> of_peer("ipv6:%5B::ffff:10.0.0.1%5D:4711"), of_peer("ipv4:10.0.0.1:4711")
    (('10.0.0.1', 4711), ('10.0.0.1', 4711))
    """
    _, _, address = unquote(peer).partition(":")
    host, _, port = address.rpartition(":")
    return plain(host.strip("[]")), int(port)


def plain(host: str) -> str:
    """An IP address without its zone, and IPv4-mapped ones as IPv4."""
    return host.partition("%")[0].removeprefix("::ffff:")


def loopback(address: str) -> bool:
    """Whether only its own machine can reach an address."""
    host, _ = split(address)
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name
        return host.lower() == "localhost"
