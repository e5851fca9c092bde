"""Finds the address at which a driver listens for its supervisors."""

from __future__ import annotations

import contextlib
import socket


def find_driver_address(preferred: str, towards: str = "") -> str:
    """Find the address of this host at which its executors can reach it.

    Args:
        preferred: what Spark calls the driver's host; used when it is an address of this host.
        towards: a host that must be able to reach this one, '' for `preferred`; else the address of the route to it.

    Raises:
        OSError: this host has no suitable address.
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
