"""A new session is made for a job that this machine can run, and for no other; threads for a session's jobs."""

from __future__ import annotations

import subprocess
import sys
import types
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from spark_estimator.errors import PreflightError
from spark_estimator.launch.spark import session

# A separate process: there must be no session, and the refusal must be raised before one is started.
PROGRAM = """
import spark_estimator, spark_estimator.errors
try:
    spark_estimator.HorovodRunner(np=9_999).run(print)
except spark_estimator.errors.NotEnoughSlotsError as error:
    print(error)
from pyspark import SparkContext
assert SparkContext._active_spark_context is None, "a session was started"
"""


def test_far_more_ranks_than_this_machine_can_run_are_refused_before_a_session_is_started() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=100, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stderr
    assert "9999 ranks were requested and there is no Spark session" in done.stdout
    assert "Connect to a cluster first" in done.stdout and "or use" in done.stdout


def test_the_sessions_of_spark_connect_3_4_cannot_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    class Kind:
        @staticmethod
        def getActiveSession() -> None:
            raise NotImplementedError("getActiveSession() is not implemented.")

    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    assert session._get_active(Kind) is None  # its module was imported, and a classic session is used
    monkeypatch.setenv("SPARK_REMOTE", "sc://host")
    with pytest.raises(PreflightError, match=r"before Spark 3\.5"):
        session._get_active(Kind)


def test_a_connect_session_is_that_of_every_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its active session is the thread's that made it."""

    class Kind:
        is_stopped = False
        _default_session: object = None

        @staticmethod
        def getActiveSession() -> None:
            return None

    module = types.ModuleType("pyspark.sql.connect.session")
    module.SparkSession = Kind  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(session, "_get_active", lambda kind: None)
    made = Kind._default_session = Kind()
    assert session.find_session() is made  # type: ignore[comparison-overlap]
    monkeypatch.setattr(made, "is_stopped", True)
    assert session.find_session() is not made  # type: ignore[comparison-overlap]


def test_properties_of_the_calling_thread_are_inherited(spark: Any) -> None:
    groups: list[str | None] = []

    def start() -> bool:
        spark.sparkContext.setJobGroup("mine", "a user's group")
        thread = session.make_session_thread(
            spark, lambda: groups.append(spark.sparkContext.getLocalProperty("spark.jobGroup.id"))
        )
        assert not thread.is_alive() and groups == []
        thread.start()
        thread.join(20)
        return thread.daemon

    with ThreadPoolExecutor(1) as user:  # the group is of that thread alone
        assert user.submit(start).result(), "it does not keep the process alive"
    assert groups == ["mine"]
    assert spark.sparkContext.getLocalProperty("spark.jobGroup.id") is None
