"""The tag of a Spark job: its description on Spark's page, and how the job is cancelled."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("pyspark")

from spark_estimator.launch.spark.job_tag import JobTag


def test_a_users_own_description_of_jobs_stays(spark: Any) -> None:
    def described() -> str:
        JobTag(spark, "a tag").add("train() on 2 ranks")
        return str(spark.sparkContext.getLocalProperty("spark.job.description"))

    with ThreadPoolExecutor(1) as thread:  # these properties are the thread's
        assert thread.submit(described).result() == "spark_estimator: train() on 2 ranks"
        thread.submit(spark.sparkContext.setJobDescription, "mine").result()
        assert thread.submit(described).result() == "mine"


def test_jobs_with_the_tag_are_cancelled_and_no_others(spark: Any) -> None:
    def run(tag: JobTag | None, seconds: float) -> list[int]:
        if tag is not None:
            tag.add()

        def wait(number: int) -> int:
            time.sleep(seconds)
            return number

        return list(spark.sparkContext.parallelize([1], 1).map(wait).collect())

    tag = JobTag(spark, "a tag to be cancelled")
    with ThreadPoolExecutor(2) as threads:
        cancelled, other = threads.submit(run, tag, 60), threads.submit(run, None, 0.5)
        while not cancelled.done():
            tag.cancel()  # without effect until Spark has the job
            time.sleep(0.1)
        assert "cancelled" in str(cancelled.exception()) and other.result() == [1]


def test_a_session_that_is_gone_is_no_error() -> None:
    JobTag(object(), "tag").cancel()  # type: ignore[arg-type]
