"""A collective that has been submitted: ask whether it is done, wait for it, take what it made.

On GPU tensors a collective is *done* as soon as all of its work is enqueued on the GPU, which may run it much later. No
CPU thread waits for that. The caller passes the stream that will read the outputs to `Handle.await_on`, and what is
enqueued there from then on runs after them. Until then the handle keeps the tensors:

* A framework's allocator reuses memory in the order of the stream that it was allocated on. The engine works on a
  separate stream, unknown to the allocator; so memory that the engine may still read or write must not return to the
  allocator.
* Once a stream waits, its order protects all tensors that belong to it. Those that belong to another
  stream are the caller's responsibility: PyTorch's ``Tensor.record_stream`` is for that.
* What has failed on the GPU may still run there: its tensors stay as long as the engine.
* A handle that is dropped without a wait makes the stream wait on which its tensors were written, when it is done, and
  releases them then.
"""

from __future__ import annotations

import ctypes
import math
import threading
import time
import weakref
from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple

from spark_estimator import _native
from spark_estimator._native import Op, Status
from spark_estimator.collectives.engine import Engine, choose_wait_slice
from spark_estimator.collectives.pending import Pending
from spark_estimator.errors import HorovodInternalError
from spark_estimator.observe import spans

#: The ops that make their result themselves, in the engine's memory.
GATHERING = (Op.ALLGATHER, Op.ALLTOALL)


class Gathered(NamedTuple):
    """The result of an allgather or alltoall of one tensor.

    Attributes:
        data: the ranks' rows in rank order, as writable bytes. The memory lives as long as something refers to it (a
            slice, a numpy array or a torch tensor made from it).
        rows: [size], the first dimension of what each rank gave to this one.
    """

    data: memoryview
    rows: tuple[int, ...]


