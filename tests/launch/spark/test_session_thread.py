"""Threads for Spark jobs have the properties of the thread that asks for them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("pyspark")

from spark_estimator.launch.spark.session_thread import session_thread


def test_properties_of_the_calling_thread_are_inherited(spark: Any) -> None:
    groups: list[str | None] = []

    def start() -> bool:
        spark.sparkContext.setJobGroup("mine", "a user's group")
        thread = session_thread(spark, lambda: groups.append(spark.sparkContext.getLocalProperty("spark.jobGroup.id")))
        assert not thread.is_alive() and groups == []
        thread.start()
        thread.join(20)
        return thread.daemon

    with ThreadPoolExecutor(1) as user:  # the group is of that thread alone
        assert user.submit(start).result(), "it does not keep the process alive"
    assert groups == ["mine"]
    assert spark.sparkContext.getLocalProperty("spark.jobGroup.id") is None
