"""The pipe from a worker to its supervisor, for progress and result, in frames: a letter, a length, bytes."""

from __future__ import annotations

import hashlib
import json
import os
import struct
import threading
from collections.abc import Iterator, Sequence
from typing import Any

BEGUN = b"B"  # JSON {"pid"}: user code begins
LOG = b"L"  # UTF-8: a message for the driver
RECORD = b"R"  # JSON: a record of an estimator's training
FAILURE = b"F"  # JSON: fields of a FailureReport
RESULT = b"V"  # JSON {"bytes", "sha256", "threads"}: the value's chunks follow
CHUNK = b"C"  # bytes of the value
ENDED = b"E"  # JSON {"status"}: the command ended

CHUNK_BYTES = 1 << 20
_HEADER = struct.Struct(">cI")
# No frame that we make is larger; a longer one means that the stream is broken.
_MAX_FRAME_BYTES = 4 << 20


def pack_frame(letter: bytes, content: bytes) -> bytes:
    """Return a frame as bytes."""
    return _HEADER.pack(letter, len(content)) + content


class ResultWriter:
    """The worker's end. Safe to use from several threads; silent in forked children, where frames would get mixed."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self._pid = os.getpid()

    @property
    def usable(self) -> bool:
        """Return whether this is the process that it was made in."""
        return os.getpid() == self._pid

    def send(self, letter: bytes, content: bytes) -> None:
        """Send a frame; block until the supervisor has room."""
        if not self.usable:
            return
        view = memoryview(pack_frame(letter, content))
        with self._lock:
            while view:
                view = view[os.write(self._descriptor, view) :]

    def send_json(self, letter: bytes, content: dict[str, Any]) -> None:
        """Send a JSON object."""
        self.send(letter, json.dumps(content).encode())

    def send_value(self, pickled: bytes, threads: Sequence[str] = ()) -> None:
        """Send the return value in chunks, after its size and hash and the threads that the process waits for."""
        header = {"bytes": len(pickled), "sha256": hashlib.sha256(pickled).hexdigest(), "threads": list(threads)}
        self.send_json(RESULT, header)
        for start in range(0, len(pickled), CHUNK_BYTES):
            self.send(CHUNK, pickled[start : start + CHUNK_BYTES])


class FrameReader:
    """The supervisor's end: splits a stream of bytes into whole frames."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, received: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield (letter, content) of each complete frame. Raises ValueError: other code wrote to this descriptor."""
        self._pending += received
        while len(self._pending) >= _HEADER.size:
            letter, length = _HEADER.unpack_from(self._pending)
            if length > _MAX_FRAME_BYTES:
                raise ValueError(f"a frame of {length} bytes on the result pipe: something else has written to it")
            end = _HEADER.size + length
            if len(self._pending) < end:
                return
            content = bytes(self._pending[_HEADER.size : end])
            del self._pending[:end]
            yield letter, content
