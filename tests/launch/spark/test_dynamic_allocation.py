"""How ranks start in a session, and how many can run there at most, by its settings."""

from __future__ import annotations

from typing import Any

import pytest

from spark_estimator.errors import PreflightError
from spark_estimator.launch.spark.configuration import Configuration
from spark_estimator.launch.spark.dynamic_allocation import find_ceiling, grows_on_demand, uses_barrier

DYNAMIC = {"dynamicAllocation.enabled": "true"}


class Settings:
    """A session of which only settings are read."""

    def __init__(self, master: str, settings: dict[str, str]) -> None:
        self._settings = {"spark.master": master, **{f"spark.{name}": value for name, value in settings.items()}}
        self.conf = self

    def get(self, name: str, default: str | None = None) -> str | None:
        return self._settings.get(name, default)


def conf(master: str = "yarn", **settings: str) -> Configuration:
    session: Any = Settings(master, settings)
    return Configuration(session)


@pytest.mark.parametrize(
    ("settings", "barrier", "demand"),
    [
        (conf(), True, False),
        (conf(**DYNAMIC), False, True),
        (conf("local-cluster[2,1,1024]", **DYNAMIC), False, True),
        (conf("local[2]", **DYNAMIC), True, False),
        (conf(**{"spark_estimator.barrier": "False"}), False, True),
        (conf("local[2]", **{"spark_estimator.barrier": "false"}), False, False),
        (conf(**{"spark_estimator.barrier": "true"}), True, False),
        (conf("", **DYNAMIC), False, True),
    ],
)
def test_the_way_of_the_start(settings: Configuration, barrier: bool, demand: bool) -> None:
    assert (uses_barrier(settings), grows_on_demand(settings)) == (barrier, demand)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"spark_estimator.barrier": "never"}, r"spark\.spark_estimator\.barrier='never': expected true or false"),
        ({"spark_estimator.barrier": "true", **DYNAMIC}, "Unset one of them"),
    ],
)
def test_a_setting_that_cannot_be_obeyed_is_refused(settings: dict[str, str], says: str) -> None:
    with pytest.raises(PreflightError, match=says):
        uses_barrier(conf(**settings))


@pytest.mark.parametrize(
    ("settings", "size", "most"),
    [
        ({**DYNAMIC, "dynamicAllocation.maxExecutors": "3"}, 3, None),  # of one core each
        ({**DYNAMIC, "dynamicAllocation.maxExecutors": "3"}, 4, 3),
        ({**DYNAMIC, "dynamicAllocation.maxExecutors": "3", "executor.cores": "5", "task.cpus": "2"}, 7, 6),
        ({"dynamicAllocation.maxExecutors": "3", "spark_estimator.barrier": "false"}, 9, None),  # has no effect
        ({**DYNAMIC, "dynamicAllocation.executorAllocationRatio": "0.3"}, 4, 2),
        ({**DYNAMIC, "dynamicAllocation.executorAllocationRatio": "0.3", "executor.cores": "4"}, 4, None),
        (
            {
                **DYNAMIC,
                "dynamicAllocation.executorAllocationRatio": "0.3",
                "dynamicAllocation.minExecutors": "4",
            },
            4,
            None,
        ),
        (
            {
                **DYNAMIC,
                "dynamicAllocation.maxExecutors": "2",
                "executor.cores": "8",
                "executor.resource.gpu.amount": "2",
                "task.resource.gpu.amount": "0.5",
            },
            9,
            8,
        ),
    ],
)
def test_the_most_ranks_that_can_run(settings: dict[str, str], size: int, most: int | None) -> None:
    limit = find_ceiling(conf(**settings), size)
    assert (None if limit is None else limit.count) == most


def test_too_many_ranks_are_refused_with_the_setting_to_change() -> None:
    limits = {**DYNAMIC, "executor.cores": "2", "cores.max": "5", "dynamicAllocation.maxExecutors": "8"}
    lowest = find_ceiling(conf("spark://x:7077", **limits), 5)
    assert lowest is not None and lowest.count == 4
    assert lowest.arithmetic == "2 executors of 2 cores (spark.cores.max=5) with 2 slots each"
    assert lowest.remedy == "Start the session with spark.cores.max=6"
    assert find_ceiling(conf(**limits), 5) is None, "it is a setting of standalone clusters"
    assert find_ceiling(conf("spark://x:7077", **DYNAMIC), 1000) is None, "an executor has all cores of its worker"
