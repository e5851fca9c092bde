"""The driver channel's token is kept off the disk and out of the logs."""

from __future__ import annotations

import hashlib
import logging
import threading
from dataclasses import replace
from typing import Any

import cloudpickle
import pytest

pytest.importorskip("pyspark")

from spark_estimator.errors import PicklingError, PreflightError
from spark_estimator.launch.job.spec import JobSpec
from spark_estimator.launch.spark import task_secrecy
from spark_estimator.launch.spark.task_secrecy import pack_parcels, suppress_logs


def test_within_the_block_this_thread_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("py4j.clientserver")

    def from_another_thread() -> None:
        thread = threading.Thread(target=log.debug, args=("another thread",))
        thread.start()
        thread.join()

    with caplog.at_level(logging.DEBUG, log.name):
        with pytest.raises(ZeroDivisionError), suppress_logs():
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


class Ballast:
    """A feed of any size."""

    def __init__(self, size: int) -> None:
        self.content = bytes(size)

    def take(self, batches: Any, worker: Any, environment: Any, ended: Any) -> None:
        raise AssertionError("no rows are taken")


def job(size: int, **variables: str) -> JobSpec:
    return JobSpec("job", 1, "f()", payload=b"x" * size, environment=variables)


def test_a_small_job_travels_in_its_task(spark: Any) -> None:
    with pack_parcels(spark, job(200 << 10), Ballast(200 << 10)) as (rest, parcels):
        assert rest == job(0)
        assert parcels.payload.content == job(200 << 10).payload
        feed = parcels.load_feed()
        assert isinstance(feed, Ballast) and feed.content == bytes(200 << 10)
    with pack_parcels(spark, job(1)) as (_, parcels):
        assert parcels.load_feed() is None


@pytest.mark.parametrize(("payload", "feed"), [((512 << 10) + 1, 0), (0, 512 << 10), (300 << 10, 300 << 10)])
def test_what_is_large_travels_apart_and_is_destroyed(spark: Any, payload: int, feed: int) -> None:
    """Spark measures the task as a whole, and writes one of more than a mebibyte into a file."""
    with pack_parcels(spark, job(payload), Ballast(feed)) as (rest, parcels):
        assert len(cloudpickle.dumps((rest, parcels.payload.read, parcels.feed))) < 16 << 10
        assert parcels.payload.read() == job(payload).payload
        taken = parcels.load_feed()
        assert isinstance(taken, Ballast) and len(taken.content) == feed
    with pytest.raises(Exception, match="destroyed"):
        spark.sparkContext.parallelize([1], 1).map(lambda _: len(parcels.feed.read())).collect()


def test_what_is_very_large_travels_in_parts(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver's JVM has a part in memory, and not the whole."""
    monkeypatch.setattr(task_secrecy, "_PART_BYTES", 1 << 20)
    content = bytes(range(256)) * (14 << 10)
    with pack_parcels(spark, replace(job(0), payload=content)) as (_, parcels):
        assert len(parcels.payload.content) == 4
        digest = hashlib.sha256(content).hexdigest()
        for opened in (parcels.payload.read, parcels.payload.read):
            assert hashlib.sha256(opened()).hexdigest() == digest
        assert spark.sparkContext.parallelize([1], 1).map(
            lambda _: hashlib.sha256(parcels.payload.read()).hexdigest()
        ).collect() == [digest]


def test_a_task_that_is_large_without_them_is_refused(spark: Any) -> None:
    with pytest.raises(PreflightError, match=r"f\(\) can't be sent .*\.UDFCompressionThreshold"):
        with pack_parcels(spark, job(1, VARIABLE="x" * (600 << 10))):
            pass


def test_a_feed_that_cannot_be_pickled_is_named(spark: Any) -> None:
    feed = Ballast(1)
    feed.content = threading.Lock()  # type: ignore[assignment]
    with pytest.raises(PicklingError, match=r"the rows, whose \.content \(type _thread.lock\) cannot be pickled"):
        with pack_parcels(spark, job(1), feed):
            pass
