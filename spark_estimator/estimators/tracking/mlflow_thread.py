"""Makes MLflow's calls in a separate thread, one after the other, so that a training never waits for a tracking server.

A call that fails because the server is away, or has not answered, is made again until it succeeds or
the process ends; after a while, the calls behind it are made first. One that MLflow refuses, or that fails for a reason
that stays, such as a missing permission, is reported and left out.
"""

from __future__ import annotations

import collections
import enum
import errno
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

from spark_estimator.log import get_logger

_log = get_logger(__name__)

_FIRST_PAUSE, _LONGEST_PAUSE = timedelta(seconds=1), timedelta(seconds=15)
# How long a call is repeated before others are made: a store of artifacts may be away, and the server not.
_TURN = timedelta(seconds=30)
# By MLflow's own names: what may be otherwise a moment later.
_TRANSIENT = ("INTERNAL_ERROR", "TEMPORARILY_UNAVAILABLE", "REQUEST_LIMIT_EXCEEDED", "")
# Errors of files that stay until the file system changes.
_FINAL_FILE_ERRORS = (PermissionError, FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError)
_FINAL_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.ENAMETOOLONG, errno.EINVAL, errno.ELOOP)
# HTTP's answers to a client that should try again; the others of 400 to 499 are refusals.
_HTTP_LATER = (408, 425, 429)


class CallState(enum.Enum):
    """WAITING -> DONE | REFUSED."""

    #: It was not made yet, or did not succeed yet.
    WAITING = enum.auto()
    #: It has returned.
    DONE = enum.auto()
    #: MLflow has refused it; it is not made again.
    REFUSED = enum.auto()


@dataclass
class MlflowCall:
    """One call."""

    what: str  # it does, for messages: "log the model"
    function: Callable[[], None]
    patience: timedelta = timedelta(0)  # how long it may take beyond what every call may take
    once: bool = False  # it is not made again when it fails
    state: CallState = CallState.WAITING  # as the thread has left it
    error: Exception | None = None  # the last one that it raised
    over: threading.Event = field(default_factory=threading.Event)


class MlflowThread:
    """The thread. It does not keep the process alive.

    Args:
        report: prints a line at the driver.
    """

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self._changed = threading.Condition()
        self._calls: collections.deque[MlflowCall] = collections.deque()
        self._closing = False
        self._last_success = time.monotonic()
        threading.Thread(target=self._run, name="spark_estimator MLflow", daemon=True).start()

    def submit(self, call: MlflowCall) -> MlflowCall:
        """Make a call after those before it. Does not block."""
        with self._changed:
            self._calls.append(call)
            self._changed.notify_all()
        return call

    def wait(self, call: MlflowCall, limit: timedelta) -> bool:
        """Wait for the end of a call and of those before it.

        Args:
            limit: without a call that succeeds.

        Returns:
            Whether it has ended; False: MLflow has not answered within the limit.
        """
        began = time.monotonic()
        while not call.over.wait(0.05):
            with self._changed:
                patience = self._calls[0].patience if self._calls else timedelta(0)
                silent = time.monotonic() - max(began, self._last_success)
            if silent > (limit + patience).total_seconds():
                return False
        return True

    def list_outstanding(self) -> list[str]:
        """Return the descriptions of unfinished calls, with their last errors; none twice."""
        with self._changed:
            calls = list(self._calls)
        return list(dict.fromkeys(f"{call.what} ({call.error!r:.300})" if call.error else call.what for call in calls))

    def close(self) -> None:
        """End the thread once its calls are made. Idempotent."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._calls or self._closing)
                if not self._calls:
                    return
                call = self._calls[0]
            self._make(call)
            with self._changed:
                self._calls.popleft()
                if call.state is CallState.WAITING:
                    self._calls.append(call)
                    continue
            call.over.set()

    def _make(self, call: MlflowCall) -> None:
        """Make a call until it has ended, or others have their turn."""
        pause = _FIRST_PAUSE
        began = time.monotonic()
        while call.state is CallState.WAITING:
            try:
                call.function()
                call.state = CallState.DONE
                self._last_success = time.monotonic()
                return
            except Exception as error:
                call.error = error
                if call.once or not is_transient(error):
                    call.state = CallState.REFUSED
                    self._last_success = time.monotonic()  # it has answered
                    if not call.once:
                        self._report(f"mlflow: could not {call.what}: {type(error).__name__}: {error}")
                    return
                _log.info("MLflow could not %s: %s", call.what, error)
            with self._changed:
                if len(self._calls) > 1 and time.monotonic() - began >= _TURN.total_seconds():
                    return
            time.sleep(pause.total_seconds())
            pause = min(2 * pause, _LONGEST_PAUSE)


def is_transient(error: Exception) -> bool:
    """Return whether a call that raised this may succeed later."""
    if error.__cause__ is not None and _is_final_file_error(error.__cause__):
        return False
    code = getattr(error, "error_code", None)
    if code is not None:
        return code in _TRANSIENT
    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(status, int) and 400 <= status < 500:
        return status in _HTTP_LATER
    return isinstance(error, OSError) and not _is_final_file_error(error)  # those of requests are OSErrors, too


def _is_final_file_error(error: BaseException) -> bool:
    return isinstance(error, _FINAL_FILE_ERRORS) or (isinstance(error, OSError) and error.errno in _FINAL_ERRNOS)