class Handle:
    """One submitted collective. Made by ``requests``.

    If a handle is dropped unfinished, the collective still runs to its end; the tensors stay referenced until then.

    Args:
        engine, number: the request.
        name, op, tensors: what it is called, its kind, and of how many tensors it is.
        keep: what owns their memory.
        stream: of tensors on a GPU: where they were written. None: they are in host memory.
    """

    def __init__(
        self, engine: Engine, number: int, name: str, op: Op, tensors: int, keep: object, stream: int | None = None
    ) -> None:
        self.name = name
        self._engine = engine
        self._number = number
        self._op = op
        self._tensors = tensors
        self._keep = keep
        self._stream = stream
        self._awaited_on: int | None = None  # the stream that waits for the outputs
        self._status: Status | None = None
        self._message = ""
        self._gathered: tuple[Gathered, ...] = ()
        self._rows: tuple[tuple[int, ...], ...] = ()
        self._last_joined = -1
        self._lock = threading.Lock()
        self._pending = engine.pending[number] = Pending(op, name, time.monotonic())

    def done(self) -> bool:
        """Return whether the collective has ended, well or not. Does not block; only `wait` raises its failure."""
        if self._status is None:
            self._settle(self._engine.poll(self._number))
        return self._status is not None

    def wait(self, timeout: timedelta | None = None) -> None:
        """Blocks until the collective has ended. May be called again, with the same outcome.

        Tensors on a GPU may be read only after `await_on` or `collect`.

        Args:
            timeout: None waits for ever: until the others submit it too, or one of them dies.

        Raises:
            MismatchError: the ranks submitted contradictory requests under this name; the job is still usable.
            PeerLostError: a rank died or cannot be reached.
            ShutDownError: this rank or another left the job.
            HorovodInternalError: the collective failed otherwise.
            TimeoutError: `timeout` passed first; the collective continues.
            TypeError: `timeout` is no timedelta.
        """
        if timeout is not None and not isinstance(timeout, timedelta):
            raise TypeError(f"timeout must be a datetime.timedelta, as timedelta(seconds=5), not {timeout!r}.")
        began = time.monotonic()
        deadline = math.inf if timeout is None else began + timeout.total_seconds()
        self._pending.waiters += 1
        try:
            now = began
            with spans.span(spans.WAIT):
                while not self._wait_slice(min(choose_wait_slice(now - began), max(0.0, deadline - now))):
                    now = time.monotonic()
                    if timeout is not None and now >= deadline:
                        running = self._engine.describe("running")
                        raise TimeoutError(
                            f"{self._op.name.lower()} {self.name!r} did not complete on rank "
                            f"{self._engine.global_rank} within {timeout.total_seconds():g} seconds; "
                            + (f"on this rank {running}." if running else "some rank has not submitted it.")
                        )
        finally:
            self._pending.waiters -= 1
        if self._status not in (None, Status.OK):
            raise _native.make_error(self._status, self._message)

    def gathered(self, tensor: int = 0) -> Gathered:
        """Wait for an allgather or alltoall; return a tensor's result, the same object each time. Raise as `wait`."""
        self._check_gathering()
        if self._stream is not None:
            raise TypeError(f"{self._op.name.lower()} {self.name!r} has its result on a GPU: use rows() and collect().")
        self.wait()
        return self._gathered[tensor]

    def await_on(self, stream: int) -> None:
        """Wait as `wait` does; what is enqueued on `stream`, by its address, from then on finds the outputs written.

        To be called once, or again with the same stream: the tensors are released.
        """
        if self._stream is None:
            raise TypeError(f"{self._op.name.lower()} {self.name!r} has its tensors in host memory: use wait().")
        if self._op in GATHERING:
            raise TypeError(
                f"{self._op.name.lower()} {self.name!r} allocates its own result: use rows() and collect()."
            )
        self.wait()
        with self._lock:
            if self._awaited_on is None:
                self._hand_to(stream, ())
            elif self._awaited_on != stream:
                raise RuntimeError(
                    f"{self._op.name.lower()} {self.name!r} was already awaited on another stream: let this stream "
                    "wait for that one."
                )

    def rows(self, tensor: int = 0) -> tuple[int, ...]:
        """Wait for an allgather or alltoall on a GPU; return [size] the first dimensions that the ranks gave."""
        self._check_gathering()
        if self._stream is None:
            raise TypeError(f"{self._op.name.lower()} {self.name!r} has its result in host memory: use gathered().")
        self.wait()
        return self._rows[tensor]

    def collect(self, outputs: Sequence[int], stream: int) -> None:
        """Wait for an allgather or alltoall on a GPU, and has its result copied to the caller's memory. Once.

        What is enqueued on `stream` from then on finds it there. Raises as `wait` does.

        Args:
            outputs: for each tensor the address of memory on the GPU for the sum of its `rows`; 0 where that is none.
            stream: as for `await_on`; the copies run on it, so that the memory has to be its own.
        """
        self.rows()
        with self._lock:
            if self._awaited_on is not None:
                raise RuntimeError(f"{self._op.name.lower()} {self.name!r}: its result was collected already.")
            self._hand_to(stream, outputs)

    def _hand_to(self, stream: int, outputs: Sequence[int]) -> None:
        """Has a stream wait, and copy; then forgets the native handle and the tensors.

        Not where the stream was refused: another one may be named.
        """
        failure: HorovodInternalError | None = None
        try:
            self._engine.await_on_stream(self._number, stream)
            for tensor, output in enumerate(outputs):
                if output:
                    self._engine.copy_result(self._number, tensor, output, stream)
        except HorovodInternalError as error:  # the GPU has failed, or the engine has
            failure = error
        self._awaited_on = stream
        keep, self._keep = self._keep, None
        self._engine.release(self._number)
        if failure is not None:
            self._engine.gpu.hold(keep, failure)
            raise failure
        del keep  # and with it, perhaps, the plan, which must not be freed before the request

    def _check_gathering(self) -> None:
        if self._op not in GATHERING:
            raise TypeError(
                f"{self._op.name.lower()} {self.name!r} has its result in its output; no rows are gathered."
            )

    def last_joined(self) -> int:
        """Wait for a join and return the rank of the job that joined last. Raise as `wait` does."""
        if self._op is not Op.JOIN:
            raise TypeError(f"{self._op.name.lower()} {self.name!r} is not a join.")
        self.wait()
        return self._engine.ranks[self._last_joined]

    def _wait_slice(self, seconds: float) -> bool:
        if self._status is None:
            self._settle(self._engine.wait(self._number, seconds))
        return self._status is not None

    def _settle(self, status: Status) -> None:
        """Note the outcome and forget the native handle, once; another thread may have done it meanwhile."""
        if status is Status.IN_PROGRESS:
            return
        # The text belongs to this thread's last call: fetch it before any other call.
        message = "" if status is Status.OK else _native.get_last_error()
        with self._lock:
            if self._status is not None:
                return
            if status is Status.OK:
                self._take_results()
            self._message = message
            if status is Status.OK and self._stream is not None:
                # The GPU may be at work yet: the tensors stay, and so does the native handle, for `await_on`.
                self._status = status
                self._engine.pending.pop(self._number, None)
                self._engine.gpu.log_path(self._engine)
                return
            keep, self._keep = self._keep, None
            self._status = status
            # Last: an interrupt before this line costs a little memory, not the outcome.
            self._engine.release(self._number)
            if self._stream is not None:
                self._engine.gpu.hold(keep, _native.make_error(status, message))
            del keep  # and with it, perhaps, the plan, which must not be freed before the request
        self._engine.report_failure(status)

    def _take_results(self) -> None:
        if self._op in GATHERING and self._stream is not None:
            self._rows = tuple(self._engine.read_result_rows(self._number, tensor) for tensor in range(self._tensors))
        elif self._op in GATHERING:
            gathered = []
            for tensor in range(self._tensors):
                address, count, rows = self._engine.take_result(self._number, tensor)
                gathered.append(Gathered(_own_memory(address, count), rows))
            self._gathered = tuple(gathered)
        elif self._op is Op.JOIN:
            self._last_joined = self._engine.last_joined(self._number)

    def __del__(self) -> None:
        status = getattr(self, "_status", Status.SHUT_DOWN)  # that of one that was never made
        if status is None or (status is Status.OK and self._stream is not None and self._awaited_on is None):
            self._engine.detach(self._number, self._keep, self._stream)

    def __repr__(self) -> str:
        state = "in progress" if self._status is None else self._status.name.lower()
        return f"<Handle {self._op.name.lower()} {self.name!r}: {state}>"


def _own_memory(address: int, count: int) -> memoryview:
    """Return `count` bytes at `address` as writable memory that is freed when nothing refers to it any more."""
    if count == 0 or address == 0:
        if address:
            _native.library().se_free(address)
        return memoryview(bytearray())
    array = (ctypes.c_ubyte * count).from_address(address)
    # Not at exit: the system frees all memory then, and the library may already be unloaded.
    weakref.finalize(array, _native.library().se_free, address).atexit = False
    return memoryview(array).cast("B")
