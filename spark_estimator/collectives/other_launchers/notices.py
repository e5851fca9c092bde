"""How ranks get the address and key of rank 0's server: the interface, and the case of a key that the user sets."""

from __future__ import annotations

import abc
import hashlib
import hmac
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field

from spark_estimator.env import JOB_KEY_VARIABLE

_PORTS = 16
# Below the kernel's range for connections, so that they are rarely taken.
_FIRST_PORT, _LAST_PORT = 20000, 32000
#: A key that people choose must not be guessed from a recorded handshake.
LEAST_KEY_CHARACTERS = 32


@dataclass(frozen=True)
class Notice:
    """The possible addresses of rank 0's server.

    Attributes:
        places: addresses and ports, the likeliest first; at some of them another program may listen.
        key: of the challenge there. Not shown by repr.
    """

    places: tuple[tuple[str, int], ...]
    key: bytes = field(repr=False)


class NoticeBoard(abc.ABC):
    """Base of the ways in which a notice of rank 0 reaches the other ranks of its job.

    Attributes:
        where: the board, for messages.
        ports: at which rank 0's server may listen, in this order; 0 is any.
        address: at which rank 0's server listens; '': at all addresses of its host that others can reach.
    """

    where: str
    ports: Sequence[int] = (0,)
    address: str = ""

    @abc.abstractmethod
    def publish(self, places: Sequence[tuple[str, int]]) -> bytes:
        """Make known, on rank 0, that the server listens at `places`. Return the key of the challenge there."""

    @abc.abstractmethod
    def find(self) -> Notice | None:
        """Return the present notice, on the other ranks; None if there is none yet. The next call may find another."""

    @abc.abstractmethod
    def find_rival(self) -> Notice | None:
        """Return, on rank 0, the notice of another rank 0 of this job, which may have ended; None if there is none."""

    def close(self) -> None:
        """Remove the notice, on rank 0. Idempotent."""
        return


class AgreedBoard(NoticeBoard):
    """No board at all: the address of rank 0's host and the key are in every process's environment.

    The ports follow from the key, so that two jobs on a host seldom use the same port, and other users can't
    predict them.

    Args:
        master: rank 0's host.
        key: as `derive_key` makes it.
    """

    def __init__(self, master: str, key: bytes) -> None:
        digest = hmac.digest(key, b"ports of rank 0's server", "sha512")
        span = _LAST_PORT - _FIRST_PORT
        numbers = [int.from_bytes(digest[2 * index : 2 * index + 2], "big") for index in range(_PORTS)]
        self.ports = tuple(_FIRST_PORT + number % span for number in numbers)
        self.address = master
        self.where = f"the ports {self.ports[0]}, {self.ports[1]}, ... of {master} (MASTER_ADDR)"
        self._key = key
        self._own_port = 0

    def publish(self, places: Sequence[tuple[str, int]]) -> bytes:
        self._own_port = places[0][1] if places else 0
        return self._key

    def find_rival(self) -> Notice | None:
        """Return the notice of a rank 0 that has a port before this one's, where the clients look first."""
        notice = self.find()
        index = self.ports.index(self._own_port) if self._own_port in self.ports else 0
        return None if notice is None or index == 0 else Notice(notice.places[:index], self._key)

    def find(self) -> Notice | None:
        try:
            address = socket.getaddrinfo(self.address, 0, type=socket.SOCK_STREAM)[0][4][0]
        except OSError:
            return None  # not known yet: a service's name appears with its first process
        return Notice(tuple((str(address), port) for port in self.ports), self._key)


def derive_key(secret: str, identity: str, source: str = JOB_KEY_VARIABLE) -> bytes:
    """Return the key of one job's server, made of the user's for all jobs. Raises ValueError: that is short."""
    if len(secret) < LEAST_KEY_CHARACTERS:
        raise ValueError(
            f"{source} has {len(secret)} characters, and needs at least {LEAST_KEY_CHARACTERS}. Make one with "
            "`openssl rand -hex 32`."
        )
    return hmac.digest(secret.encode(), b"spark_estimator rendezvous server\x01" + identity.encode(), "sha256")


def make_file_name(identity: str) -> str:
    """Return a name for a job's file."""
    return hashlib.sha256(identity.encode()).hexdigest()[:32]
