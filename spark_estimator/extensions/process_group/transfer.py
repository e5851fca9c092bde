"""One message from a rank to another: its header, and the wait for it at either end."""

from __future__ import annotations

import ctypes
import logging
import math
import socket
import struct
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import NamedTuple

import torch

from spark_estimator.extensions.process_group.links import receive_exactly

_log = logging.getLogger(__name__)

_HEADER = struct.Struct("<QqQBB")  # group, tag, bytes; length of the element type's name, number of dimensions
_WAIT_SLICE_SECONDS = 0.1  # so that Python handles Ctrl-C


class TensorSpec(NamedTuple):
    """The type and shape of a message's tensor.

    Attributes:
        dtype: torch's name of its element type, as ``'float32'``.
        shape: its dimensions.
    """

    dtype: str
    shape: tuple[int, ...]

    @staticmethod
    def from_tensor(tensor: torch.Tensor) -> TensorSpec:
        """Return type and shape of a tensor."""
        return TensorSpec(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))

    def fits(self, other: TensorSpec) -> bool:
        """Return whether one's elements can become the other's: as many of one type, in any shape."""
        return self.dtype == other.dtype and math.prod(self.shape) == math.prod(other.shape)

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}"


class MessageBytes(NamedTuple):
    """The memory of a message.

    Attributes:
        data: the bytes.
        form: of the tensor that they are.
        keep: the owner of the bytes; referenced until the transfer has ended.
    """

    data: memoryview
    form: TensorSpec
    keep: object


class Envelope(NamedTuple):
    """The header of a message.

    Attributes:
        group: the number of its process group.
        tag: what the receiver asks for.
        length: its bytes.
        form: of its tensor.
    """

    group: int
    tag: int
    length: int
    form: TensorSpec

    def pack(self) -> bytes:
        """Return the bytes that are sent."""
        name, dims = self.form.dtype.encode(), self.form.shape
        return b"".join(
            [
                _HEADER.pack(self.group, self.tag, self.length, len(name), len(dims)),
                name,
                struct.pack(f"<{len(dims)}q", *dims),
            ]
        )

    @staticmethod
    def read(sock: socket.socket) -> Envelope | None:
        """Return the next envelope; None if the other end has closed the connection. Raise OSError if it broke."""
        header = bytearray(_HEADER.size)
        if not receive_exactly(sock, memoryview(header)):
            return None
        group, tag, length, letters, dims = _HEADER.unpack(header)
        form = bytearray(letters + 8 * dims)
        if form and not receive_exactly(sock, memoryview(form)):
            raise ConnectionResetError("the connection ended in the middle of a message")
        shape = struct.unpack_from(f"<{dims}q", form, letters)
        return Envelope(group, tag, length, TensorSpec(bytes(form[:letters]).decode("ascii", "replace"), shape))


class Transfer:
    """One message in flight, for its sender or its receiver.

    Attributes:
        source: once it is done, at the receiver: the sender's rank in the job.

    Args:
        who: this rank, in words.
        waits_for: what for, in words.
        advice: what is known meanwhile, and what to do; asked for when the wait becomes long.
        stall_seconds: seconds of waiting after which a line is logged, once; 0: never.
    """

    def __init__(self, who: str, waits_for: str, advice: Callable[[], str], stall_seconds: float) -> None:
        self.source = -1
        self._who = who
        self._waits_for = waits_for
        self._advice = advice
        self._stall_seconds = stall_seconds or math.inf
        self._since: float | None = None
        self._ended = threading.Event()
        self._error: Exception | None = None

    def end(self, error: Exception | None = None) -> None:
        """Note the outcome."""
        self._error = error
        self._ended.set()

    def done(self) -> bool:
        """Return whether the transfer has ended, well or not."""
        return self._ended.is_set()

    def wait(self, timeout: timedelta | None = None) -> None:
        """Wait until it is done; raise its error, or TimeoutError. Warn if it takes long."""
        begun = time.monotonic()
        if self._since is None:
            self._since = begun
        limit = math.inf if timeout is None else timeout.total_seconds()
        while not self._ended.wait(max(0.0, min(limit + begun - time.monotonic(), _WAIT_SLICE_SECONDS))):
            now = time.monotonic()
            if now - self._since >= self._stall_seconds:
                self._stall_seconds = math.inf
                _log.warning("stalled: %s", self._describe(now - self._since))
            if now - begun >= limit:
                raise TimeoutError(f"{self._describe(limit)} Raise the time-out if it is only slow.")
        if self._error is not None:
            raise self._error

    def _describe(self, seconds: float) -> str:
        return f"{self._who} has waited {seconds:.3g} seconds for {self._waits_for}. {self._advice()}"


def view_memory(address: int, count: int) -> memoryview:
    """Return `count` writable bytes at an address."""
    return memoryview((ctypes.c_char * count).from_address(address)).cast("B") if count else memoryview(bytearray())
