"""Checks whether a server answers at a Spark address: Spark's own clients retry for minutes without a message."""

from __future__ import annotations

import contextlib
import os
import socket
import urllib.request
from collections.abc import Sequence

_CONNECT_PORT = 15002
_SECONDS = 5.0
# gRPC uses a proxy if one of them is set.
_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")


def explain_silence(address: str) -> str:
    """Explain why no server can be reached at an address, without a full stop; '' when one answers, or none is known.

    It is ``spark://host:port,host:port`` (one is enough) or ``sc://host:port/...``; of others nothing is known.
    """
    ends = _parse_ends(address)
    if not ends:
        return ""
    refusals = []
    for host, port in ends:
        refusal = _explain_refusal(host, port)
        if not refusal:
            return ""
        refusals.append(f"{host} port {port}: {refusal}")
    return f"no answer at {address} ({'; '.join(refusals)})"


def _parse_ends(address: str) -> Sequence[tuple[str, int]]:
    """Return the hosts and ports of an address; none if it has another form, or is reached through a proxy."""
    scheme, _, rest = address.partition("://")
    if scheme == "spark":
        ends = [_parse_end(end, 0) for end in rest.split(",")]
    elif scheme == "sc":
        ends = [_parse_end(rest.partition("/")[0], _CONNECT_PORT)]
        if ends[0] is not None and _uses_proxy(ends[0][0]):
            return ()
    else:
        return ()
    return [end for end in ends if end is not None] if all(ends) else ()


def _parse_end(text: str, default: int) -> tuple[str, int] | None:
    """Parse ``host:port``, ``[::1]:port``, or ``host`` with the default port; None when it is neither."""
    host, port = text.strip(), default
    with contextlib.suppress(ValueError):
        before, colon, after = host.rpartition(":")
        if colon and not (host.startswith("[") and host.endswith("]")):
            host, port = before, int(after)
    host = host.strip("[]")
    return (host, port) if host and 0 < port < 1 << 16 else None


def _uses_proxy(host: str) -> bool:
    names = {name.lower() for name, value in os.environ.items() if value}
    return not names.isdisjoint(_PROXIES) and not urllib.request.proxy_bypass(host)


def _explain_refusal(host: str, port: int) -> str:
    """Return why a connection cannot be made; '' when it can."""
    try:
        socket.create_connection((host, port), _SECONDS).close()
    except TimeoutError:
        return f"no answer within {_SECONDS:g} seconds"
    except OSError as error:
        return error.strerror or str(error)
    return ""
