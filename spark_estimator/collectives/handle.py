"""A collective that has been submitted: ask whether it is done, wait for it, take what it made."""

from __future__ import annotations

import ctypes
import math
import threading
import time
import weakref
from datetime import timedelta
from typing import NamedTuple

from spark_estimator import _native
from spark_estimator._native import Op, Status
from spark_estimator.collectives.engine import WAIT_SLICE_SECONDS, Engine, Pending


class Gathered(NamedTuple):
    """What an allgather or alltoall made of one tensor.

    Attributes:
        data: the ranks' rows in rank order, as writable bytes. The memory lives as long as something refers to it (a
            slice, a numpy array or a torch tensor made from it).
        rows: [size], the first dimension of what each rank gave to this one.
    """

    data: memoryview
    rows: tuple[int, ...]


class Handle:
    """One submitted collective. Made by ``requests``.

    A handle that is dropped unfinished lets the collective run to its end; the tensors stay referenced until then.
    """

    def __init__(self, engine: Engine, number: int, name: str, op: Op, tensors: int, keep: object) -> None:
        self.name = name
        self._engine = engine
        self._number = number
        self._op = op
        self._tensors = tensors
        self._keep = keep
        self._status: Status | None = None
        self._message = ""
        self._gathered: tuple[Gathered, ...] = ()
        self._last_joined = -1
        self._lock = threading.Lock()
        self._pending = engine.pending[number] = Pending(op, name, time.monotonic())

    def done(self) -> bool:
        """Whether the collective has ended, well or not. Does not block, and raises for a failure only in `wait`."""
        if self._status is None:
            self._settle(self._engine.poll(self._number))
        return self._status is not None

    def wait(self, timeout: timedelta | None = None) -> None:
        """Blocks until the collective has ended. May be called again, with the same outcome.

        Args:
            timeout: None waits for ever: until the others submit it too, or one of them dies.

        Raises:
            MismatchError: the ranks submitted contradictory requests under this name; the job is still usable.
            PeerLostError: a rank died or cannot be reached.
            ShutDownError: this rank or another left the job.
            HorovodInternalError: the collective failed otherwise.
            TimeoutError: `timeout` passed first; the collective goes on.
            TypeError: `timeout` is no timedelta.
        """
        if timeout is not None and not isinstance(timeout, timedelta):
            raise TypeError(f"timeout must be a datetime.timedelta, as timedelta(seconds=5), not {timeout!r}.")
        deadline = math.inf if timeout is None else time.monotonic() + timeout.total_seconds()
        self._pending.waiters += 1
        try:
            while not self._ended(min(WAIT_SLICE_SECONDS, max(0.0, deadline - time.monotonic()))):
                if timeout is not None and time.monotonic() >= deadline:
                    raise TimeoutError(
                        f"{self._op.name.lower()} {self.name!r} was not done on rank {self._engine.global_rank} after "
                        f"{timeout.total_seconds():g} seconds; some rank has not submitted it."
                    )
        finally:
            self._pending.waiters -= 1
        if self._status not in (None, Status.OK):
            raise _native.error_of(self._status, self._message)

    def gathered(self, tensor: int = 0) -> Gathered:
        """Waits for an allgather or alltoall and gives its result, the same object each time. Raises as `wait` does.

        Args:
            tensor: which of the request's tensors.
        """
        if self._op not in (Op.ALLGATHER, Op.ALLTOALL):
            raise TypeError(
                f"{self._op.name.lower()} {self.name!r} has its result in its output; no rows are gathered."
            )
        self.wait()
        return self._gathered[tensor]

    def last_joined(self) -> int:
        """Waits for a join and gives the rank of the job that joined last. Raises as `wait` does."""
        if self._op is not Op.JOIN:
            raise TypeError(f"{self._op.name.lower()} {self.name!r} is no join.")
        self.wait()
        return self._engine.ranks[self._last_joined]

    def _ended(self, seconds: float) -> bool:
        if self._status is None:
            self._settle(self._engine.wait(self._number, seconds))
        return self._status is not None

    def _settle(self, status: Status) -> None:
        """Notes the outcome and forgets the native handle, once; another thread may have done it meanwhile."""
        if status is Status.IN_PROGRESS:
            return
        # The sentence belongs to this thread's last call: fetch it before anything else is called.
        message = "" if status is Status.OK else _native.last_error()
        with self._lock:
            if self._status is not None:
                return
            if status is Status.OK:
                self._take_results()
            self._message = message
            keep, self._keep = self._keep, None
            self._status = status
            # Last: an interrupt before this line costs a little memory, not the outcome.
            self._engine.release(self._number)
            del keep  # and with it, perhaps, the plan, which must not go before the request
        self._engine.report_failure(status)

    def _take_results(self) -> None:
        if self._op in (Op.ALLGATHER, Op.ALLTOALL):
            gathered = []
            for tensor in range(self._tensors):
                address, count, rows = self._engine.take_result(self._number, tensor)
                gathered.append(Gathered(_owned_memory(address, count), rows))
            self._gathered = tuple(gathered)
        elif self._op is Op.JOIN:
            self._last_joined = self._engine.last_joined(self._number)

    def __del__(self) -> None:
        if getattr(self, "_status", Status.OK) is None:
            self._engine.detach(self._number, self._keep)

    def __repr__(self) -> str:
        state = "in progress" if self._status is None else self._status.name.lower()
        return f"<Handle {self._op.name.lower()} {self.name!r}: {state}>"


def _owned_memory(address: int, count: int) -> memoryview:
    """`count` bytes at `address` as writable memory that is given back when nothing refers to it any more."""
    if count == 0 or address == 0:
        if address:
            _native.library().se_free(address)
        return memoryview(bytearray())
    array = (ctypes.c_ubyte * count).from_address(address)
    # Not at exit: the process gives all memory back then, and the library may be gone.
    weakref.finalize(array, _native.library().se_free, address).atexit = False
    return memoryview(array).cast("B")
