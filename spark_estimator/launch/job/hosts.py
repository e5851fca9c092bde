"""The hosts of a job without Spark: parses ``-H`` and hostfiles, and assigns ranks to hosts. Pure but for files.

Hosts keep the order in which they are named; ranks are packed: the first host's slots are filled before the next
host's. A host that is named twice has the slots of both, at the position of the first.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

# No name may begin with a dash: ssh would take it for an option.
_NAME = r"(?:[\w.-]+@)?(?:(?!-)[\w.-]+|\[[0-9A-Fa-f:.%\w]+\])"
_HOST = re.compile(rf"(?P<name>{_NAME})(?::(?P<slots>\d{{1,6}}))?", re.ASCII)
_LINE = re.compile(rf"(?P<name>{_NAME})(?:(?::|\s+slots\s*=\s*)(?P<slots>\d{{1,6}}))?", re.ASCII)


@dataclass(frozen=True)
class Host:
    """Slots on one host.

    Attributes:
        name: as the user wrote it, for ssh and for messages; an IPv6 address without its brackets.
        slots: how many ranks may run there.
    """

    name: str
    slots: int


@dataclass(frozen=True)
class Share:
    """The ranks that one host runs."""

    host: Host
    ranks: range


def parse_hosts(text: str) -> list[Host]:
    """Parse ``host:slots,host:slots``; without a number a host has one slot.

    Raises:
        ValueError: it is not of that form; the text quotes `text` and what is wrong with it.
    """
    parsed = []
    for part in text.split(","):
        match = _HOST.fullmatch(part.strip())
        if match is None:
            where = "" if part == text else f"{text}: "
            raise ValueError(f"{where}{part!r} must have the form host:slots, such as localhost:2.")
        parsed.append(_make_host(match))
    return merge_hosts(parsed, text)


def read_hostfile(path: str) -> list[Host]:
    """Read lines ``host slots=n``; what follows a # is a comment.

    Raises:
        ValueError: the file cannot be read, or a line is not of that form; the text names file, line and number.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} can't be read: {getattr(error, 'strerror', None) or error}.") from error
    parsed = []
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        try:
            parsed.append(parse_host_line(text))
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from None
    if not parsed:
        raise ValueError(f"{path} has no hosts.")
    return merge_hosts(parsed, path)


def parse_host_line(text: str, default_slots: int = 1) -> Host:
    """Parse ``host``, ``host:n`` or ``host slots=n``. Raises ValueError: it is none of these."""
    match = _LINE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} must have the form: host slots=n.")
    return _make_host(match, default_slots)


def assign_hosts(hosts: Sequence[Host], size: int, source: str) -> list[Share]:
    """Assign ranks 0 ... size - 1 to the hosts, in their order. Raises ValueError: there are fewer slots."""
    slots = sum(host.slots for host in hosts)
    if slots < size:
        raise ValueError(
            f"{source} offers {slots} slots, but {size} ranks were requested. Add hosts or slots, or request at most "
            f"{slots} ranks."
        )
    shares, first = [], 0
    for host in hosts:
        end = min(first + host.slots, size)
        if end > first:
            shares.append(Share(host, range(first, end)))
        first = end
    return shares


def is_here(name: str) -> bool:
    """Return whether a name or an address is this host's. May query the name service."""
    if name in {"localhost", socket.gethostname(), socket.getfqdn()}:
        return True
    try:
        family, _, _, _, address = socket.getaddrinfo(name, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind(address)
    except OSError:
        return False
    return True


def _make_host(match: re.Match[str], default_slots: int = 1) -> Host:
    return Host(match["name"].strip("[]"), int(match["slots"] or default_slots))


def merge_hosts(hosts: Iterable[Host], source: str) -> list[Host]:
    """Return each host once, with the slots of all its mentions. Raises ValueError: one has no slot."""
    slots: dict[str, int] = {}
    for host in hosts:
        if host.slots < 1:
            raise ValueError(f"{source}: {host.name} has no slots; remove it, or give it at least one.")
        slots[host.name] = slots.get(host.name, 0) + host.slots
    return [Host(name, count) for name, count in slots.items()]
