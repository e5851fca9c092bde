"""Messages from one rank to another: torch's send and recv, over a connection of their own for each direction.

The engine has no such operation, and a process set for each pair of ranks would cost every pair an engine. So bytes go
over one authenticated TCP connection from sender to receiver, made at the first message. A thread of the sender writes
what is queued for one receiver, in order; a thread of the receiver reads what one sender wrote, into the tensor that
waits for it, or into memory of its own when none does yet. A message meets the receive of its sender, group and tag
that was posted first. Who waits for a rank that is lost hears of it, named.
"""

from __future__ import annotations

import ctypes
import queue
import socket
import struct
import threading
import time
from collections import defaultdict, deque
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta

from spark_estimator.collectives.engine import Engine
from spark_estimator.errors import PeerLostError, ShutDownError
from spark_estimator.torch.process_group.links import Links, receive_exactly

PURPOSE = "messages"
WATCH = "watch"

_HEADER = struct.Struct("<QqQ")  # group, tag, bytes
_WAIT_SLICE_SECONDS = 0.1  # so that Python handles Ctrl-C
_GRACE_SECONDS = 0.5
_GONE = "it has left, or its process has ended"

Key = tuple[int, int]  # group, tag


class Transfer:
    """One message under way, for its sender or its receiver.

    Attributes:
        source: once it is done, at the receiver: the sender's rank in the job.
    """

    def __init__(self, what: str) -> None:
        self.source = -1
        self._what = what
        self._ended = threading.Event()
        self._error: Exception | None = None

    def end(self, error: Exception | None = None) -> None:
        """Notes the outcome."""
        self._error = error
        self._ended.set()

    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return self._ended.is_set()

    def wait(self, timeout: timedelta | None = None) -> None:
        """Returns when it is done; raises what went wrong, or TimeoutError."""
        remaining = float("inf") if timeout is None else timeout.total_seconds()
        while not self._ended.wait(min(remaining, _WAIT_SLICE_SECONDS)):
            remaining -= _WAIT_SLICE_SECONDS
            if remaining <= 0:
                assert timeout is not None
                raise TimeoutError(f"{self._what} was not done after {timeout.total_seconds():g} seconds.")
        if self._error is not None:
            raise self._error


@dataclass
class _Receive:
    """A tensor that waits for a message; `source` None takes any sender's."""

    key: Key
    source: int | None
    memory: memoryview
    transfer: Transfer
    keep: object


@dataclass
class _Outbox:
    """What is to be written to one receiver."""

    waiting: queue.SimpleQueue[tuple[Key, memoryview, Transfer, object] | None] = field(
        default_factory=queue.SimpleQueue
    )


