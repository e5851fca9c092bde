"""The driver channel's token is kept off the disk and out of the logs."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

pytest.importorskip("pyspark")

from spark_estimator.launch.job.spec import JobSpec
from spark_estimator.launch.spark.task_secrecy import large_payload_apart, unlogged


def test_within_the_block_this_thread_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("py4j.clientserver")

    def from_another_thread() -> None:
        thread = threading.Thread(target=log.debug, args=("another thread",))
        thread.start()
        thread.join()

    with caplog.at_level(logging.DEBUG, log.name):
        with pytest.raises(ZeroDivisionError), unlogged():
            log.debug("the token")
            logging.getLogger("pyspark.sql.connect.logging").debug("the token")
            from_another_thread()
            _ = 1 / 0
        log.debug("after it")
    # What py4j's garbage collector logs at any time is not meant.
    messages = [
        message for message in caplog.messages if not message.startswith(("Command to send: m\n", "Answer received"))
    ]
    assert messages == ["another thread", "after it"]


def test_a_small_function_travels_with_its_task() -> None:
    job = JobSpec("job", 1, "f()", payload=b"x" * (512 << 10))
    with large_payload_apart(object(), job) as (sent, apart):  # type: ignore[arg-type]
        assert sent is job and apart is None


def test_a_large_function_travels_apart_and_is_destroyed(spark: Any) -> None:
    job = JobSpec("job", 1, "f()", payload=b"x" * ((512 << 10) + 1))
    with large_payload_apart(spark, job) as (sent, apart):
        assert sent.payload == b"" and apart is not None and apart.value == job.payload
    with pytest.raises(Exception, match="destroyed"):
        spark.sparkContext.parallelize([1], 1).map(lambda _: len(apart.value)).collect()
