"""Whether a job's stage needs a resource profile for its GPUs, and what is in it."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import DataFrame

from spark_estimator.errors import PreflightError
from spark_estimator.launch.spark.rank_stage import profile_of


class Settings:
    """A session on a cluster, as far as it is asked: its settings."""

    version = "3.5.1"

    def __init__(self, **settings: str) -> None:
        self.settings = {"spark.master": "spark://host:7077"}
        self.settings |= {f"spark.{name.replace('_', '.')}": value for name, value in settings.items()}
        self.conf = self

    def get(self, name: str, default: str | None = None) -> str | None:
        return self.settings.get(name, default)


def session(gpus_per_rank: str | None = None, **settings: str) -> Any:
    made = Settings(**settings)
    if gpus_per_rank is not None:
        made.settings["spark.spark_estimator.gpusPerRank"] = gpus_per_rank
    return made


def old_map_in_arrow(frame: DataFrame, func: Any, schema: Any, barrier: bool = False) -> None:
    """The signature of Spark 3.5."""


def test_the_session_s_own_profile_is_right_where_tasks_have_the_gpus() -> None:
    assert profile_of(session()) is None
    assert profile_of(session(task_resource_gpu_amount="1", executor_resource_gpu_amount="1")) is None
    local = session("1")
    local.settings["spark.master"] = "local[2]"
    assert profile_of(local) is None


def test_spark_3_cannot_ask_for_one_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DataFrame, "mapInArrow", old_map_in_arrow)
    assert profile_of(session(executor_resource_gpu_amount="1")) is None, "ranks see what their executors see"
    with pytest.raises(PreflightError, match=r"gpusPerRank is 2, but this Spark \(3\.5\.1\) can't set it"):
        profile_of(session("2"))


def test_the_profile_has_cpus_and_gpus_of_a_task(spark: Any) -> None:
    for gpus, expected in (("2", {"cpus": 3.0, "gpu": 2.0}), ("0", {"cpus": 3.0})):
        asked = session(gpus, task_cpus="3", task_resource_gpu_amount="1", executor_resource_gpu_amount="2")
        profile = profile_of(asked)
        assert profile is not None
        assert {name: request.amount for name, request in profile.taskResources.items()} == expected
        assert not profile.executorResources, "Spark would start other executors for it"


def test_where_executors_come_on_demand_the_profile_has_theirs(spark: Any) -> None:
    asked = session(
        "0.5",
        dynamicAllocation_enabled="true",
        executor_cores="4",
        executor_resource_gpu_amount="2",
        executor_resource_gpu_discoveryScript="/gpus.sh",
    )
    profile = profile_of(asked)
    assert profile is not None and profile.taskResources["gpu"].amount == 0.5
    executor = profile.executorResources
    assert (executor["cores"].amount, executor["gpu"].amount) == (4, 2)
    assert executor["gpu"].discoveryScript == "/gpus.sh"
