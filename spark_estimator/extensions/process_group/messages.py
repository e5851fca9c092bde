"""Messages from one rank to another: torch's send and recv, over a separate connection for each direction.

The engine has no operation between two ranks, and a process set for each pair would cost every pair an engine. So bytes
go over one authenticated TCP connection from sender to receiver, made at the first message. A thread of the sender
writes what is queued for one receiver, in order; a thread of the receiver reads what one sender wrote, into the tensor
that waits for it, or into new memory if none does yet. A message goes to the oldest posted receive of its sender, group
and tag. A rank that waits for a lost rank gets an error that names it.
"""

from __future__ import annotations

import errno
import queue
import socket
import threading
import time
from collections import defaultdict, deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from spark_estimator.collectives.engine import Engine
from spark_estimator.errors import PeerLostError, ShutDownError
from spark_estimator.extensions.process_group.links import Links, receive_exactly
from spark_estimator.extensions.process_group.transfer import Envelope, MessageBytes, TensorSpec, Transfer
from spark_estimator.reader_thread import ReaderThread
from spark_estimator.security.authentication import NotReadyError

PURPOSE = "messages"
WATCH = "watch"

_GRACE_SECONDS = 0.5
_GONE = "it has left, or its process has ended"
# How many of the messages that were received and not asked for are listed in an error.
_TOLD_MESSAGES = 5

Key = tuple[int, int]  # group, tag


@dataclass
class _Receive:
    """A tensor that waits for a message; `source` None takes any of `senders`."""

    key: Key
    source: int | None
    senders: set[int]
    memory: MessageBytes
    transfer: Transfer


class _Arrived(NamedTuple):
    """A message that no receive has asked for yet."""

    source: int
    form: TensorSpec
    content: bytearray | memoryview


@dataclass
class _Outbox:
    """The queue of messages to one receiver."""

    waiting: queue.SimpleQueue[tuple[Envelope, MessageBytes, Transfer] | None] = field(
        default_factory=queue.SimpleQueue
    )


