"""One connection between two ranks: its purpose, its socket options, and the error for ranks that did not connect."""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from spark_estimator._native import Encryption
from spark_estimator.collectives.rendezvous import Rendezvous
from spark_estimator.env import Settings
from spark_estimator.errors import AuthenticationError, PeerLostError
from spark_estimator.security.encryption import Session

CONTROL = 0  # negotiation, liveness, goodbye
DATA = 1  # bulk bytes

_CONTEXT = struct.Struct("<16sIIQIB")

# The engine's heartbeats detect silent ranks, and name them. The kernel's own time-out is only a fallback, so it is
# longer; its values are multiples of the silence that a peer is allowed. It applies to both ends of a cut link: on
# Linux TCP_USER_TIMEOUT also decides when probes of an idle connection have failed, and treats a receiver that reads
# nothing (a paused process) as lost.
_PROBE_AFTER = 1 / 3
_PROBE_EVERY = 1 / 6
_KEEPALIVE_PROBES = 12  # where there is no TCP_USER_TIMEOUT
_GIVE_UP_AFTER = 2.5
_MOST_SECONDS = 32_000  # that the kernel takes


@dataclass(frozen=True)
class RankGroup:
    """Ranks that connect with each other and with no other rank.

    Attributes:
        number: 0 for the whole job; for process sets 1, 2... in the order in which a round adds them.
        ranks: their numbers in the job, ascending. A rank's position in it is its number in the group.
        call: what connects them, for messages; '': the call that makes the group.
    """

    number: int
    ranks: tuple[int, ...]
    call: str = field(default="", compare=False)

    @classmethod
    def job(cls, size: int) -> RankGroup:
        """Make the group of all `size` ranks."""
        return cls(0, tuple(range(size)))

    def __str__(self) -> str:
        """Return the call that connects these ranks, for messages."""
        return self.call or (f"process set {list(self.ranks)}" if self.number else "init()")


@dataclass(frozen=True, order=True)
class Connection:
    """The purpose of one connection; the context of its handshake.

    Attributes:
        round: the ``init()`` that it belongs to, from 1.
        from_rank: who connects, the lower of the two.
        to_rank: who accepts.
        purpose: CONTROL or DATA.
        group: number of the `RankGroup` whose ranks it joins.
        part: which of the data connections between the two, from 0; bytes go through them in turns.
        parts: how many data connections the two have, as the connecting rank decides.
        overlay: of CONTROL: whether the connecting rank takes the group for one that is connected as an overlay.
    """

    round: int
    from_rank: int
    to_rank: int
    purpose: int
    group: int = 0
    part: int = 0
    parts: int = field(default=1, compare=False)
    overlay: bool = field(default=False, compare=False)

    @property
    def stage(self) -> tuple[int, int]:
        """Return round and group: what ranks connect for, one after another."""
        return self.round, self.group

    def pack(self, tag: bytes) -> bytes:
        """Return the context for the job that has this `tag`, 16 bytes."""
        purpose = self.purpose | self.part << 1 | (self.parts - 1) << 4 | self.overlay << 7
        return _CONTEXT.pack(tag, self.from_rank, self.to_rank, self.round, self.group, purpose)

    @classmethod
    def unpack(cls, context: bytes, tag: bytes) -> Connection:
        """Parse what `pack` made. Raises AuthenticationError if it is malformed or of another job than `tag`'s.

        Its numbers may be impossible.
        """
        if len(context) != _CONTEXT.size:
            raise AuthenticationError(f"its context has {len(context)} bytes, not {_CONTEXT.size}")
        stated, from_rank, to_rank, round_, group, purpose = _CONTEXT.unpack(context)
        if stated != tag:
            raise AuthenticationError("it belongs to another job")
        part, parts = purpose >> 1 & 7, (purpose >> 4 & 7) + 1
        return cls(round_, from_rank, to_rank, purpose & 1, group, part, parts, bool(purpose >> 7))


def tune(sock: socket.socket, silence_seconds: float) -> None:
    """Make an authenticated socket ready for the engine: small messages leave at once, dead links are noticed.

    Args:
        sock: connected.
        silence_seconds: for how long a peer may be silent before the engine takes it for lost.
    """
    sock.settimeout(None)
    if sock.family == socket.AF_UNIX:
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    silence = min(silence_seconds, _MOST_SECONDS)
    for option, value in (
        ("TCP_KEEPIDLE", max(1, round(silence * _PROBE_AFTER))),
        ("TCP_KEEPINTVL", max(1, round(silence * _PROBE_EVERY))),
        ("TCP_KEEPCNT", _KEEPALIVE_PROBES),
        ("TCP_USER_TIMEOUT", round(silence * _GIVE_UP_AFTER * 1000)),
    ):
        if hasattr(socket, option):  # macOS lacks some
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def to_encryption(session: Session | None) -> Encryption:
    """Return the secrets of a connection in the engine's form; without secrets when it is not encrypted."""
    return Encryption() if session is None else Encryption.of(session.cipher, session.send, session.receive)


def make_absent_error(
    rendezvous: Rendezvous, group: RankGroup, ranks: Sequence[int], what: str, settings: Settings
) -> PeerLostError:
    """Make the error for ranks of a group that did not connect in time; `what` describes what this rank saw of them."""
    names = ", ".join(str(rendezvous.peers[rank]) for rank in ranks)
    them = "this rank" if len(ranks) == 1 else "these ranks"
    return PeerLostError(
        f"{group} on {rendezvous.own_name}: {names} {what} within {settings.start_timeout_seconds:g} seconds. "
        f"Check the log of {them} for an error, and that no firewall blocks the hosts' connections. For a slow start, "
        "raise HOROVOD_START_TIMEOUT."
    )
