"""One membership of one job: the native engine behind a Python object that outlives every use of it."""

from __future__ import annotations

import ctypes
import os
import threading
from collections import deque
from collections.abc import Sequence
from ctypes import c_int64, c_void_p

from spark_estimator import _native
from spark_estimator._native import Config, Peer, Request, Result, Status
from spark_estimator.errors import HorovodInternalError


def forked_error(parent: int) -> HorovodInternalError:
    """What every use of a job gets in a process that was forked from one of its ranks."""
    return HorovodInternalError(
        f"This process (pid {os.getpid()}) was forked from a rank (pid {parent}) after init(): it is not a rank, and "
        "can neither run collectives nor join. Run them in the rank itself, or start the process by the 'spawn' method."
    )


class Engine:
    """A running native engine. Created by ``context``, used by ``ops`` and ``handle``.

    The native object is destroyed when the last reference to this one is gone, so that a handle that outlives
    ``shutdown()`` still finds what it points into. All methods may be called from any thread.

    Attributes:
        rank, size: this rank and the number of ranks.

    Args:
        config: this rank and its settings.
        peers: all other ranks. Their descriptors belong to the engine from now on, also when this fails.

    Raises:
        PeerLostError: a peer did not answer in time or its link broke.
        HorovodInternalError: the engine could not be started.
    """

    def __init__(self, config: Config, peers: Sequence[Peer]) -> None:
        self._pointer: int | None = None
        library = _native.library()
        created = c_void_p()
        array = (Peer * len(peers))(*peers)
        _native.check(library.se_engine_create(ctypes.byref(config), array, ctypes.byref(created)))
        self._library = library
        self._pointer = created.value
        self.rank: int = config.rank
        self.size: int = config.size
        self._pid = os.getpid()
        self._detached: deque[tuple[int, object]] = deque()
        self._sweeping = threading.Lock()

    def submit(self, request: Request) -> int:
        """Hands a request over and gives its number. The request itself may be forgotten; its tensors may not."""
        number = c_int64()
        _native.check(self._library.se_submit(self._usable(), ctypes.byref(request), ctypes.byref(number)))
        if self._detached:
            self._sweep()
        return number.value

    def poll(self, number: int) -> Status:
        """What has become of a request so far; the error's sentence is then ``_native.last_error()``."""
        return Status(self._library.se_poll(self._usable(), number))

    def wait(self, number: int, seconds: float) -> Status:
        """As `poll`, but blocks up to `seconds`."""
        return Status(self._library.se_wait(self._usable(), number, seconds))

    def take_result(self, number: int) -> tuple[int, int, tuple[int, ...]]:
        """Takes an allgather's result out of its handle.

        Args:
            number: of a request that is done well.

        Returns:
            (address, bytes, rows): memory to be freed by ``se_free`` (address 0 when there is none), and the first
            dimension that each rank gave.
        """
        pointer = self._usable()
        result = Result()
        _native.check(self._library.se_get_result(pointer, number, ctypes.byref(result)))
        rows = tuple(result.rows[: self.size])
        data = c_void_p()
        _native.check(self._library.se_take_result_data(pointer, number, ctypes.byref(data)))
        return data.value or 0, result.bytes, rows

    def release(self, number: int) -> None:
        """Forgets a request that is done."""
        if self._pointer is not None:
            self._library.se_release(self._pointer, number)

    def detach(self, number: int, keep: object) -> None:
        """Takes over a request that nobody waits for any more, and keeps `keep` alive until it is done."""
        if self._pointer is not None:
            self._detached.append((number, keep))

    def _sweep(self) -> None:
        """Forgets the detached requests that are done."""
        if not self._sweeping.acquire(blocking=False):
            return
        try:
            for _ in range(len(self._detached)):
                number, keep = self._detached.popleft()
                if self._pointer is not None and self.poll(number) is Status.IN_PROGRESS:
                    self._detached.append((number, keep))
                else:
                    self.release(number)
        finally:
            self._sweeping.release()

    def counter(self, name: str) -> int:
        """A counter of the engine by name (``engine.h`` lists them); -1 for an unknown name."""
        return int(self._library.se_counter(self._usable(), name.encode()))

    def shutdown(self) -> None:
        """Leaves the job; requests that are pending fail with ShutDownError. Blocks for at most about a second."""
        if self._pointer is not None:
            _native.check(self._library.se_engine_shutdown(self._pointer))
            self._sweep()

    def abandon_after_fork(self) -> None:
        """In a forked child: closes its copies of the descriptors; every later use raises and says so."""
        pointer, self._pointer = self._pointer, None
        self._detached.clear()
        if pointer is not None:
            self._library.se_engine_abandon_after_fork(pointer)

    def _usable(self) -> int:
        if self._pointer is None:
            raise forked_error(self._pid)
        return self._pointer

    def __del__(self) -> None:
        if self._pointer is not None:
            self._library.se_engine_destroy(self._pointer)
