"""The addresses of this host that processes of other hosts may reach, and sockets that listen there."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import struct
from collections.abc import Sequence
from pathlib import Path

from spark_estimator.posix import fcntl

_SIOCGIFADDR = 0x8915
_BACKLOG = 4096


def find_own_addresses() -> list[str]:
    """Return the addresses of this host's interfaces, the default route's first; loopback's if there is no other."""
    default = _find_default_interface()
    names = sorted((name for _, name in socket.if_nameindex()), key=lambda name: name != default)
    addresses = [address for name in names for address in (*_find_version_4(name), *_find_version_6(name))]
    return addresses or ["127.0.0.1"]


def listen(choices: Sequence[Sequence[str]], ports: Sequence[int]) -> list[socket.socket]:
    """Open sockets at one of `ports` (0: any) of each address of the first choice where that works; else none."""
    for addresses in choices:
        for port in ports:
            with contextlib.suppress(OSError):
                return _open_listeners(addresses, port)
    return []


def _open_listeners(addresses: Sequence[str], port: int) -> list[socket.socket]:
    listeners: list[socket.socket] = []
    try:
        for address in addresses:
            family, _, _, _, resolved = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
            listeners.append(socket.socket(family, socket.SOCK_STREAM))
            # A port that an earlier job had is free at once. A port at which another process listens is not.
            listeners[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listeners[-1].bind(resolved)
            listeners[-1].listen(_BACKLOG)
    except OSError:
        for listener in listeners:
            listener.close()
        raise
    return listeners


def find_address(interface: str) -> str | None:
    """Return the IPv4 address of a network interface; None if it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock, contextlib.suppress(OSError):
        answer = fcntl.ioctl(sock.fileno(), _SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
        return socket.inet_ntoa(answer[20:24])
    return None


def _find_version_4(interface: str) -> list[str]:
    address = find_address(interface)
    return [] if address is None or ipaddress.ip_address(address).is_loopback else [address]


def _find_version_6(interface: str) -> list[str]:
    """Return those of global scope: a link-local address means nothing on another host."""
    addresses = []
    with contextlib.suppress(OSError):
        for line in Path("/proc/net/if_inet6").read_text().splitlines():
            digits, _, _, scope, _, name = line.split()
            if name == interface and scope == "00":
                addresses.append(str(ipaddress.IPv6Address(int(digits, 16))))
    return addresses


def _find_default_interface() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/net/route").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[1] == fields[7] == "00000000":
                return fields[0]
    return ""
