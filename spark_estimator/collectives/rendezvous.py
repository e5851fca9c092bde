"""The knowledge with which a process becomes a rank: its number, its peers, their addresses, and the key of the job.

It is a value. The launcher opens one `Endpoint` for each rank, gathers the facts, and gives each process its own
`Rendezvous`: a launcher over the worker's stdin, tests directly. What it holds is used by ``connector``.
"""

from __future__ import annotations

import functools
import json
import os
import secrets
import socket
import sys
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from spark_estimator.env import IGNORE_LAUNCHER_VARIABLE, RENDEZVOUS_FD_VARIABLE
from spark_estimator.peer_json import parse_object
from spark_estimator.security.authentication import KEY_BYTES

_MEMFD_NAME = "spark_estimator_rendezvous"
# More ranks than that may connect before the one that they connect to has imported its framework; the kernel caps it.
_BACKLOG = 4096


@dataclass(frozen=True)
class PeerFacts:
    """The facts of one rank that the others need.

    Attributes:
        rank: its number.
        host: the name of its host, for people.
        host_id: equal for two ranks if and only if they are on the same host; see the function `host_id`.
        address: the IP address, as a literal, at which it listens.
        port: the TCP port at which it listens.
        local_name: the abstract Unix socket at which it listens, without the leading NUL; '' when it has none.
        pid: the process that was started for it, for people; 0 when not known. The rank itself may be a child of that.
    """

    rank: int
    host: str
    host_id: str
    address: str
    port: int
    local_name: str = ""
    pid: int = 0

    def shares_with(self, peer: PeerFacts) -> bool:
        """Return whether the two can try to share memory: both on one host, each with a Unix socket."""
        return self.host_id == peer.host_id and bool(self.local_name and peer.local_name)

    def describe(self, pid: int = 0) -> str:
        """Describe the rank for people. `pid` is its own process, where that is known."""
        process = f", pid {pid}" if pid else f", started as pid {self.pid}" if self.pid else ""
        return f"rank {self.rank} (host {self.host}{process}, address {_bracket(self.address)}:{self.port})"

    def __str__(self) -> str:
        return self.describe()


@dataclass(frozen=True)
class Topology:
    """One rank's position in its job.

    Attributes:
        rank: this rank, 0 <= rank < size.
        size: number of ranks.
        local_rank: position among the ranks of its host, in rank order.
        local_size: number of ranks on its host.
        cross_rank: position of its host among the hosts that have a rank with this local_rank.
        cross_size: number of hosts that have a rank with this local_rank.
        is_homogeneous: whether every host has the same number of ranks.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    is_homogeneous: bool

    @classmethod
    def of(cls, host_ids: Sequence[str], rank: int) -> Topology:
        """Return the topology of `rank` among ranks 0, 1 ..., of which rank i is on host `host_ids[i]`."""
        if not 0 <= rank < len(host_ids):
            raise ValueError(f"rank {rank} is not one of the {len(host_ids)} ranks.")
        ranks_of: dict[str, list[int]] = {}
        for other, host in enumerate(host_ids):
            ranks_of.setdefault(host, []).append(other)
        own_host = host_ids[rank]
        local_rank = ranks_of[own_host].index(rank)
        hosts_here = [host for host, ranks in ranks_of.items() if len(ranks) > local_rank]
        return cls(
            rank=rank,
            size=len(host_ids),
            local_rank=local_rank,
            local_size=len(ranks_of[own_host]),
            cross_rank=hosts_here.index(own_host),
            cross_size=len(hosts_here),
            is_homogeneous=len({len(ranks) for ranks in ranks_of.values()}) == 1,
        )


@dataclass(frozen=True)
class Rendezvous:
    """All that a process needs to become one rank of a job.

    It holds the job's key: never log it, never put it into arguments or the environment.

    Attributes:
        job_id: names this attempt of the job; another attempt has another id and another key.
        key: the secret that the ranks share, `KEY_BYTES` bytes. Not shown by repr.
        rank: which of the peers this process is.
        peers: the facts of all ranks, this one included, in rank order.
        listen_fd: descriptor, in this process, of the TCP socket that listens at this rank's address and port.
        local_fd: ... of the Unix socket that listens at its local_name; -1 when there is none.
        launcher_fd: ... of the socket on which an elastic rank talks with its launcher; -1 in a job of a fixed size.
        encrypted: whether the ranks encrypt what they send between hosts.
        awaited: this value only holds where the process listens: its launcher will send the rank and the round on that
            socket, and ``init()`` waits for it.
    """

    job_id: str
    key: bytes = field(repr=False)
    rank: int
    peers: tuple[PeerFacts, ...]
    listen_fd: int
    local_fd: int = -1
    launcher_fd: int = -1
    encrypted: bool = False
    awaited: bool = False

    def __post_init__(self) -> None:
        ranks = [peer.rank for peer in self.peers]
        if ranks != list(range(len(ranks))):
            raise ValueError(f"peers must be ranks 0 to {len(ranks) - 1} in order, not {ranks}.")
        if not 0 <= self.rank < len(self.peers):
            raise ValueError(f"rank {self.rank} is not one of the {len(self.peers)} peers.")
        if len(self.key) != KEY_BYTES:
            raise ValueError(f"the key must have {KEY_BYTES} bytes; this one has {len(self.key)}.")

    @property
    def topology(self) -> Topology:
        """Return this rank's place in the job."""
        return Topology.of([peer.host_id for peer in self.peers], self.rank)

    @property
    def own_name(self) -> str:
        """Return this rank's name for people, by the process that asks."""
        return self.peers[self.rank].describe(os.getpid())

    def to_json(self) -> str:
        """Return the whole value, key included, as one line: only for a pipe to the process that it is meant for."""
        return json.dumps({**asdict(self), "key": self.key.hex()})

    @classmethod
    def from_json(cls, text: str) -> Rendezvous:
        """Parse what `to_json` made. A ValueError about a malformed text does not quote it."""
        try:
            fields = parse_object(text)
            fields["key"] = bytes.fromhex(fields["key"])
            fields["peers"] = tuple(PeerFacts(**peer) for peer in fields["peers"])
            return cls(**fields)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            problem = type(error).__name__
        # Outside of the handler: the decoder's error holds the text, key included, and would be this one's context.
        raise ValueError(f"a rendezvous cannot be read from this text: {problem}")


