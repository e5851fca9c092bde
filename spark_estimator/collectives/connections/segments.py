"""Passes shared segments between the ranks of one host, over their authenticated Unix sockets.

A segment is anonymous memory of one rank, made by the engine and known by a descriptor only: there is no file that
could fill a file system, be left behind, or be opened by another user.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import socket
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from spark_estimator import _native
from spark_estimator.collectives.rendezvous import PeerFacts
from spark_estimator.errors import PeerLostError

_HAS_NONE = b"\x00"
_HAS_SEGMENT = b"\x01"
_FAILED = b"\x02"  # the exchange: a text follows, and _END
_READY = b"\x03"  # to receive
_END = b"\x00"
_MOST_AT_ONCE = 250  # descriptors in a message; the kernel takes 253
_PAUSE_SECONDS = 0.005
_GRACE_SECONDS = 0.25


def create_segment(local_size: int) -> int:
    """Create this rank's segment for `local_size` ranks of one host, a descriptor. Raises HorovodInternalError."""
    fd = ctypes.c_int32(-1)
    _native.check(_native.library().se_segment_create(local_size, ctypes.byref(fd)))
    return fd.value


def exchange(
    links: Mapping[int, tuple[PeerFacts, socket.socket]], position: int, size: int, segment: int, deadline: float
) -> list[int]:
    """Give each rank of a host the segments of all others, in log2(size) steps. All of them call it.

    In step k a rank passes on the segments that it has by then, its own and those of the 2^k - 1 positions before it,
    to the rank 2^k positions after it (the allgather of Bruck et al., 1997). Where two ranks are not connected by Unix
    socket, those behind them may not get each other's segments either, and share no memory.

    Args:
        links: by position, the control connections with the ranks at distances of powers of two, and perhaps more.
            Over those that are no Unix sockets nothing is passed on.
        position: this rank's among the `size` ranks of its host.
        segment: this rank's, -1 for none.
        deadline: on the monotonic clock, in seconds.

    Returns:
        By position, each rank's segment; -1 for this rank, where there is none, and where this rank has none itself.

    Raises:
        PeerLostError: a connection broke, or a rank sent nothing. The text names that rank, whichever rank has noticed.
    """
    received: list[int] = []  # by distance from this rank, backwards, from 1
    unsent = [1 << k for k in range((size - 1).bit_length())]
    try:
        for number, step in enumerate(tuple(unsent)):
            # Who is a rank ahead needs nothing that comes from itself or from beyond.
            count = min(step, size - step)
            # A rank that waits for one that itself waits learns from it whom to blame.
            step_deadline = deadline + number * _GRACE_SECONDS
            target, source = links[(position + step) % size], links[(position - step) % size]
            sending = _Sending(*target, [segment, *received][:count])
            receiving = _Receiving(*source, count)
            try:
                _run(sending, receiving, step_deadline)
            finally:
                received += receiving.segments
            unsent.remove(step)
    except BaseException as error:
        for fd in received:
            close_descriptor(fd)
        if isinstance(error, PeerLostError):
            # Those that wait for this rank would blame it.
            others = {(position + side * step) % size for step in unsent for side in (1, -1)}
            for link in (links[other][1] for other in others):
                if link.family == socket.AF_UNIX:
                    with suppress(OSError):
                        link.sendall(_FAILED + str(error.args[0]).encode() + _END)
        raise
    if segment < 0:
        for fd in received:
            close_descriptor(fd)
        received = [-1] * (size - 1)
    by_position = [-1] * size
    for distance, fd in enumerate(received, 1):
        by_position[(position - distance) % size] = fd
    return by_position


class _Sending:
    """What a rank passes on in one step, once the receiver has sent that it reads."""

    def __init__(self, peer: PeerFacts, link: socket.socket, segments: Sequence[int]) -> None:
        self.peer = peer
        self.link = link
        self.is_awaited = link.family == socket.AF_UNIX  # until the receiver is ready
        self.unsent = list(segments) if self.is_awaited else []

    @property
    def done(self) -> bool:
        return not self.unsent

    def take_ready(self) -> None:
        answer = self.link.recv(1)
        if answer != _READY:
            raise _read_failure(self.link, answer)
        self.is_awaited = False

    def send(self) -> bool:
        """Send some segments; False if that must wait, as too many descriptors are sent and not received."""
        batch = self.unsent[:_MOST_AT_ONCE]
        flags = b"".join(_HAS_NONE if fd < 0 else _HAS_SEGMENT for fd in batch)
        passed = [fd for fd in batch if fd >= 0]
        try:
            if passed:
                socket.send_fds(self.link, [flags], passed)
            else:
                self.link.send(flags)
        except OSError as error:
            # The limit is the user's for all processes (RLIMIT_NOFILE). Each receiver reads, so it is undercut soon.
            if error.errno in (errno.ETOOMANYREFS, errno.EAGAIN):
                return False
            raise
        del self.unsent[: len(batch)]
        return True


