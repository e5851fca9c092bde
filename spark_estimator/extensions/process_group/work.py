"""The ``Work`` of a process group's collective or message: it can be waited for, queried, or turned into a future.

The engine has no callbacks, so a future that is not done when it is asked for is fulfilled by one thread of the
process, the *waiter*. It sleeps while no future is pending, and otherwise waits in the engine, whose rounds it then
runs. Callbacks of futures run in it. A callback that waits hands the waiter's work to another thread first, or it might
wait for something that only the waiter can complete, on this rank or on another.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, Protocol

import torch
from torch.distributed import DistBackendError
from torch.futures import Future

from spark_estimator.errors import MismatchError
from spark_estimator.extensions.process_group import callbacks
from spark_estimator.extensions.process_group.callbacks import ProgramPoint
from spark_estimator.extensions.process_group.uncompiled import disable_compile

#: Torch's value for "no time-out set".
_NO_TIMEOUT = timedelta(0)
# The oldest is waited for; those behind it, which may end before it, are looked at so often.
_SWEEP = timedelta(milliseconds=20)
_thread = threading.local()


# The engine's advice for calls that may have a name; torch's cannot.
_ADVICE = (
    "Calls without a name are matched by their order on each rank: make the same calls in the same order on all ranks, "
    "or give them names.",
    "All ranks must make the same call under the same name; different tensors need different names.",
)
_TORCH_ADVICE = (
    "A group's operations are matched by their order on each rank: call the same ones, with as many elements "
    "of one type, in the same order on all its ranks. What only some of the ranks call needs a group of those ranks "
    "(torch.distributed.new_group)."
)


def translate_error(error: Exception) -> Exception:
    """Return the error with advice that a caller of ``torch.distributed`` can follow."""
    if not isinstance(error, MismatchError):
        return error
    text = str(error)
    for advice in _ADVICE:
        text = text.replace(advice, _TORCH_ADVICE)
    return MismatchError(text)


def is_running_callbacks() -> bool:
    """Return whether this thread is the waiter, or has been: all that it runs are callbacks of futures."""
    return getattr(_thread, "waits", False)


def prepare_to_block() -> None:
    """Make another thread the waiter if this one is it. To be called before a thread waits."""
    if is_running_callbacks():
        _waiter.hand_over()


class Awaited(Protocol):
    """The request that a work waits for; ``collectives.handle.Handle`` is one."""

    def wait(self, timeout: timedelta | None = None) -> None:
        """Wait until it is done; raise its error, or TimeoutError."""

    def done(self) -> bool:
        """Return whether `wait` would return, or raise, at once."""


@disable_compile
class GroupWork(torch.distributed.Work):
    """One operation of a process group.

    Args:
        label: the operation in words, for messages.
        awaited: what to wait for; None: the operation is done, and `outputs` returns its result.
        finish: called once, when that has ended well: puts results where they belong and returns the outputs.
        outputs: as `finish` returns them, of an operation that is done.
        timeout: for waits without their own.
        source: of a received message: gives the sender's rank in the group.
        point: of the operation, for what callbacks of its future call; None: of a message, which has none.
    """

    def __init__(
        self,
        label: str,
        awaited: Awaited | None,
        finish: Callable[[], list[Any]] | None,
        timeout: timedelta,
        *,
        outputs: list[Any] | None = None,
        source: Callable[[], int] | None = None,
        point: ProgramPoint | None = None,
    ) -> None:
        super().__init__()
        self.point = point or ProgramPoint(None)
        self._what = label
        self._awaited = awaited
        self._finish = finish
        self._outputs = outputs or []
        self._timeout = timeout
        self._source = source
        self._error: Exception | None = None
        self._lock = threading.Lock()

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        """Wait until the operation is done and its results are in place. Return True.

        Args:
            timeout: 0: the group's.

        Raises:
            DistBackendError: the time-out has passed; the operation continues.
            HorovodInternalError: it failed: the ranks disagree about it, or one of them is lost.
            ValueError: the result does not fit its target.
        """
        limit = timeout if timeout > _NO_TIMEOUT else self._timeout
        if self._awaited is not None:
            prepare_to_block()
        try:
            self._settle(limit)
        except TimeoutError as error:
            raise DistBackendError(f"{self._what}: {error}") from None
        return True

    def is_completed(self) -> bool:
        """Return whether the operation has ended, well or not, with its results in place."""
        awaited = self._awaited
        if awaited is not None:
            if not awaited.done():
                return False
            with suppress(Exception):
                self._settle(None)
        return True

    def is_success(self) -> bool:
        """Return whether the operation has ended well."""
        return self.is_completed() and self._error is None

    def exception(self) -> Exception | None:
        """Return the operation's error, if it has failed."""
        return self._error if self.is_completed() else None

    def result(self) -> list[Any]:
        """Return the outputs of an operation that is done. Raise as `wait` does."""
        self.wait()
        return self._outputs

    def synchronize(self) -> None:
        """Wait as `wait` does."""
        self.wait()

    def source_rank(self) -> int:
        """Return the sender of a received message, as its number in the group."""
        if self._source is None:
            raise ValueError(f"{self._what} has no sender: it is not a received message.")
        self.wait()
        return self._source()

    _source_rank = source_rank

    def get_future(self) -> Future[list[Any]]:
        """Return a future of the outputs. Its callbacks run in the waiter's thread, or at once if the operation is
        done.
        """
        owed: Future[Any] = Future()
        # A future whose exception is *set* holds it as a value, for C++ (DDP's reducer) to stumble over; one whose
        # callback raises has failed, everywhere.
        future = owed.then(self._report)
        callbacks.note(future, self.point)
        if self.is_completed():
            owed.set_result(None)
        else:
            _waiter.owe(self, owed)
        return future

    def settle_for(self, timeout: timedelta) -> bool:
        """Wait for a while; return whether the operation has ended, well or not."""
        try:
            self._settle(timeout)
        except TimeoutError:
            return False
        except Exception:
            return True  # noted
        return True

    def _report(self, _owed: Future[Any]) -> list[Any]:
        if self._error is not None:
            raise self._error
        return self._outputs

    def _settle(self, timeout: timedelta | None) -> None:
        awaited = self._awaited
        if awaited is not None:
            problem: Exception | None = None
            try:
                awaited.wait(timeout)
            except TimeoutError:
                raise
            except Exception as error:
                problem = translate_error(error)
            with self._lock:
                if self._awaited is not None:  # another thread may have been faster
                    if problem is None and self._finish is not None:
                        try:
                            self._outputs = self._finish()
                        except Exception as error:
                            problem = error
                    self._error = problem
                    # What it held: the tensors that were waited for.
                    self._awaited = self._finish = None
        if self._error is not None:
            raise self._error


