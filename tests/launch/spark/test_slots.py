"""The arithmetic of slots, and what is refused because of it, on sessions that answer as Spark's kinds do."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from spark_estimator.errors import NotEnoughSlotsError, PreflightError, remove_links
from spark_estimator.launch.spark import slots
from spark_estimator.launch.spark.configuration import UNDEFINED, Configuration
from spark_estimator.launch.spark.slots import (
    check_connect,
    check_session,
    choose_default_size,
    count_all_slots,
    count_slots,
    require_slots,
)


class Session:
    """Settings, and the plan of a range; as over Spark Connect, there is no scheduler to be asked."""

    def __init__(self, splits: int, settings: dict[str, str]) -> None:
        self.settings = settings
        self.splits = splits
        self.conf = self

    def get(self, name: str, default: str | None = None) -> str | None:
        return self.settings.get(name, default)

    def set(self, name: str, value: str) -> None:
        self.settings[name] = value

    def unset(self, name: str) -> None:
        del self.settings[name]

    def sql(self, text: str) -> Any:
        splits = self.settings.get("spark.sql.leafNodeDefaultParallelism", self.splits)
        return Rows(f"== Physical Plan ==\n*(1) Range (0, 1000000, step=1, splits={splits})")


class Rows:
    def __init__(self, *columns: str) -> None:
        self.columns = columns

    def collect(self) -> list[list[str]]:
        return [list(self.columns)]


def session(master: str, splits: int = 0, **settings: str) -> Any:
    return Session(splits, {"spark.master": master, **{f"spark.{name}": value for name, value in settings.items()}})


@pytest.mark.parametrize(
    ("made", "count"),
    [
        (session("local"), 1),
        (session("local[3]"), 3),
        (session("local[3, 2]"), 3),
        (session("local[*]", 5), 5),
        (session("local[8]", **{"task.cpus": "3"}), 2),
        (session("local-cluster[3,2,1024]"), 6),
        (session("spark://x:7077", 12), 12),
        (session("spark://x:7077", 12, **{"task.cpus": "4"}), 3),
        (session("yarn", 12, **{"default.parallelism": "100"}), None),
        (session("yarn", 12, **{"sql.leafNodeDefaultParallelism": "7"}), 12),
    ],
)
def test_slots_are_cores_by_cores_per_task(made: Any, count: int | None) -> None:
    before = dict(made.settings)
    assert count_slots(made).count == count
    assert made.settings == before


def test_gpus_can_be_the_limit() -> None:
    gpus = {"executor.cores": "4", "executor.resource.gpu.amount": "2", "task.resource.gpu.amount": "1"}
    slots = count_slots(session("yarn", 12, **gpus))
    assert (slots.count, slots.by_gpus) == (6, True)
    assert slots.arithmetic == "3 executors x 2 GPUs / 1 per task (spark.task.resource.gpu.amount)"
    assert count_slots(session("yarn", 12, **{**gpus, "task.resource.gpu.amount": "0.25"})).count == 12
    with pytest.raises(
        NotEnoughSlotsError, match=r"8 ranks need 8 slots .* has 6: 3 executors x 2 GPUs.*more executors"
    ):
        require_slots(session("yarn", 12, **gpus), 8, timedelta(0))


def test_a_command_gets_its_flags_as_the_remedy() -> None:
    words = r"has 1: 1 core \(master local\[1\]\) .*session with --master local\[2\], or use -np 1\.\n"
    with pytest.raises(NotEnoughSlotsError, match=words):
        require_slots(session("local[1]"), 2, timedelta(0), size_word="-np")


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (
            session("local[2]"),
            r'has 2: 2 cores \(master local\[2\]\) / 1 per task.*\.master\("local\[4\]"\), or use num_proc=2\.',
        ),
        (
            session("local[2]", **{"task.cpus": "2"}),
            r'2 cores .* / 2 per task.*\.master\("local\[8\]"\), or use num_proc=1\.',
        ),
        (session("local[1]", **{"task.cpus": "2"}), r'has 0: .*\.master\("local\[8\]"\)\.\n'),
        (session("local-cluster[2,1,1024]"), r'\.master\("local-cluster\[4,1,1024\]"\), or use num_proc=2\.'),
        (session("spark://x", 3), r"Give the session 4 cores .*spark\.cores\.max.*, or use num_proc=3\."),
        (
            session("yarn", 2, **{"executor.cores": "2"}),
            r"spark\.executor\.instances=2 \(of 2 cores each\), or use num_proc=2\.",
        ),
    ],
)
def test_too_many_ranks_are_refused_with_arithmetic_and_remedy(made: Any, says: str) -> None:
    with pytest.raises(NotEnoughSlotsError, match=says) as caught:
        require_slots(made, 4, timedelta(0), size_word="num_proc")
    assert str(caught.value).startswith("4 ranks need 4 slots at the same time, but this session has ")


def test_over_spark_connect_the_master_is_the_servers() -> None:
    remote = type("SparkSession", (Session,), {"__module__": "pyspark.sql.connect.session"})
    for master, wanted in (("local[2]", "local[4]"), ("local-cluster[2,1,1024]", "local-cluster[4,1,1024]")):
        with pytest.raises(NotEnoughSlotsError) as caught:
            require_slots(remote(2, {"spark.master": master}), 4, timedelta(0))
        text = str(caught.value)
        assert f'Start the Spark Connect server, which sets the master, with --master "{wanted}", or use 2' in text


def test_executors_that_come_a_moment_late_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "_POLL_SECONDS", 0.01)
    young = session("spark://x", 1)
    real = young.sql

    def grows(text: str) -> Any:
        young.splits += 1
        return real(text)

    young.sql = grows
    require_slots(young, 6, timedelta(seconds=5))
    assert young.splits == 6


def test_executors_that_are_on_order_are_left_to_spark() -> None:
    ordered = session("yarn", 2, **{"executor.cores": "2", "executor.instances": "3"})
    require_slots(ordered, 6, timedelta(0))
    with pytest.raises(NotEnoughSlotsError):
        require_slots(ordered, 7, timedelta(0))


def test_nobody_is_refused_for_what_cannot_be_known() -> None:
    require_slots(session("yarn", 1, **{"default.parallelism": "1"}), 50, timedelta(0))


def test_executors_that_come_on_demand_are_counted_by_what_the_settings_allow() -> None:
    on_demand = {"dynamicAllocation.enabled": "true", "executor.cores": "2"}
    require_slots(session("yarn", 2, **on_demand), 100)
    most = {**on_demand, "dynamicAllocation.maxExecutors": "3"}
    require_slots(session("yarn", 2, **most), 6)
    require_slots(session("yarn", 14, **most), 7)  # they are there already
    with pytest.raises(NotEnoughSlotsError) as caught:
        require_slots(session("yarn", 2, **most), 7, size_word="np")
    assert remove_links(str(caught.value)) == (
        "7 ranks need 7 slots at the same time, but this session can have at most 6: 3 executors "
        "(spark.dynamicAllocation.maxExecutors) with 2 slots each. Start the session with "
        "spark.dynamicAllocation.maxExecutors=4 or more, or use np=6."
    )
    half = {**on_demand, "dynamicAllocation.executorAllocationRatio": "0.5"}
    with pytest.raises(NotEnoughSlotsError, match=r"at most 4: .*executorAllocationRatio is 0\.5\. Start .*=1\.\n"):
        require_slots(session("yarn", 2, **half), 8, size_word="np")  # of 4 ranks it would start 2


def test_without_a_fixed_number_of_slots_there_is_no_default() -> None:
    for settings in ({"dynamicAllocation.enabled": "true"}, {"spark_estimator.barrier": "false"}):
        for choose in (count_all_slots, choose_default_size):
            with pytest.raises(NotEnoughSlotsError, match=r"this session has no fixed number.*Set the number of ranks"):
                choose(session("yarn", 4, **settings))


def test_a_session_that_asks_for_what_spark_refuses_is_refused() -> None:
    settings = {"dynamicAllocation.enabled": "true", "spark_estimator.barrier": "true"}
    with pytest.raises(PreflightError, match=r"spark\.spark_estimator\.barrier is true, but spark\.dynamicAllocation"):
        check_session(session("spark://x", **settings))
    check_session(session("spark://x", **settings), together=False)
    check_session(session("local[2]", **settings))


def test_gpus_on_a_local_master_are_refused_because_spark_would_wait_for_ever() -> None:
    with pytest.raises(PreflightError, match=r"spark\.task\.resource\.gpu\.amount is 1.*'local\[2\]'.*np=-N"):
        check_session(session("local[2]", **{"task.resource.gpu.amount": "1"}))
    check_session(session("local-cluster[1,1,1024]", **{"task.resource.gpu.amount": "1"}))


def test_a_real_session_answers(spark: Any) -> None:
    assert count_slots(spark).count == 2
    check_session(spark)
    assert slots._count_default_splits(spark, Configuration(spark)) == 2
    assert slots._ask_scheduler(spark) == 2
    assert Configuration(spark).get_or_raise("spark.network.crypto.enabled") is None
    assert spark.sql("SET spark.network.crypto.enabled").collect()[0][1] == UNDEFINED


@pytest.mark.parametrize(
    ("version", "has_tags", "refused"),
    [("3.4.4", False, True), ("3.4.4", True, True), ("4.0.1", False, True), ("3.5.0", True, False)],
)
def test_spark_connect_before_3_5_is_refused(version: str, has_tags: bool, refused: bool) -> None:
    """A client of 3.4, also of a newer server, has no tags for jobs."""
    members = {"__module__": "pyspark.sql.connect.session", "version": version} | ({"addTag": None} if has_tags else {})
    connected = type("SparkSession", (), members)()
    if not refused:
        check_connect(connected)
        return
    with pytest.raises(PreflightError, match=rf"a server of Spark {version}, and Spark Connect can't start ranks"):
        check_connect(connected)
    with pytest.raises(PreflightError, match="Use a classic session"):
        check_session(connected)