class Endpoint:
    """The two listening sockets of one rank-to-be, opened by its launcher and inherited by it.

    Peers may connect from the moment it is open; the kernel keeps them waiting until the rank answers. The launcher
    closes its own copy once the rank's process has been started: as long as a copy is open anywhere, connections to
    a dead rank wait instead of failing.

    Attributes:
        address, port: where `tcp` listens.
        local_name: where `local` listens, '' when it is None.
        tcp: the TCP socket.
        local: the abstract Unix socket, None where the system has none.
    """

    def __init__(self, tcp: socket.socket, local: socket.socket | None, local_name: str) -> None:
        self.tcp = tcp
        self.local = local
        self.local_name = local_name
        self.address: str = tcp.getsockname()[0]
        self.port: int = tcp.getsockname()[1]

    @classmethod
    def open(cls, address: str) -> Endpoint:
        """Listen at an ephemeral port of `address`, not a wildcard, and at an abstract Unix socket with a random name.

        Raises ValueError: the address is a wildcard; OSError: nothing can be bound there.
        """
        if not address:
            raise ValueError("no address to listen at.")
        family, _, _, _, resolved = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
        if resolved[0] in ("0.0.0.0", "::"):
            raise ValueError(f"{address!r} means every interface; pass the one address that the peers will use.")
        tcp = socket.socket(family, socket.SOCK_STREAM)
        try:
            tcp.bind(resolved)
            tcp.listen(_BACKLOG)
            local, name = _open_local()
        except OSError as error:
            tcp.close()
            raise OSError(error.errno, f"can't listen at {address}: {error.strerror or error}") from error
        return cls(tcp, local, name)

    def filenos(self) -> tuple[int, ...]:
        """Return the descriptors, for ``subprocess.Popen(pass_fds=...)``; the child sees the same numbers."""
        return tuple(sock.fileno() for sock in (self.tcp, self.local) if sock is not None)

    def facts(self, rank: int, *, pid: int = 0) -> PeerFacts:
        """Return the facts of the rank that will listen here, on this host."""
        return PeerFacts(rank, socket.gethostname(), host_id(), self.address, self.port, self.local_name, pid)

    def detach(self) -> tuple[int, int]:
        """Hands the descriptors over: (TCP, Unix or -1), for the `Rendezvous` of this very process."""
        return self.tcp.detach(), -1 if self.local is None else self.local.detach()

    def close(self) -> None:
        """Close this process's copies. Idempotent."""
        self.tcp.close()
        if self.local is not None:
            self.local.close()


