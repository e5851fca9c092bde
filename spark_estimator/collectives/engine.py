"""One membership of one group of ranks: the native engine behind a Python object that outlives every use of it."""

from __future__ import annotations

import ctypes
import logging
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from ctypes import c_int32, c_int64, c_void_p

from spark_estimator import _native
from spark_estimator._native import Config, Peer, Request, Result, Status
from spark_estimator.collectives.gpu_use import GpuUse
from spark_estimator.collectives.pending import DetachedRequests, Pending
from spark_estimator.errors import HorovodInternalError
from spark_estimator.log import get_logger
from spark_estimator.observe import last_ops

_log = get_logger(__name__)

# A wait in native code cannot see a signal; after each slice Python handles pending signals, Ctrl-C among them.
WAIT_SLICE_SECONDS = 0.1
# In a long wait a later Ctrl-C is better than a busy core: each slice wakes the engine's thread, too.
LONGEST_WAIT_SLICE_SECONDS = 0.5

# What a failure interrupted, in the log of each rank that survives; more for who asks for more.
_REPORTED_LINES, _REPORTED_LINES_AT_INFO = 3, 40


def choose_wait_slice(waited: float) -> float:
    """Return the seconds of the next slice of a wait that has taken `waited` seconds."""
    return min(LONGEST_WAIT_SLICE_SECONDS, max(WAIT_SLICE_SECONDS, waited / 2))


def make_forked_error(parent: int) -> HorovodInternalError:
    """Make the error of every use of a job in a process that was forked from one of its ranks."""
    return HorovodInternalError(
        f"This process (pid {os.getpid()}) was forked from a rank (pid {parent}) after init(): it is not a rank and "
        "can't run collectives, although rank() and size() still return its parent's values. Run collectives in the "
        "rank itself. To make the process a rank of its own, fork it before its parent calls init(), or start it with "
        "the 'spawn' or 'forkserver' method."
    )


class NativeEngine:
    """The native engine's address. It is destroyed when nothing refers to it: no engine, no plan.

    Attributes:
        library: the engine's functions.
        pointer: None in a forked child, where nothing can be done with it.
    """

    def __init__(self, config: Config, peers: Sequence[Peer]) -> None:
        self.pointer: int | None = None
        self.library = _native.library()
        created = c_void_p()
        array = (Peer * len(peers))(*peers)
        _native.check(self.library.se_engine_create(ctypes.byref(config), array, ctypes.byref(created)))
        self.pointer = created.value
        self._pid = os.getpid()

    def require_pointer(self) -> int:
        """Return the address. Raises HorovodInternalError in a forked child."""
        if self.pointer is None:
            raise make_forked_error(self._pid)
        return self.pointer

    def __del__(self) -> None:
        # None first: other objects of the same garbage may be finalised after it.
        pointer, self.pointer = self.pointer, None
        if pointer is not None:
            self.library.se_engine_destroy(pointer)