class Mailbox:
    """A rank's messages, sent and received. May be used from any thread.

    Args:
        engine: of the job: whose ranks they are.
        stall_seconds: seconds of waiting after which a line is logged; 0: never.
    """

    def __init__(self, engine: Engine, stall_seconds: float) -> None:
        self.links: Links | None = None  # set once it listens; see `takers`
        self._rank = engine.global_rank
        self._stall_seconds = stall_seconds
        self._lock = threading.Lock()
        self._posted: list[_Receive] = []
        self._arrived: dict[Key, deque[_Arrived]] = defaultdict(deque)
        self._outboxes: dict[int, _Outbox] = {}
        self._senders: dict[int, socket.socket] = {}  # whose messages are being read
        self._watched: set[int] = {self._rank}
        self._answered: set[int] = {self._rank}  # who has, of those that are watched
        self._watchers: set[socket.socket] = set()
        self._lost: dict[int, PeerLostError] = {}
        self._closed = False

    def send(self, group: int, rank: int, tag: int, memory: MessageBytes) -> Transfer:
        """Send bytes, which must stay unchanged until the transfer has ended: the kernel has them then.

        Args:
            group: the number of the process group, the same on all its ranks.
            rank: the receiver's number in the job; may be this rank's own.
            tag: what the receiver asks for.
            memory: the bytes.
        """
        to = self._describe(rank)

        def give_advice() -> str:
            return (
                f"Its connection takes no more: that process is frozen or overloaded, or its host cannot be reached. "
                f"Look at {to}."
            )

        waits_for = f"{to} to read a message (tag {tag}, {memory.form})"
        transfer = Transfer(f"rank {self._rank}", waits_for, give_advice, self._stall_seconds)
        if rank == self._rank:
            self._deliver((group, tag), _Arrived(rank, memory.form, bytearray(memory.data)))
            transfer.end()
            return transfer
        with self._lock:
            outbox = self._outboxes.get(rank)
            if outbox is None:
                outbox = self._outboxes[rank] = _Outbox()
                name = f"spark_estimator messages to rank {rank}"
                threading.Thread(target=self._write, args=(rank, outbox), name=name, daemon=True).start()
        outbox.waiting.put((Envelope(group, tag, len(memory.data), memory.form), memory, transfer))
        return transfer

    def receive(self, group: int, rank: int | None, tag: int, memory: MessageBytes, ranks: Sequence[int]) -> Transfer:
        """Put the next message of that group, sender and tag into `memory`. Arguments as for `send`.

        Args:
            rank: None accepts any sender; the transfer's `source` is the sender's rank.
            ranks: the group's, as the job numbers them.
        """
        whose = f"any of the ranks {list(ranks)}" if rank is None else self._describe(rank)
        key = group, tag
        transfer = Transfer(
            f"rank {self._rank}",
            f"a message of {whose} (tag {tag}, {memory.form})",
            lambda: self._explain_wait(key, rank, ranks),
            self._stall_seconds,
        )
        senders = {candidate for candidate in ranks if candidate != self._rank} if rank is None else {rank}
        receive = _Receive(key, rank, senders, memory, transfer)
        with self._lock:
            arrived = self._arrived[key]
            position = next((at for at, sent in enumerate(arrived) if rank in (None, sent.source)), None)
            if position is None:
                if senders and senders <= self._lost.keys():
                    transfer.end(self._lost[max(senders)])
                    return transfer
                self._posted.append(receive)
                for sender in [] if self._closed else senders - self._watched:
                    self._watched.add(sender)
                    self._watch_on(sender)
                return transfer
            message = arrived[position]
            del arrived[position]
        self._fill(receive, message)
        return transfer

    def take(self, sock: socket.socket, rank: int) -> None:
        """Read what `rank` writes, until it closes the connection."""
        reason = _GONE
        with self._lock:
            self._senders[rank] = sock
        try:
            while (envelope := Envelope.read(sock)) is not None:
                self._read(sock, rank, envelope)
        except BaseException as error:
            reason = _describe_reason(error)
        self._lose(rank, reason)

    def leave(self, group: int) -> None:
        """Discard the messages of a group that this rank has destroyed, and end the receives that wait for some."""
        with self._lock:
            for key in [key for key in self._arrived if key[0] == group]:
                del self._arrived[key]
            posted = [receive for receive in self._posted if receive.key[0] == group]
            self._posted = [receive for receive in self._posted if receive.key[0] != group]
        self._end(posted)

    def hold_watcher(self, sock: socket.socket, _rank: int) -> None:
        """Keep a connection open that ends with this rank, for a rank that waits for its messages."""
        with self._lock:
            if self._closed:
                return
            self._watchers.add(sock)
        sock.recv(1)

    def close(self) -> None:
        """End all that waits; messages that were sent may still arrive."""
        with self._lock:
            self._closed = True
            posted, self._posted = self._posted, []
            outboxes = list(self._outboxes.values())
            sockets = [*self._senders.values(), *self._watchers]
        for sock in sockets:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        self._end(posted)
        for outbox in outboxes:
            outbox.waiting.put(None)

    def _end(self, posted: Sequence[_Receive]) -> None:
        for receive in posted:
            receive.transfer.end(ShutDownError(f"rank {self._rank} destroyed its process group while it waited."))

    def _describe(self, rank: int) -> str:
        return f"rank {rank}" if self.links is None else self.links.describe(rank)

    def _explain_wait(self, key: Key, rank: int | None, ranks: Sequence[int]) -> str:
        """Return the facts while a receive waits: lost ranks, other messages that arrived, possible causes."""
        senders = [sender for sender in ranks if sender != self._rank] if rank is None else [rank]
        with self._lock:
            lost = [sender for sender in senders if sender in self._lost]
            others = [
                f"tag {tag} ({message.form}) of rank {message.source}"
                for (group, tag), messages in self._arrived.items()
                for message in messages
                if group == key[0] and message.source in senders
            ]
            silent = [sender for sender in senders if sender not in self._answered and sender not in self._lost]
        sentences = [f"Lost: {', '.join(map(self._describe, lost))}."] if lost else []
        if silent:
            sentences.append(f"Does not answer, and may be frozen: {', '.join(map(self._describe, silent))}.")
        if others:
            more = f" and {len(others) - _TOLD_MESSAGES} more" if len(others) > _TOLD_MESSAGES else ""
            sentences.append(f"Other messages have come: {', '.join(others[:_TOLD_MESSAGES])}{more}.")
        sentences.append(
            "Either no rank calls the send for it (with this rank as its destination, in this group, with this tag), "
            "or the sender is busy or frozen."
        )
        return " ".join(sentences)

    # --- the sending side --------------------------------------------------------------------------------------------

    def _write(self, rank: int, outbox: _Outbox) -> None:
        assert self.links is not None
        sock: socket.socket | None = None
        failure: Exception | None = None
        while (item := outbox.waiting.get()) is not None:
            envelope, memory, transfer = item
            if failure is None:
                try:
                    if sock is None:
                        sock = self.links.connect(rank, PURPOSE)
                    sock.sendall(envelope.pack())
                    sock.sendall(memory.data)
                except Exception as error:
                    failure = error
                    if not isinstance(error, PeerLostError):
                        failure = PeerLostError(
                            f"rank {self._rank} lost {self.links.describe(rank)} while it sent to it: {error}."
                        )
            transfer.end(failure)
            del item, memory, transfer
        if sock is not None:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_WR)
            sock.close()

    # --- the receiving side ------------------------------------------------------------------------------------------

    def _read(self, sock: socket.socket, rank: int, envelope: Envelope) -> None:
        group, tag, count, form = envelope
        with self._lock:
            receive = self._take_posted(rank, (group, tag)) if count else None
        fits = receive is not None and form.fits(receive.memory.form) and count == len(receive.memory.data)
        try:
            content = receive.memory.data if receive is not None and fits else memoryview(self._allocate(count, form))
            if count and not receive_exactly(sock, content):
                raise ConnectionResetError("the connection ended in the middle of a message")
        except BaseException as error:
            if receive is not None:
                receive.transfer.end(self._make_lost_error(rank, _describe_reason(error)))
            raise
        if receive is None:
            self._deliver((group, tag), _Arrived(rank, form, content))
        elif fits:
            receive.transfer.source = rank
            receive.transfer.end()
        else:
            self._fill(receive, _Arrived(rank, form, content))

    def _allocate(self, count: int, form: TensorSpec) -> bytearray:
        """Return new memory for a message."""
        try:
            return bytearray(count)
        except (MemoryError, OverflowError, ValueError) as error:
            raise OSError(
                errno.ENOMEM, f"rank {self._rank} has no memory for its message of {count} bytes ({form})"
            ) from error

    def _deliver(self, key: Key, message: _Arrived) -> None:
        with self._lock:
            receive = self._take_posted(message.source, key)
            if receive is None:
                self._arrived[key].append(message)
                return
        self._fill(receive, message)

    def _take_posted(self, rank: int, key: Key) -> _Receive | None:
        for position, receive in enumerate(self._posted):
            if receive.key == key and receive.source in (None, rank):
                return self._posted.pop(position)
        return None

    def _fill(self, receive: _Receive, message: _Arrived) -> None:
        """Put a message into the tensor that waits for it, if type and size agree."""
        expected, sent = receive.memory.form, message.form
        if not sent.fits(expected) or len(message.content) != len(receive.memory.data):
            receive.transfer.end(
                ValueError(
                    f"{self._describe(message.source)} sent {sent} (tag {receive.key[1]}), and the tensor that waits "
                    f"for it on rank {self._rank} is {expected}: sender and receiver must use the same number of "
                    "elements and the same type."
                )
            )
            return
        receive.memory.data[:] = message.content
        receive.transfer.source = message.source
        receive.transfer.end()

    def _watch_on(self, rank: int) -> None:
        """Start a thread that waits until a rank that this one waits for has ended."""

        def end(error: BaseException | None) -> None:
            # Its last messages may still arrive: the end of that connection, if there is one, shows what is lost.
            time.sleep(_GRACE_SECONDS)
            with self._lock:
                if rank in self._senders:
                    return
            self._lose(rank, _GONE if error is None else _describe_reason(error))

        ReaderThread(lambda: self._watch(rank), end, name=f"watches rank {rank}").start()

    def _watch(self, rank: int) -> None:
        assert self.links is not None
        while True:
            try:
                with self.links.connect(rank, WATCH) as sock:
                    self._answered.add(rank)
                    sock.recv(1)
                    return
            except (OSError, PeerLostError) as error:
                # A process that is there and sends nothing is frozen or busy, which is not to be lost.
                if self._closed or not isinstance(error.__cause__, NotReadyError):
                    raise
                time.sleep(_GRACE_SECONDS)

    def _lose(self, rank: int, reason: str) -> None:
        with self._lock:
            if self._closed:
                return
            error = self._lost.setdefault(rank, self._make_lost_error(rank, reason))
            lost = self._lost.keys()
            ended = [posted for posted in self._posted if rank in posted.senders and posted.senders <= lost]
            self._posted = [posted for posted in self._posted if posted not in ended]
        for receive in ended:
            receive.transfer.end(error)

    def _make_lost_error(self, rank: int, reason: str) -> PeerLostError:
        return PeerLostError(
            f"rank {self._rank} waits for a message from {self._describe(rank)}, which cannot arrive any more: "
            f"{reason}."
        )


def _describe_reason(error: BaseException) -> str:
    """Return why a rank is lost, without the point at the end."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return (str(error) or repr(error)).rstrip(".")