class AllOf:
    """Several works as one thing to wait for."""

    def __init__(self, works: Sequence[GroupWork]) -> None:
        self._works = list(works)

    def wait(self, timeout: timedelta | None = None) -> None:
        """Wait for each work. Raise the first error."""
        for work in self._works:
            work.wait(timeout or _NO_TIMEOUT)

    def done(self) -> bool:
        """Return whether all have ended."""
        return all(work.is_completed() for work in self._works)


class _Waiter:
    """Fulfils futures in a separate thread, which starts with the first pending one."""

    def __init__(self) -> None:
        self._owed: list[tuple[GroupWork, Future[Any]]] = []
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def owe(self, work: GroupWork, future: Future[Any]) -> None:
        """Set `future`, in the waiter's thread, when `work` has ended."""
        with self._changed:
            self._owed.append((work, future))
            if self._thread is None:
                self._start()
            self._changed.notify_all()

    def hand_over(self) -> None:
        """Let another thread fulfil futures, if it is this thread, which runs a callback, that does."""
        with self._changed:
            if self._thread is threading.current_thread():
                self._start()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="spark_estimator futures", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        _thread.waits = True
        thread = threading.current_thread()
        while True:
            with self._changed:
                while not self._owed:
                    self._changed.wait()
                owed = list(self._owed)
            owed[0][0].settle_for(_SWEEP)
            for pair in owed:
                if pair[0].is_completed():
                    with self._changed:
                        self._owed.remove(pair)
                    pair[1].set_result(None)  # runs the callbacks
                    if self._thread is not thread:
                        return
            del owed, pair


_waiter = _Waiter()
callbacks.watch_futures(prepare_to_block)