class Engine:
    """A running native engine. Created by ``context`` and ``process_set``, used by ``requests`` and ``handle``.

    The native object is destroyed when the last reference to this one is dropped, so that the memory behind a handle
    that outlives ``shutdown()`` stays valid. All methods may be called from any thread.

    Attributes:
        rank, size: this rank's number in the group, and how many the group has.
        global_rank: what this rank is called in the job.
        process_set: number of the group; 0 is the whole job.
        ranks: [size], what each rank of the group is called in the job.
        native: the engine itself.
        joins: how often all ranks of the group have joined.
        plans: by name, or by call and forms, the plans of repeated requests, kept by ``requests.run``.
        pending: by its number, each request for which a handle was made and that is not known to be done: its kind, its
            name (or kind of those without one), and when the handle was made, on the monotonic clock.
        gpu: this rank's GPU in the group.
        at_end: each called once after `shutdown`, then forgotten.

    Args:
        config: this rank and its settings.
        peers: all other ranks. Their descriptors belong to the engine from now on, also when this fails.

    Raises:
        PeerLostError: a peer did not answer in time or its link broke.
        HorovodInternalError: the engine could not be started.
    """

    def __init__(self, config: Config, peers: Sequence[Peer]) -> None:
        self.native = NativeEngine(config, peers)
        self._library = self.native.library
        self.rank: int = config.rank
        self.size: int = config.size
        self.global_rank: int = config.global_rank
        self.process_set: int = config.process_set
        numbers = {config.rank: config.global_rank, **{peer.rank: peer.global_rank for peer in peers}}
        self.ranks: tuple[int, ...] = tuple(numbers[rank] for rank in sorted(numbers))
        self.joins = 0
        self.plans: dict[object, object] = {}
        self.pending: dict[int, Pending] = {}
        self.loss_is_expected = False  # of a peer, in an elastic job
        self.at_end: list[Callable[[], object]] = []
        self.gpu = GpuUse(chooses_path=config.gpu_operations == _native.GpuOperations.AUTO)
        self._detached = DetachedRequests()
        self._unreported = threading.Lock()  # acquired by the first failure, never released

    # --- requests ----------------------------------------------------------------------------------------------------

    def submit(self, request: Request) -> int:
        """Submit a request and return its number. The request itself may be dropped; its tensors may not."""
        number = c_int64()
        status = self._library.se_submit(self.native.require_pointer(), ctypes.byref(request), ctypes.byref(number))
        _native.check(status, self.global_rank)
        self._detached.release_done(self)
        return number.value

    def run(self, request: Request, number: c_int64) -> None:
        """Submit and wait for one slice of time. Raise the error of a failed request.

        `number` stays 0 when all is done; else it becomes the number of the request, which has a result or still runs.
        """
        status = self._library.se_run(
            self.native.require_pointer(), ctypes.byref(request), WAIT_SLICE_SECONDS, ctypes.byref(number)
        )
        self.check_run(status, number)
        self._detached.release_done(self)

    def check_run(self, status: int, number: c_int64) -> None:
        """Raise the exception for the status of a run, unless it is OK or IN_PROGRESS; forget the request then."""
        if status > Status.IN_PROGRESS:
            error = _native.make_error(status, _native.get_last_error(), self.global_rank)
            if number.value:
                self.release(number.value)
                number.value = 0
            self.report_failure(status)
            raise error

    def poll(self, number: int) -> Status:
        """Return the present status of a request; the error's text is then ``_native.get_last_error()``."""
        return Status(self._library.se_poll(self.native.require_pointer(), number))

    def wait(self, number: int, seconds: float) -> Status:
        """Return a request's status as `poll` does, but wait for its end, up to `seconds`."""
        return Status(self._library.se_wait(self.native.require_pointer(), number, seconds))

    def take_result(self, number: int, tensor: int) -> tuple[int, int, tuple[int, ...]]:
        """Take what an allgather or alltoall made of one of its tensors out of its handle.

        Return (address, bytes, rows): memory to be freed by ``se_free``, if any, and the first dimension of each rank.
        """
        pointer = self.native.require_pointer()
        result = Result()
        _native.check(self._library.se_get_result(pointer, number, tensor, ctypes.byref(result)))
        rows = tuple(result.rows[: self.size])
        data = c_void_p()
        _native.check(self._library.se_take_result_data(pointer, number, tensor, ctypes.byref(data)))
        return data.value or 0, result.bytes, rows

    def read_result_rows(self, number: int, tensor: int) -> tuple[int, ...]:
        """Return [size] the first dimension that each rank gave to an allgather or alltoall that is done well."""
        result = Result()
        _native.check(self._library.se_get_result(self.native.require_pointer(), number, tensor, ctypes.byref(result)))
        return tuple(result.rows[: self.size])

    def await_on_stream(self, number: int, stream: int) -> None:
        """Has a CUDA stream wait for the outputs of a GPU request that is done well. Raises HorovodInternalError."""
        _native.check(self._library.se_await_on_stream(self.native.require_pointer(), number, stream), self.global_rank)

    def copy_result(self, number: int, tensor: int, output: int, stream: int) -> None:
        """Wait as `await_on_stream`; then copy, on that stream, a tensor's result of an allgather or alltoall."""
        _native.check(
            self._library.se_copy_result(self.native.require_pointer(), number, tensor, output, stream),
            self.global_rank,
        )

    def last_joined(self, number: int) -> int:
        """Return the rank, in this group, that joined last; of a join that is done well."""
        result = Result()
        _native.check(self._library.se_get_result(self.native.require_pointer(), number, 0, ctypes.byref(result)))
        return int(result.last_joined)

    def release(self, number: int) -> None:
        """Forgets a request that is done."""
        self.pending.pop(number, None)
        if self.native.pointer is not None:
            self._library.se_release(self.native.pointer, number)

    def detach(self, number: int, keep: object, stream: int | None = None) -> None:
        """Take over a request that no caller waits for any more; the arguments are as in ``DetachedRequests.add``."""
        if self.native.pointer is not None:
            self._detached.add(number, keep, stream)

    # --- shared memory -----------------------------------------------------------------------------------------------

    def allocate_shared(self, count: int) -> int:
        """Return the address of `count` zeroed bytes that all ranks of this host see. Raises HorovodInternalError."""
        data = c_void_p()
        _native.check(self._library.se_shared_allocate(self.native.require_pointer(), count, ctypes.byref(data)))
        return data.value or 0

    def free_shared(self, address: int) -> None:
        """Free memory of `allocate_shared`."""
        if self.native.pointer is not None:
            self._library.se_shared_free(self.native.pointer, address)

    # --- insight -----------------------------------------------------------------------------------------------------

    def read_counter(self, name: str) -> int:
        """Return a counter of the engine by name (`counters` lists them); -1 for an unknown name."""
        return int(self._library.se_counter(self.native.require_pointer(), name.encode()))

    def counters(self) -> dict[str, int]:
        """Return all counters, since the engine was created."""
        names: bytes = self._library.se_counter_names()
        return {name: self.read_counter(name) for name in names.decode().split()}

    def describe(self, what: str) -> str:
        """Return the engine's ``"flight_recorder"`` (its last ops), ``"algorithms"``, ``"gpu"`` or ``"running"``.

        The last is the collective that runs and the ranks that it waits for; empty when none waits.
        """
        capacity = 1 << 16
        while True:
            text = ctypes.create_string_buffer(capacity)
            needed = c_int64()
            _native.check(
                self._library.se_describe(
                    self.native.require_pointer(), what.encode(), text, capacity, ctypes.byref(needed)
                )
            )
            if needed.value < capacity:
                return text.value.decode("utf-8", "replace")
            capacity = needed.value + 4096  # it may have grown meanwhile

    def report_failure(self, status: int) -> None:
        """Log the last ops, once, if `status` is one that no caller can have foreseen."""
        if status not in (Status.PEER_LOST, Status.INTERNAL) or not self._unreported.acquire(blocking=False):
            return
        with suppress(HorovodInternalError, ValueError):
            lines = self.describe("flight_recorder").rstrip().splitlines()
            most = _REPORTED_LINES_AT_INFO if _log.isEnabledFor(logging.INFO) else _REPORTED_LINES
            shown = lines[-most:]
            if shown:
                # A job that continues without the lost rank shows other messages.
                level = logging.INFO if self.loss_is_expected else logging.WARNING
                _log.log(level, f"{last_ops.HEAD}\n%s", len(shown), len(lines), "\n".join(shown))

    def start_timeline(self, path: str, mark_cycles: bool) -> None:
        """Start writing a Chrome trace of this rank's ops. Raise ValueError when one is being written."""
        _native.check(self._library.se_timeline_start(self.native.require_pointer(), os.fsencode(path), mark_cycles))

    def stop_timeline(self) -> None:
        """End it. Idempotent."""
        _native.check(self._library.se_timeline_stop(self.native.require_pointer()))

    def await_question(self, seconds: float) -> int | None:
        """Return the number of another rank's question, within `seconds`; None: there was none.

        Raises ShutDownError: there will be no more.
        """
        question = c_int64()
        status = self._library.se_await_question(self.native.require_pointer(), seconds, ctypes.byref(question))
        _native.check(status)
        return question.value if status == Status.OK else None

    def answer(self, question: int, text: str) -> None:
        """Answers a question. A NUL would end the text."""
        encoded = text.replace("\x00", "\\x00").encode("utf-8", "replace")
        _native.check(self._library.se_answer(self.native.require_pointer(), question, encoded))

    # --- data connections on first use -------------------------------------------------------------------------------

    def await_wanted_peer(self, seconds: float) -> int | None:
        """Return the higher rank with which the engine needs data connections now, within `seconds`, if any.

        Raises ShutDownError: there will be no more.
        """
        rank = c_int32()
        status = self._library.se_await_wanted_peer(self.native.require_pointer(), seconds, ctypes.byref(rank))
        _native.check(status)
        return rank.value if status == Status.OK else None

    def connect_peer(self, peer: Peer) -> None:
        """Add the data connections with a rank. Their descriptors belong to the engine, also when this fails."""
        _native.check(self._library.se_connect_peer(self.native.require_pointer(), ctypes.byref(peer)))

    def refuse_peer(self, rank: int, reason: str) -> None:
        """Fail the operation that needs connections with a rank of the group, and all further ones."""
        encoded = reason.replace("\x00", "\\x00").encode("utf-8", "replace")
        _native.check(self._library.se_refuse_peer(self.native.require_pointer(), rank, encoded))

    # --- rings -------------------------------------------------------------------------------------------------------

    def order_ring(self, ranks: Sequence[int], halves: bool = False) -> None:
        """Set the order in which rings pass through the ranks. All ranks call it at the same point.

        With `halves` long allreduces of 16-bit floats follow it, too. Raises ValueError: wrong ranks, or open requests.
        """
        if len(ranks) != self.size:
            raise ValueError(f"the order of a ring of {self.size} ranks has each of them once, not {len(ranks)} ranks")
        _native.check(self._library.se_order_ring(self.native.require_pointer(), (c_int32 * self.size)(*ranks), halves))

    # --- ends --------------------------------------------------------------------------------------------------------

    def shutdown(self) -> None:
        """Leaves the group; requests that are pending fail with ShutDownError.

        Blocks for at most about a second; if the engine has used a GPU's tensors, also until the GPU has finished with
        them, and up to two seconds for the other ranks to leave.
        """
        if self.native.pointer is not None:
            _native.check(self._library.se_engine_shutdown(self.native.pointer))
            self._detached.release_done(self)
            at_end, self.at_end = self.at_end, []
            for end in at_end:
                end()

    def abandon_after_fork(self) -> None:
        """Close a forked child's copies of the descriptors; every later use raises an error."""
        pointer, self.native.pointer = self.native.pointer, None
        self._detached.clear()
        if pointer is not None:
            self._library.se_engine_abandon_after_fork(pointer)

    def __del__(self) -> None:
        native = getattr(self, "native", None)
        if native is not None and native.pointer is not None:
            # No detached request may be in flight when its plan and its tensors are released, before the engine itself.
            self._library.se_engine_shutdown(native.pointer)
