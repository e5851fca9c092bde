"""Calls that are made one after the other, and again while the server is away."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest

from spark_estimator.estimators.tracking import mlflow_thread
from spark_estimator.estimators.tracking.mlflow_thread import CallState, MlflowCall, MlflowThread

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


def test_nobody_waits_longer_than_the_limit() -> None:
    thread, hangs = MlflowThread(print), threading.Event()
    call = thread.submit(MlflowCall("log a", lambda: hangs.wait(60) and None))
    assert not thread.wait(call, SHORT)
    assert thread.outstanding() == ["log a"]
    hangs.set()
    assert thread.wait(call, LONG)
    thread.close()
