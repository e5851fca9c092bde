"""Passes shared segments between the ranks of one host, over their authenticated Unix sockets.

A segment is anonymous memory of one rank, made by the engine and known by a descriptor only: there is no file that
could fill a file system, be left behind, or be opened by another user.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from spark_estimator import _native
from spark_estimator.collectives.rendezvous import PeerFacts
from spark_estimator.errors import PeerLostError

_HAS_SEGMENT = b"\x01"
_HAS_NONE = b"\x00"


def create_segment(local_size: int) -> int:
    """This rank's segment for `local_size` ranks of one host, as a descriptor. Raises HorovodInternalError."""
    fd = ctypes.c_int32(-1)
    _native.check(_native.library().se_segment_create(local_size, ctypes.byref(fd)))
    return fd.value


def exchange(controls: Mapping[PeerFacts, socket.socket], segment: int, deadline: float) -> dict[PeerFacts, int]:
    """Passes this rank's segment to the peers that are connected by Unix socket, and takes theirs.

    Args:
        controls: the control connection with each peer.
        segment: this rank's, -1 for none.
        deadline: on the monotonic clock, in seconds.

    Returns:
        Each peer's segment; -1 where sharing is not mutual.

    Raises:
        PeerLostError: a connection broke, or a peer sent nothing; the text names it.
    """
    received = dict.fromkeys(controls, -1)
    local = {peer: control for peer, control in controls.items() if control.family == socket.AF_UNIX}
    try:
        # First send to all, then receive from all: the messages are too small ever to block.
        for peer, control in local.items():
            with _naming(peer):
                control.settimeout(max(0.01, deadline - time.monotonic()))
                if segment >= 0:
                    socket.send_fds(control, [_HAS_SEGMENT], [segment])
                else:
                    control.sendall(_HAS_NONE)
        for peer, control in local.items():
            with _naming(peer):
                control.settimeout(max(0.01, deadline - time.monotonic()))
                received[peer] = receive_descriptor(control)
    except BaseException:
        for fd in received.values():
            close_descriptor(fd)
        raise
    if segment < 0:
        for fd in received.values():
            close_descriptor(fd)
        return dict.fromkeys(controls, -1)
    return received


def close_descriptor(fd: int) -> None:
    """Closes `fd` unless it is -1."""
    if fd >= 0:
        with suppress(OSError):
            os.close(fd)


def receive_descriptor(control: socket.socket) -> int:
    """The descriptor that a Unix socket receives with one byte; -1 if the byte has none. Raises OSError."""
    # Not recv_fds: it drops the flag without which every program started later would inherit the segment.
    room = socket.CMSG_LEN(struct.calcsize("i"))
    message, ancillary, _flags, _address = control.recvmsg(1, room, socket.MSG_CMSG_CLOEXEC)
    if not message:
        raise ConnectionResetError("it was closed")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS) and len(data) >= struct.calcsize("i"):
            return int(struct.unpack_from("i", data)[0])
    return -1


@contextmanager
def _naming(peer: PeerFacts) -> Iterator[None]:
    """Turns a system error into one that names the peer."""
    try:
        yield
    except OSError as error:
        raise PeerLostError(f"init(): the connection with {peer} broke while segments were passed: {error}") from error
