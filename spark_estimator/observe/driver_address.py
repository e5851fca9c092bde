"""Finds the address at which a driver listens for its supervisors."""

from __future__ import annotations

import contextlib
import socket


def find_driver_address(preferred: str, towards: str = "") -> str:
    """Return this host's address for its executors: `preferred` if it is one, or that of the route `towards` a host.

    Raises OSError: this host has no suitable address.
    """
    for address in filter(None, (preferred, towards)):
        with contextlib.suppress(OSError):
            family, _, _, _, resolved = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.bind(resolved)
                if resolved[0] not in ("0.0.0.0", "::"):  # compared, not bound
                    return str(resolved[0])
    for address in filter(None, (towards, preferred)):
        with contextlib.suppress(OSError):
            family, _, _, _, resolved = socket.getaddrinfo(address, 9, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect(resolved)  # sends nothing, but asks the routing table
                return str(probe.getsockname()[0])
    raise OSError(f"no address of this host leads to {preferred!r}")
