"""The stream of frames between a launcher and a host agent, over ssh's standard input and output, with heartbeats.

Frames are those of ``result_pipe``: a letter, a length, bytes. Contents are JSON, but for the pickled function and the
values, which are bytes. Nothing is unpickled here.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import select
import struct
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from spark_estimator.launch.worker.result_pipe import CHUNK_BYTES, FrameReader, pack_frame
from spark_estimator.reader_thread import ReaderThread

# From the launcher to the agent:
JOB = b"j"  # JSON: fields of the JobSpec, and `HostOrder`'s
PAYLOAD = b"p"  # bytes of the pickled function
START = b"s"  # JSON {process, linked}: start a worker
RUN = b"r"  # JSON {process, rendezvous}: its rank, its peers, the key
STOP = b"x"  # JSON {process, reason, at_once}
BECOME = b"n"  # JSON {process, rank}: the worker's new rank
# From the agent to the launcher:
HELLO = b"h"  # JSON: who the agent is
READY = b"y"  # JSON {address, note, problem}: answer to JOB
STARTED = b"u"  # JSON {process, facts}: a worker waits for its rank
BEGUN = b"b"  # JSON {process, rank, pid}: user code begins
LINE = b"l"  # JSON {process, rank, stream, text}
PROGRESS = b"g"  # JSON {process, rank, report}: its progress
RECORD = b"e"  # JSON {process, rank, record}: of an estimator's training
FILE = b"d"  # JSON {process, rank, name, piece}: of a rank's file; an empty piece ends it
MESSAGE = b"m"  # JSON {process, rank, text}: from log_to_driver
FAILURE = b"f"  # JSON {process, report}
VALUE = b"v"  # process, bytes of its value
OUTCOME = b"o"  # JSON {process, ...}: a worker, and all that it started, has ended
# In both directions:
RELAYED = b"k"  # process, bytes between an elastic worker and its launcher
_ALIVE = b"."
_ORDERS = {JOB: "JOB", PAYLOAD: "PAYLOAD", START: "START", RUN: "RUN", STOP: "STOP", BECOME: "BECOME"}

# The frames begin after this text. The output of the login shell comes before it.
OPENING = b"\0spark_estimator agent\n"
_MOST_NOISE_BYTES = 1 << 20
# A thread that sends more waits until the other end has read some of it.
_MAX_WAITING_BYTES = 4 << 20
_READ_BYTES = 1 << 16
_PROCESS = struct.Struct(">I")


class SilentError(ConnectionError):
    """The other end has sent no data and no heartbeat for too long."""


class AgentLink:
    """One end. `send` from any thread, `read_frames` from one.

    Args:
        source, sink: descriptors; `sink` is closed here once all is sent, `source` is the caller's.
        heartbeat: time between two heartbeats; zero: none are sent, and none are expected.
        silence: the other end is lost when it has sent nothing for this time.
        opening: input before the first frame is skipped up to this; kept in `noise`.
    """

    def __init__(
        self, source: int, sink: int, heartbeat: timedelta, silence: timedelta, *, opening: bytes = b""
    ) -> None:
        self._source = source
        self._poll = select.poll()  # not select(), which takes no descriptor above 1023
        self._poll.register(source, select.POLLIN)
        self._sink = sink
        self._heartbeat = heartbeat.total_seconds()
        self._silence = silence.total_seconds() if self._heartbeat else 0.0
        self._opening = opening
        self.noise = b""
        self._changed = threading.Condition()
        self._waiting: collections.deque[bytes] = collections.deque()
        self._waiting_bytes = 0
        self._closing = False
        self._broken = False
        self._writer = ReaderThread(self._write, self._end_writing, name="host link")
        self._writer.start()

    @property
    def usable(self) -> bool:
        """Return whether the other end still listens."""
        return not self._broken

    def send(self, letter: bytes, content: bytes = b"") -> None:
        """Queue a frame, in order. Wait while too much is queued; do nothing if the other end has disconnected."""
        whole = pack_frame(letter, content)
        with self._changed:
            self._changed.wait_for(lambda: self._broken or self._waiting_bytes < _MAX_WAITING_BYTES)
            if self._broken or self._closing:
                return
            self._waiting.append(whole)
            self._waiting_bytes += len(whole)
            self._changed.notify_all()

    def send_json(self, letter: bytes, **fields: Any) -> None:
        """Send a JSON object."""
        self.send(letter, json.dumps(fields).encode())

    def send_bytes(self, letter: bytes, process: int, content: bytes) -> None:
        """Send bytes that belong to a process, in pieces."""
        for start in range(0, len(content), CHUNK_BYTES):
            self.send(letter, _PROCESS.pack(process) + content[start : start + CHUNK_BYTES])

    def read_frames(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield (letter, content) of each frame until the stream ends.

        Raises SilentError: no data for too long; ValueError: no stream of frames; OSError: it cannot be read.
        """
        reader = FrameReader()
        while received := self._read():
            if self._opening:
                received = self._skip_noise(received)
            for letter, content in reader.feed(received):
                if letter != _ALIVE:
                    yield letter, content

    def give_up(self) -> None:
        """Treat the other end as lost: nothing is sent any more, and no sender waits for it."""
        with self._changed:
            self._broken = True
            self._waiting.clear()
            self._waiting_bytes = 0
            self._changed.notify_all()

    def close(self, timeout: timedelta) -> None:
        """Send the queued frames, as far as `timeout` allows, and close the stream."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._writer.join(timeout.total_seconds())

    def _read(self) -> bytes:
        # No limit before the opening: the other end is still starting, and the caller limits that time.
        limit = self._silence * 1000 if self._silence and not self._opening else None
        # If this process itself was suspended, data has arrived meanwhile: poll again before raising.
        if not self._poll.poll(limit) and not self._poll.poll(0):
            raise SilentError(f"no data or heartbeat for {self._silence:g} seconds")
        return os.read(self._source, _READ_BYTES)

    def _skip_noise(self, received: bytes) -> bytes:
        self.noise += received
        before, opening, rest = self.noise.partition(self._opening)
        if not opening:
            if len(self.noise) > _MOST_NOISE_BYTES:
                raise ValueError("the program that answers is not spark_estimator: it prints endlessly")
            return b""
        self.noise, self._opening = before, b""
        return rest

    def _write(self) -> None:
        next_sign = time.monotonic() + self._heartbeat
        while True:
            with self._changed:
                while not (self._waiting or self._closing or self._broken):
                    remaining = next_sign - time.monotonic()
                    if self._heartbeat and remaining <= 0:
                        self._waiting.append(pack_frame(_ALIVE, b""))
                        break
                    self._changed.wait(remaining if self._heartbeat else None)
                if self._broken or not self._waiting:
                    return
                batch = list(self._waiting)
                self._waiting.clear()
            for piece in batch:
                view = memoryview(piece)
                while view:
                    view = view[os.write(self._sink, view[:_READ_BYTES]) :]
                with self._changed:
                    self._waiting_bytes = max(0, self._waiting_bytes - len(piece))
                    self._changed.notify_all()
            next_sign = time.monotonic() + self._heartbeat

    def _end_writing(self, error: BaseException | None) -> None:
        if error is not None:
            self.give_up()  # the reader detects it by the end of the other direction
        with contextlib.suppress(OSError):
            os.close(self._sink)


def split_process(content: bytes) -> tuple[int, bytes]:
    """Return process and bytes of a frame that `AgentLink.send_bytes` made. Raises ValueError: it is too short."""
    if len(content) < _PROCESS.size:
        raise ValueError("a frame without a process number")
    return _PROCESS.unpack_from(content)[0], content[_PROCESS.size :]


def describe_order(letter: bytes) -> str:
    """Return an order in words."""
    return f"order {_ORDERS[letter]}" if letter in _ORDERS else f"unknown order {letter!r}"