class _Receiving:
    """What a rank gets in one step."""

    def __init__(self, peer: PeerFacts, link: socket.socket, count: int) -> None:
        self.peer = peer
        self.link = link
        self.missing = count if link.family == socket.AF_UNIX else 0
        self.segments: list[int] = [-1] * (count - self.missing)

    @property
    def done(self) -> bool:
        return self.missing == 0

    def receive(self) -> None:
        flags, fds = receive_descriptors(self.link, min(self.missing, _MOST_AT_ONCE))
        remaining = iter(fds)
        if flags.startswith(_FAILED):
            raise _read_failure(self.link, flags)
        self.segments += [next(remaining, -1) if flag == _HAS_SEGMENT[0] else -1 for flag in flags]
        self.missing -= len(flags)


def _run(sending: _Sending, receiving: _Receiving, deadline: float) -> None:
    """Run one step: both directions at once, so that no rank that cannot send keeps another from that."""
    for link in (sending.link, receiving.link):
        link.setblocking(False)
    if not receiving.done:
        with _name_peer_in_errors(receiving.peer):
            receiving.link.send(_READY)
    while not (sending.done and receiving.done):
        is_paused = False
        if not sending.done and not sending.is_awaited:
            with _name_peer_in_errors(sending.peer):
                is_paused = not sending.send()
            if not is_paused:
                continue
        readable = _await_any(sending, receiving, _PAUSE_SECONDS if is_paused else deadline - time.monotonic())
        if sending.is_awaited and sending.link in readable:
            with _name_peer_in_errors(sending.peer):
                sending.take_ready()
            continue  # over the same connection its segments follow
        if not receiving.done and receiving.link in readable:
            with _name_peer_in_errors(receiving.peer):
                receiving.receive()
        if not readable and time.monotonic() >= deadline:
            with _name_peer_in_errors(sending.peer if receiving.done else receiving.peer):
                raise TimeoutError("timed out")


def _await_any(sending: _Sending, receiving: _Receiving, seconds: float) -> list[socket.socket]:
    """Return the connections with something that this rank waits for."""
    awaited = [sending.link] if sending.is_awaited else []
    if not receiving.done:
        awaited.append(receiving.link)
    poll = select.poll()  # not select: descriptors may be beyond 1,023
    for link in awaited:
        poll.register(link, select.POLLIN)
    ready = {descriptor for descriptor, _ in poll.poll(max(0.0, seconds) * 1000 + 1)}
    return [link for link in awaited if link.fileno() in ready]


def _read_failure(link: socket.socket, begin: bytes) -> Exception:
    """Return the error of a peer that sent other bytes than it was expected to; `begin`: the first of them."""
    if not begin.startswith(_FAILED):
        return ConnectionResetError("it was closed" if not begin else f"it sent {begin!r}")
    text = begin[1:]
    link.settimeout(_GRACE_SECONDS)
    with suppress(OSError):
        while _END not in text and (more := link.recv(4096)):
            text += more
    return PeerLostError(text.partition(_END)[0].decode("utf-8", "replace"))


def close_descriptor(fd: int) -> None:
    """Close `fd` unless it is -1."""
    if fd >= 0:
        with suppress(OSError):
            os.close(fd)


def receive_descriptor(control: socket.socket) -> int:
    """Return the descriptor that a Unix socket receives with one byte; -1 if the byte has none. Raises OSError."""
    _, fds = receive_descriptors(control, 1)
    return fds[0] if fds else -1


def receive_descriptors(control: socket.socket, count: int) -> tuple[bytes, list[int]]:
    """Return up to `count` bytes that a Unix socket receives, and their descriptors. Raises OSError."""
    # Not recv_fds: it drops the flag without which every program started later would inherit the segments.
    size = struct.calcsize("i")
    room = socket.CMSG_LEN(count * size)
    message, ancillary, _flags, _address = control.recvmsg(count, room, socket.MSG_CMSG_CLOEXEC)
    if not message:
        raise ConnectionResetError("it was closed")
    fds: list[int] = []
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds += struct.unpack(f"{len(data) // size}i", data[: len(data) // size * size])
    return message, fds


@contextmanager
def _name_peer_in_errors(peer: PeerFacts) -> Iterator[None]:
    """Turn a system error into one that names the peer."""
    try:
        yield
    except OSError as error:
        raise PeerLostError(f"init(): the connection with {peer} broke while segments were passed: {error}") from error