class Mailbox:
    """A rank's messages, sent and received. May be used from any thread.

    Args:
        engine: of the job: whose ranks they are.
    """

    def __init__(self, engine: Engine) -> None:
        self.links: Links | None = None  # set once it listens; see `takers`
        self._rank = engine.global_rank
        self._lock = threading.Lock()
        self._posted: list[_Receive] = []
        self._arrived: dict[Key, deque[tuple[int, bytearray]]] = defaultdict(deque)
        self._outboxes: dict[int, _Outbox] = {}
        self._senders: dict[int, socket.socket] = {}  # whose messages are being read
        self._watched: set[int] = {self._rank}
        self._watchers: set[socket.socket] = set()
        self._lost: dict[int, Exception] = {}
        self._closed = False

    def send(self, group: int, rank: int, tag: int, memory: memoryview, keep: object) -> Transfer:
        """Sends bytes, which must stay as they are until the transfer has ended: they are with the kernel then.

        Args:
            group: the number of the process group, the same on all its ranks.
            rank: the receiver's number in the job; may be this rank's own.
            tag: what the receiver asks for.
            memory: the bytes.
            keep: whoever owns them; referenced until the transfer has ended.
        """
        transfer = Transfer(f"a message of rank {self._rank} to rank {rank} (tag {tag})")
        key = group, tag
        if rank == self._rank:
            self._deliver(rank, key, bytearray(memory))
            transfer.end()
            return transfer
        with self._lock:
            outbox = self._outboxes.get(rank)
            if outbox is None:
                outbox = self._outboxes[rank] = _Outbox()
                name = f"spark_estimator messages to rank {rank}"
                threading.Thread(target=self._write, args=(rank, outbox), name=name, daemon=True).start()
        outbox.waiting.put((key, memory, transfer, keep))
        return transfer

    def receive(self, group: int, rank: int | None, tag: int, memory: memoryview, keep: object) -> Transfer:
        """Has the next message of that group, sender and tag put into `memory`. Arguments as for `send`.

        Args:
            rank: None takes any sender's; the transfer's `source` tells whose it was.
        """
        whose = "any rank" if rank is None else f"rank {rank}"
        transfer = Transfer(f"a message of {whose} to rank {self._rank} (tag {tag})")
        receive = _Receive((group, tag), rank, memory, transfer, keep)
        with self._lock:
            arrived = self._arrived[group, tag]
            place = next((at for at, (source, _) in enumerate(arrived) if rank in (None, source)), None)
            if place is None:
                if rank is not None and rank in self._lost:
                    transfer.end(self._lost[rank])
                    return transfer
                self._posted.append(receive)
                watch = rank is not None and rank not in self._watched and not self._closed
                if watch and rank is not None:
                    self._watched.add(rank)
                    name = f"spark_estimator watches rank {rank}"
                    threading.Thread(target=self._watch, args=(rank,), name=name, daemon=True).start()
                return transfer
            source, content = arrived[place]
            del arrived[place]
        _fill(receive, source, content)
        return transfer

    def take(self, sock: socket.socket, rank: int) -> None:
        """Reads what `rank` writes, until it closes the connection."""
        header = bytearray(_HEADER.size)
        reason = _GONE
        with self._lock:
            self._senders[rank] = sock
        try:
            while receive_exactly(sock, memoryview(header)):
                group, tag, count = _HEADER.unpack(header)
                self._read(sock, rank, (group, tag), count)
        except OSError as error:
            reason = str(error)
        self._lose(rank, reason)

    def be_watched(self, sock: socket.socket, _rank: int) -> None:
        """Keeps a connection open over which a rank that waits for this one's messages sees it end."""
        with self._lock:
            if self._closed:
                return
            self._watchers.add(sock)
        sock.recv(1)

    def close(self) -> None:
        """Ends all that waits; what was sent is on its way."""
        with self._lock:
            self._closed = True
            posted, self._posted = self._posted, []
            outboxes = list(self._outboxes.values())
            sockets = [*self._senders.values(), *self._watchers]
        for sock in sockets:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for receive in posted:
            receive.transfer.end(ShutDownError(f"rank {self._rank} destroyed its process group while it waited."))
        for outbox in outboxes:
            outbox.waiting.put(None)

    # --- the sending side --------------------------------------------------------------------------------------------

    def _write(self, rank: int, outbox: _Outbox) -> None:
        assert self.links is not None
        sock: socket.socket | None = None
        failure: Exception | None = None
        while (item := outbox.waiting.get()) is not None:
            (group, tag), memory, transfer, keep = item
            if failure is None:
                try:
                    if sock is None:
                        sock = self.links.connect(rank, PURPOSE)
                    sock.sendall(_HEADER.pack(group, tag, len(memory)))
                    sock.sendall(memory)
                except Exception as error:
                    failure = error
                    if not isinstance(error, PeerLostError):
                        failure = PeerLostError(
                            f"rank {self._rank} lost {self.links.name(rank)} while it sent to it: {error}."
                        )
            transfer.end(failure)
            del item, memory, transfer, keep
        if sock is not None:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_WR)
            sock.close()

    # --- the receiving side ------------------------------------------------------------------------------------------

    def _read(self, sock: socket.socket, rank: int, key: Key, count: int) -> None:
        with self._lock:
            receive = self._taken(rank, key) if count else None
        if receive is None or len(receive.memory) != count:
            content = bytearray(count)
            if count and not receive_exactly(sock, memoryview(content)):
                raise ConnectionResetError("the connection ended in the middle of a message")
            if receive is None:
                self._deliver(rank, key, content)
            else:
                _fill(receive, rank, content)
            return
        try:
            if not receive_exactly(sock, receive.memory):
                raise ConnectionResetError("the connection ended in the middle of a message")
        except OSError as error:
            receive.transfer.end(self._lost_error(rank, str(error)))
            raise
        receive.transfer.source = rank
        receive.transfer.end()

    def _deliver(self, rank: int, key: Key, content: bytearray) -> None:
        with self._lock:
            receive = self._taken(rank, key)
            if receive is None:
                self._arrived[key].append((rank, content))
                return
        _fill(receive, rank, content)

    def _taken(self, rank: int, key: Key) -> _Receive | None:
        for place, receive in enumerate(self._posted):
            if receive.key == key and receive.source in (None, rank):
                return self._posted.pop(place)
        return None

    def _watch(self, rank: int) -> None:
        """Waits until a rank that this one waits for has ended."""
        assert self.links is not None
        reason = _GONE
        try:
            with self.links.connect(rank, WATCH) as sock:
                sock.recv(1)
        except (OSError, PeerLostError) as error:
            reason = str(error)
        # What it sent last may still be on its way: the end of that connection, if there is one, tells what is lost.
        time.sleep(_GRACE_SECONDS)
        with self._lock:
            if rank in self._senders:
                return
        self._lose(rank, reason)

    def _lose(self, rank: int, reason: str) -> None:
        with self._lock:
            if self._closed:
                return
            error = self._lost.setdefault(rank, self._lost_error(rank, reason))
            ended = [receive for receive in self._posted if receive.source == rank]
            self._posted = [receive for receive in self._posted if receive.source != rank]
        for receive in ended:
            receive.transfer.end(error)

    def _lost_error(self, rank: int, reason: str) -> PeerLostError:
        name = f"rank {rank}" if self.links is None else self.links.name(rank)
        return PeerLostError(f"rank {self._rank} waits for a message of {name}, which sends none any more: {reason}.")


def memory_at(address: int, count: int) -> memoryview:
    """`count` writable bytes at an address. Whoever owns them must be kept."""
    return memoryview((ctypes.c_char * count).from_address(address)).cast("B") if count else memoryview(bytearray())


def _fill(receive: _Receive, rank: int, content: bytearray) -> None:
    if len(content) != len(receive.memory):
        receive.transfer.end(
            ValueError(
                f"rank {rank} sent {len(content)} bytes, and the tensor that waits for them has "
                f"{len(receive.memory)}: both ends must give tensors of one element type and size."
            )
        )
        return
    receive.memory[:] = content
    receive.transfer.source = rank
    receive.transfer.end()
