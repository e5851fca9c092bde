"""The key-value store that ``torch.distributed`` asks for, kept by rank 0 of a job and reached with the job's key.

Torch's own ``TCPStore`` listens at every interface and authenticates no client; this package needs no open port. One
thread of rank 0 serves each connection, each thread of a rank has a separate connection, and a request is answered
before the next is read. What is stored are bytes; nothing in them is ever unpickled here.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta

from torch.distributed import DistStoreError
from torch.distributed.distributed_c10d import Store

from spark_estimator.extensions.process_group.links import Links, receive_exactly

PURPOSE = "store"

_LENGTH = struct.Struct("<I")
_MOST_BYTES = 1 << 30
# How long a thread of the server sleeps at most, so that one whose client has disconnected ends.
_SLICE_SECONDS = 1.0


class KeyValues:
    """The values themselves, and what can be asked of them. Its methods may be called from any thread."""

    def __init__(self) -> None:
        self._values: dict[bytes, bytes] = {}
        self._changed = threading.Condition()
        self._verbs: dict[bytes, Callable[..., list[bytes]]] = {
            b"set": self._set,
            b"append": self._append,
            b"add": self._add,
            b"compare_set": self._compare_set,
            b"check": self._check,
            b"delete": self._delete,
            b"count": self._count,
            b"get": self._get,
            b"wait": self._wait,
        }

    def answer(self, request: Sequence[bytes]) -> list[bytes]:
        """Execute a request. The first part is the verb, the others are its arguments.

        Returns:
            The answer's parts; none for a ``get`` or ``wait`` whose time was up.
        """
        verb, *arguments = request
        with self._changed:
            answered = self._verbs[verb](*arguments)
            self._changed.notify_all()
        return answered

    def _set(self, *keys_and_values: bytes) -> list[bytes]:
        self._values.update(zip(keys_and_values[::2], keys_and_values[1::2], strict=True))
        return [b"ok"]

    def _append(self, key: bytes, value: bytes) -> list[bytes]:
        self._values[key] = self._values.get(key, b"") + value
        return [b"ok"]

    def _add(self, key: bytes, amount: bytes) -> list[bytes]:
        self._values[key] = b"%d" % (int(self._values.get(key, b"0")) + int(amount))
        return [self._values[key]]

    def _compare_set(self, key: bytes, expected: bytes, desired: bytes) -> list[bytes]:
        present = self._values.get(key)
        if present == expected or (present is None and not expected):
            self._values[key] = desired
        return [self._values.get(key, expected)]

    def _check(self, *keys: bytes) -> list[bytes]:
        return [b"%d" % all(key in self._values for key in keys)]

    def _delete(self, key: bytes) -> list[bytes]:
        return [b"%d" % (self._values.pop(key, None) is not None)]

    def _count(self) -> list[bytes]:
        return [b"%d" % len(self._values)]

    def _get(self, seconds: bytes, *keys: bytes) -> list[bytes]:
        return [self._values[key] for key in keys] if self._wait(seconds, *keys) else []

    def _wait(self, seconds: bytes, *keys: bytes) -> list[bytes]:
        deadline = time.monotonic() + float(seconds)
        while not all(key in self._values for key in keys):
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return []
            self._changed.wait(min(remaining, _SLICE_SECONDS))
        return [b"ok"]

    def serve(self, sock: socket.socket, _rank: int) -> None:
        """Answer one connection until its other end closes it."""
        while (request := _receive(sock)) is not None:
            _send(sock, self.answer(request))


class JobStore(Store):
    """A rank's end of the store.

    Args:
        links: to rank 0.
        values: on rank 0 the values themselves.
        timeout: for `get` and `wait`.

    Attributes:
        at_first_use: called before the first request, once; it may refuse.
    """

    timeout: timedelta  # torch's own property

    def __init__(
        self, links: Links, values: KeyValues | None, timeout: timedelta, at_first_use: Callable[[], None] | None = None
    ) -> None:
        super().__init__()
        self.at_first_use = at_first_use
        self._links = links
        self._values = values
        self.set_timeout(timeout)  # in C++, where what torch wraps a store in sets it, too
        self._connection = threading.local()

    def set(self, key: str, value: str | bytes) -> None:
        """Store a value."""
        self._ask(b"set", _to_bytes(key), _to_bytes(value))

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        """Store several values at once."""
        self._ask(b"set", *(_to_bytes(part) for pair in zip(keys, values, strict=True) for part in pair))

    def append(self, key: str, value: str | bytes) -> None:
        """Add bytes to the end of a value."""
        self._ask(b"append", _to_bytes(key), _to_bytes(value))

    def get(self, key: str) -> bytes:
        """Return a value, once it is there. Raise DistStoreError if that takes longer than the store's time-out."""
        return self.multi_get([key])[0]

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Return several values, once they are there. Raise as `get` does."""
        return self._ask_and_wait(b"get", keys, self.timeout)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until the keys are there. Raise as `get` does."""
        self._ask_and_wait(b"wait", keys, self.timeout if timeout is None else timeout)

    def add(self, key: str, amount: int) -> int:
        """Add to a number, which begins as 0, and return the sum."""
        return int(self._ask(b"add", _to_bytes(key), b"%d" % amount)[0])

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Store `desired` if the value is `expected` (missing: if that is empty); return the value after that."""
        return self._ask(b"compare_set", _to_bytes(key), _to_bytes(expected), _to_bytes(desired))[0]

    def check(self, keys: Sequence[str]) -> bool:
        """Return whether all keys are there."""
        return self._ask(b"check", *map(_to_bytes, keys)) == [b"1"]

    def delete_key(self, key: str) -> bool:
        """Remove a value; return whether there was one."""
        return self._ask(b"delete", _to_bytes(key)) == [b"1"]

    def num_keys(self) -> int:
        """Return the number of keys."""
        return int(self._ask(b"count")[0])

    # By these names torch's C++ calls them.
    deleteKey = delete_key
    getNumKeys = num_keys

    def has_extended_api(self) -> bool:
        """Return True: the store can append, and set and get several at once."""
        return True

    def clone(self) -> JobStore:
        """Return the store itself: it may be used from any thread."""
        return self

    def _ask_and_wait(self, verb: bytes, keys: Sequence[str], timeout: timedelta) -> list[bytes]:
        answered = self._ask(verb, b"%f" % timeout.total_seconds(), *map(_to_bytes, keys))
        if not answered and keys:
            raise DistStoreError(
                f"the store's keys {list(keys)} were not all set when rank {self._links.rank} had waited for "
                f"{timeout.total_seconds():g} seconds; some rank has not reached this point."
            )
        return answered

    def _ask(self, *request: bytes) -> list[bytes]:
        if self.at_first_use is not None:
            self.at_first_use()
            self.at_first_use = None
        if self._values is not None:
            return self._values.answer(request)
        sock: socket.socket | None = getattr(self._connection, "sock", None)
        if sock is None:
            sock = self._connection.sock = self._links.connect(0, PURPOSE)
        try:
            _send(sock, request)
            answered = _receive(sock)
        except BaseException as error:  # also an interrupt: the answer to this request must not become the next one's
            self._connection.sock = None
            sock.close()
            if isinstance(error, OSError):
                answered = None
            else:
                raise
        if answered is None:
            self._connection.sock = None
            raise DistStoreError(
                f"rank {self._links.rank} lost the store, which {self._links.describe(0)} keeps: that process has "
                "ended or destroyed its process group."
            )
        return answered


def _to_bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else bytes(text)


def _send(sock: socket.socket, parts: Sequence[bytes]) -> None:
    lengths = b"".join(_LENGTH.pack(len(part)) for part in parts)
    body = _LENGTH.pack(len(parts)) + lengths + b"".join(parts)
    sock.sendall(_LENGTH.pack(len(body)) + body)


def _receive(sock: socket.socket) -> list[bytes] | None:
    """Return the parts of one message; None if the other end has closed the connection."""
    header = bytearray(_LENGTH.size)
    if not receive_exactly(sock, memoryview(header)):
        return None
    (length,) = _LENGTH.unpack(header)
    if not _LENGTH.size <= length <= _MOST_BYTES:
        raise OSError(f"a message of {length} bytes")
    body = bytearray(length)
    if not receive_exactly(sock, memoryview(body)):
        raise ConnectionResetError("the connection ended in the middle of a message")
    (count,) = _LENGTH.unpack_from(body)
    at = _LENGTH.size * (1 + count)
    parts = []
    for number in range(count):
        (size,) = _LENGTH.unpack_from(body, _LENGTH.size * (1 + number))
        parts.append(bytes(body[at : at + size]))
        at += size
    return parts