def _open_local() -> tuple[socket.socket | None, str]:
    if not sys.platform.startswith("linux"):
        return None, ""
    # Abstract: no file to leave behind. Random: no other process can take the name beforehand.
    name = f"spark_estimator/{secrets.token_hex(16)}"
    local = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        local.bind(b"\x00" + name.encode())
        local.listen(_BACKLOG)
    except OSError:
        local.close()
        return None, ""  # TCP serves as well, only slower
    return local, name


@functools.cache
def host_id() -> str:
    """Return a word that two processes share if and only if they run on the same host: boot id and host name.

    The boot id alone is shared by containers of one machine; they may still differ in network and memory limits.
    """
    boot = ""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot or format(uuid.getnode(), '012x')}/{socket.gethostname()}"


def make_local_rendezvous(
    n: int, address: str = "127.0.0.1", *, encrypted: bool = False
) -> list[tuple[Rendezvous, Endpoint]]:
    """Make a new job of `n` ranks at one address of this host: each rank's rendezvous, and the sockets to inherit."""
    if n < 1:
        raise ValueError(f"a job has at least one rank, not {n}.")
    endpoints: list[Endpoint] = []
    try:
        for _ in range(n):
            endpoints.append(Endpoint.open(address))
    except OSError:
        for endpoint in endpoints:
            endpoint.close()
        raise
    return make_job(endpoints, [endpoint.facts(rank) for rank, endpoint in enumerate(endpoints)], encrypted=encrypted)


def make_job(
    endpoints: Sequence[Endpoint], peers: Sequence[PeerFacts], *, encrypted: bool = False
) -> list[tuple[Rendezvous, Endpoint]]:
    """Make a fresh job of ranks that listen at these endpoints, in rank order; in `make_local_rendezvous`' form."""
    job_id, key = make_job_id(), make_key()
    return [
        (
            Rendezvous(
                job_id=job_id,
                key=key,
                rank=rank,
                peers=tuple(peers),
                listen_fd=endpoint.tcp.fileno(),
                local_fd=-1 if endpoint.local is None else endpoint.local.fileno(),
                encrypted=encrypted,
            ),
            endpoint,
        )
        for rank, endpoint in enumerate(endpoints)
    ]


def make_key() -> bytes:
    """Make a fresh secret for one attempt of a job."""
    return secrets.token_bytes(KEY_BYTES)


def make_job_id() -> str:
    """Make a fresh name for one attempt of a job. Not secret."""
    return secrets.token_hex(8)


_current: Rendezvous | None = None


def set_current(rendezvous: Rendezvous | None) -> None:
    """Make the next ``init()`` of this process join by `rendezvous`; None clears it."""
    global _current
    _current = rendezvous


def find_current(rendezvous_fd: int | None = None) -> Rendezvous | None:
    """Return the rendezvous of `set_current`, else the one that the launcher wrote to this descriptor, read once.

    None: this process is a job of one rank. Raises ValueError: the descriptor is not the launcher's.
    """
    global _current
    if _current is None and rendezvous_fd is not None:
        _current = _read_offer(rendezvous_fd)
    return _current


def offer_to_command(rendezvous: Rendezvous) -> tuple[int, Mapping[str, str]]:
    """Make `rendezvous` readable for a command that is about to be started and whose stdin is its own.

    Return an anonymous file to be inherited (``pass_fds``) and then closed here, and the variable with its number.
    """
    fd = os.memfd_create(_MEMFD_NAME, os.MFD_CLOEXEC)
    os.write(fd, rendezvous.to_json().encode())
    return fd, {RENDEZVOUS_FD_VARIABLE: str(fd)}


def _read_offer(fd: int) -> Rendezvous:
    try:
        made_by_us = f"memfd:{_MEMFD_NAME}" in os.readlink(f"/proc/self/fd/{fd}")
        text = os.pread(fd, os.fstat(fd).st_size, 0).decode() if made_by_us else ""
    except OSError:
        made_by_us = False
    if not made_by_us:
        raise ValueError(
            f"{RENDEZVOUS_FD_VARIABLE}={fd} is not a rendezvous in this process (pid {os.getpid()}), which was "
            "started by a rank, not by the launcher. Run collectives in the rank itself. A worker that multiprocessing "
            "or a DataLoader starts with 'spawn' or 'forkserver' runs the main script again: put init() and what "
            'follows under `if __name__ == "__main__":`. To run a job of one rank here, unset '
            f"{RENDEZVOUS_FD_VARIABLE} and set {IGNORE_LAUNCHER_VARIABLE}=1."
        )
    rendezvous = Rendezvous.from_json(text)
    os.close(fd)  # so that no process that this one starts can read the key
    return rendezvous


def _bracket(address: str) -> str:
    return f"[{address}]" if ":" in address else address
