"""Calls that are made one after the other, and again while the server is away."""

from __future__ import annotations

import errno
import threading
from datetime import timedelta

import pytest

from spark_estimator.estimators.tracking import mlflow_thread
from spark_estimator.estimators.tracking.mlflow_thread import CallState, MlflowCall, MlflowThread, is_transient

LONG, SHORT = timedelta(seconds=30), timedelta(seconds=0.2)


def test_calls_are_made_again_or_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlflow_thread, "_FIRST_PAUSE", timedelta(0))
    reported: list[str] = []
    thread = MlflowThread(reported.append)
    failures = [ConnectionError("away"), ConnectionError("away")]
    done: list[int] = []

    def sometimes() -> None:
        if failures:
            raise failures.pop()
        done.append(1)

    def refused() -> None:
        raise ValueError("no such thing")

    calls = [thread.submit(MlflowCall("log a", sometimes)), thread.submit(MlflowCall("log b", refused))]
    assert thread.wait(calls[1], LONG)
    assert done == [1] and [call.state for call in calls] == [CallState.DONE, CallState.REFUSED]
    assert reported == ["mlflow: could not log b: ValueError: no such thing"]
    thread.close()


class Coded(Exception):
    """As MLflow's own exceptions and those of requests."""

    def __init__(self, error_code: str | None = None, status: int = 0, cause: Exception | None = None) -> None:
        self.error_code = error_code
        self.response = self
        self.status_code = status
        self.__cause__ = cause


class OfRequests(Coded, OSError):
    """Whose errors are OSErrors."""


@pytest.mark.parametrize(
    ("error", "transient"),
    [
        (ConnectionRefusedError("away"), True),
        (TimeoutError("slow"), True),
        (OSError(errno.EIO, "I/O error"), True),
        (PermissionError(errno.EACCES, "Permission denied"), False),
        (FileNotFoundError(errno.ENOENT, "No such file"), False),
        (NotADirectoryError(errno.ENOTDIR, "Not a directory"), False),
        (OSError(errno.ENOSPC, "No space left on device"), False),
        (OSError(errno.EROFS, "Read-only file system"), False),
        (Coded("TEMPORARILY_UNAVAILABLE"), True),
        (Coded("INTERNAL_ERROR"), True),
        (Coded("INTERNAL_ERROR", cause=PermissionError("Permission denied")), False),
        (Coded("RESOURCE_DOES_NOT_EXIST"), False),
        (OfRequests(status=403), False),
        (OfRequests(status=429), True),
        (OfRequests(status=503), True),
        (OfRequests(), True),
    ],
)
def test_what_may_succeed_later(error: Exception, transient: bool) -> None:
    assert is_transient(error) == transient


def test_a_call_that_fails_does_not_keep_others_from_being_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlflow_thread, "_FIRST_PAUSE", timedelta(0))
    monkeypatch.setattr(mlflow_thread, "_TURN", timedelta(0))
    thread, back = MlflowThread(print), threading.Event()

    def away() -> None:
        if not back.is_set():
            raise ConnectionError("no store")

    model = thread.submit(MlflowCall("log the model", away))
    end = thread.submit(MlflowCall("end the run", lambda: None))
    assert thread.wait(end, LONG)
    assert end.state is CallState.DONE and model.state is CallState.WAITING
    assert thread.list_outstanding() == ["log the model (ConnectionError('no store'))"]
    back.set()
    assert thread.wait(model, LONG) and model.state is CallState.DONE
    thread.close()


def test_nobody_waits_longer_than_the_limit() -> None:
    thread, hangs = MlflowThread(print), threading.Event()
    call = thread.submit(MlflowCall("log a", lambda: hangs.wait(60) and None))
    assert not thread.wait(call, SHORT)
    assert thread.list_outstanding() == ["log a"]
    hangs.set()
    assert thread.wait(call, LONG)
    thread.close()
