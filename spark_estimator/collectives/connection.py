"""One connection between two ranks: what it is for, how its link is tuned, and how its absence is told."""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from spark_estimator.collectives.rendezvous import Rendezvous
from spark_estimator.env import Settings
from spark_estimator.errors import AuthenticationError, PeerLostError

CONTROL = 0  # negotiation, liveness, goodbye
DATA = 1  # bulk bytes

_CONTEXT = struct.Struct("<16sIIQB")

# A link that is cut without a word is noticed by the idle end after 2 + 4 * 1 seconds, and by one that has sent
# something after 15: longer, as the kernel treats a receiver that reads nothing (a paused process) in the same way.
_KEEPALIVE_IDLE_SECONDS = 2
_KEEPALIVE_INTERVAL_SECONDS = 1
_KEEPALIVE_PROBES = 4
_UNACKNOWLEDGED_MILLISECONDS = 15_000


@dataclass(frozen=True, order=True)
class Connection:
    """What one connection is for; the context of its handshake.

    Attributes:
        round: the ``init()`` that it belongs to, from 1.
        from_rank: who connects, the lower of the two.
        to_rank: who accepts.
        purpose: CONTROL or DATA.
    """

    round: int
    from_rank: int
    to_rank: int
    purpose: int

    def pack(self, tag: bytes) -> bytes:
        """The context for the job that has this `tag`, 16 bytes."""
        return _CONTEXT.pack(tag, self.from_rank, self.to_rank, self.round, self.purpose)

    @classmethod
    def unpack(cls, context: bytes, tag: bytes) -> Connection:
        """The inverse. Raises AuthenticationError when `context` is malformed or of another job than `tag`'s."""
        if len(context) != _CONTEXT.size:
            raise AuthenticationError(f"its context has {len(context)} bytes, not {_CONTEXT.size}")
        stated, from_rank, to_rank, round_, purpose = _CONTEXT.unpack(context)
        if stated != tag:
            raise AuthenticationError("it belongs to another job")
        return cls(round_, from_rank, to_rank, purpose)


def tune(sock: socket.socket) -> None:
    """Makes an authenticated socket ready for the engine: small messages leave at once, dead links are noticed."""
    sock.settimeout(None)
    if sock.family == socket.AF_UNIX:
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_KEEPIDLE", _KEEPALIVE_IDLE_SECONDS),
        ("TCP_KEEPINTVL", _KEEPALIVE_INTERVAL_SECONDS),
        ("TCP_KEEPCNT", _KEEPALIVE_PROBES),
        ("TCP_USER_TIMEOUT", _UNACKNOWLEDGED_MILLISECONDS),
    ):
        if hasattr(socket, option):  # macOS lacks some
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def absent_error(rendezvous: Rendezvous, ranks: Sequence[int], what: str, settings: Settings) -> PeerLostError:
    """What ``init()`` raises when some ranks were not there in time; `what` says what was seen of them."""
    own = rendezvous.peers[rendezvous.rank]
    names = ", ".join(str(rendezvous.peers[rank]) for rank in ranks)
    return PeerLostError(
        f"init() on {own}: {names} {what} within {settings.start_timeout_seconds:g} seconds. Look at what "
        "became of it; if it is only slow to start, raise HOROVOD_START_TIMEOUT."
    )
