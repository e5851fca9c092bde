"""Chooses the ports of the cluster, and names the process that has a port already."""

from __future__ import annotations

import os
import pwd
import socket
from collections.abc import Mapping
from pathlib import Path

# Which port is wanted for what.
PREFERRED = {"master": 7077, "master-ui": 8080, "connect": 15002, "jupyter": 8888}
ATTEMPTS = 20
_LISTEN = "0A"


class PortError(ValueError):
    """A port that was asked for cannot be used; the text names who has it and what to do."""


def parse(text: str) -> dict[str, int]:
    """The ports of ``"master=7077,connect=15003"``, by name. Raises PortError."""
    ports = {}
    for part in filter(None, text.replace(",", " ").split()):
        name, _, number = part.partition("=")
        if name not in PREFERRED:
            raise PortError(f"CLUSTER_PORTS has no port named {name!r}; the names are {', '.join(PREFERRED)}.")
        if not number.isdigit() or not 1024 <= int(number) <= 65535:
            raise PortError(f"CLUSTER_PORTS: {part!r} is not NAME=NUMBER with a number in 1024 ... 65535.")
        ports[name] = int(number)
    return ports


def choose(wanted: Mapping[str, int], host: str = "127.0.0.1") -> dict[str, int]:
    """A free port for each name of `PREFERRED`.

    Args:
        wanted: ports that must be the ones that are used. For the other names the port is the preferred one, or the
            next free one of the `ATTEMPTS` after it.
        host: the address that the daemons listen at.

    Raises:
        PortError: a wanted port, or all ports of a name, are in use.
    """
    chosen: dict[str, int] = {}
    for name, preferred in PREFERRED.items():
        candidates = [wanted[name]] if name in wanted else range(preferred, preferred + ATTEMPTS)
        usable = (port for port in candidates if port not in {*chosen.values(), *wanted.values()} - {wanted.get(name)})
        port = next((port for port in usable if is_free(port, host)), None)
        if port is None:
            first = candidates[0]
            what = f"Port {first}" if name in wanted else f"Each of the ports {first} ... {candidates[-1]}"
            raise PortError(
                f"{what} (for {name}) is in use. {first} is used by {holder(first)}. End that process, or ask its "
                f"owner to, or choose another port: make cluster CLUSTER_PORTS={name}={first + 100}"
            )
        chosen[name] = port
    return chosen


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether a server can listen at this port now."""
    with socket.socket() as probe:
        # As servers do: a port whose last connections are still being closed is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen()
        except OSError:
            return False
    return True


def holder(port: int) -> str:
    """The process that listens at a port, as text: its pid, command and user, as far as this user may see them."""
    sockets = _listening_sockets(port)
    if not sockets:
        return "a process that /proc/net/tcp does not show (another container, or a connection that is being closed)"
    inodes = {f"socket:[{inode}]" for inode in sockets}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            if any(os.readlink(link) in inodes for link in (folder / "fd").iterdir()):
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                return f"pid {folder.name} of user {_user(folder.stat().st_uid)} ({command[:120]})"
        except OSError:  # it has ended, or belongs to another user
            continue
    return f"a process of user {_user(next(iter(sockets.values())))}, whose pid this user cannot see"


def _listening_sockets(port: int) -> dict[str, int]:
    """inode -> uid of the sockets that listen at a port, at any address."""
    sockets = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for fields in map(str.split, lines):
            if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                sockets[fields[9]] = int(fields[7])
    return sockets


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
