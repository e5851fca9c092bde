"""Settings: every variable is read once, checked, printed, and named when it is wrong."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

import spark_estimator
from spark_estimator.collectives.rendezvous import Topology
from spark_estimator.env import (
    SET_FOR_SCRIPTS,
    WITHOUT_EFFECT,
    Decision,
    Settings,
    find_misspelled_variables,
    make_horovod_variables,
)


def test_defaults() -> None:
    settings = Settings.read({})
    assert settings == Settings()
    assert settings.fusion_threshold_bytes == 128 << 20
    assert settings.stall_warning_seconds == 10
    assert settings.start_timeout_seconds == 30
    assert settings.shared_memory
    assert settings.spin_microseconds is None


def test_values_are_read() -> None:
    settings = Settings.read(
        {
            "HOROVOD_FUSION_THRESHOLD": "0",
            "HOROVOD_STALL_CHECK_TIME_SECONDS": "2.5",
            "HOROVOD_START_TIMEOUT": "7",
            "HOROVOD_LOG_LEVEL": "TRACE",
            "HOROVOD_GPU_OPERATIONS": "NCCL",
            "SPARK_ESTIMATOR_COMPRESSION": "BF16",
            "SPARK_ESTIMATOR_SHARED_MEMORY": "0",
            "SPARK_ESTIMATOR_SPIN_MICROSECONDS": "0",
        }
    )
    assert settings.fusion_threshold_bytes == 0
    assert settings.stall_warning_seconds == 2.5
    assert settings.start_timeout_seconds == 7
    assert settings.log_level == "trace"
    assert settings.gpu_operations == "nccl"
    assert settings.compression == "bf16"
    assert not settings.shared_memory
    assert settings.spin_microseconds == 0


def test_an_empty_value_counts_as_unset() -> None:
    assert Settings.read({"HOROVOD_START_TIMEOUT": " "}) == Settings()


def test_stall_check_can_be_disabled_as_in_horovod() -> None:
    settings = Settings.read({"HOROVOD_STALL_CHECK_DISABLE": "1", "HOROVOD_STALL_CHECK_TIME_SECONDS": "5"})
    assert settings.stall_warning_seconds == 0


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("HOROVOD_FUSION_THRESHOLD", "64MB", "whole number"),
        ("HOROVOD_GPU_OPERATIONS", "DDL", "one of auto, nccl, staged, copy"),
        ("HOROVOD_GPU_OPERATIONS", "shared", "one of auto, nccl, staged, copy"),
        ("SPARK_ESTIMATOR_COMPRESSION", "int8", "one of none, fp16, bf16"),
        ("HOROVOD_FUSION_THRESHOLD", "-1", "whole number"),
        ("HOROVOD_FUSION_THRESHOLD", "99999999999999999999", "whole number"),
        ("HOROVOD_START_TIMEOUT", "0", "more than 0"),
        ("HOROVOD_START_TIMEOUT", "nan", "seconds"),
        ("HOROVOD_STALL_CHECK_TIME_SECONDS", "inf", "seconds"),
        ("HOROVOD_LOG_LEVEL", "loud", "trace, debug"),
        ("SPARK_ESTIMATOR_SHARED_MEMORY", "maybe", "1 or 0"),
        ("HOROVOD_THREAD_AFFINITY", "0;1", "core numbers"),
        ("SPARK_ESTIMATOR_ATTEMPT", "0", "1 or more"),
        ("SPARK_ESTIMATOR_CONNECTIONS", "0", "1 to 8"),
        ("SPARK_ESTIMATOR_CONNECTIONS", "9", "1 to 8"),
        ("SPARK_ESTIMATOR_CONNECTIONS", "two", "1 to 8"),
    ],
)
def test_a_bad_value_is_named(variable: str, value: str, expected: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"{variable}={value!r}")) as raised:
        Settings.read({variable: value})
    assert expected in str(raised.value)


def test_the_table_shows_every_variable_with_its_value() -> None:
    environ = {"HOROVOD_START_TIMEOUT": "12.5", "HOROVOD_CYCLE_TIME": "3.5", "HOROVOD_FUSION_TRESHOLD": "1"}
    decided = {"overlap": Decision(1, "2 cores for 1 rank on this host")}
    table = Settings.read(environ).describe(decided, environ)
    for field in dataclasses.fields(Settings):
        assert field.metadata["variable"] in table
        assert field.metadata["effect"] in table
    assert re.search(r"HOROVOD_START_TIMEOUT +12\.5 +environment +30 +seconds", table)
    assert re.search(r"HOROVOD_CACHE_CAPACITY +1024 +default +1024 +names", table)
    assert re.search(r"SPARK_ESTIMATOR_OVERLAP +1 +2 cores for 1 rank on this host +- +1 or 0", table)
    assert re.search(r"HOROVOD_CPU_OPERATIONS +- +gloo, for scripts", table)
    assert re.search(r"HOROVOD_CYCLE_TIME +3\.5 +the engine has no cycle", table)
    assert table.endswith("not read by anything (misspelled?): HOROVOD_FUSION_TRESHOLD")


def test_misspelled_variables_are_found_with_the_name_that_is_meant() -> None:
    environ = {
        "HOROVOD_FUSION_TRESHOLD": "1",
        "SPARK_ESTIMATOR_SILENCE_SECOND": "3",
        "HOROVOD_WITH_PYTORCH": "1",
        "A": "",
    }
    assert find_misspelled_variables(environ) == {
        "HOROVOD_FUSION_TRESHOLD": "HOROVOD_FUSION_THRESHOLD",
        "SPARK_ESTIMATOR_SILENCE_SECOND": "SPARK_ESTIMATOR_SILENCE_SECONDS",
    }


def test_what_one_variable_sets_for_another_is_shown() -> None:
    environ = {"HOROVOD_STALL_CHECK_DISABLE": "1", "HOROVOD_GLOO_TIMEOUT_SECONDS": "77"}
    settings = Settings.read(environ)
    assert settings.start_timeout_seconds == 77
    table = settings.describe(environ=environ)
    assert re.search(r"HOROVOD_STALL_CHECK_TIME_SECONDS +0 +another variable +10", table)
    assert re.search(r"HOROVOD_START_TIMEOUT +77 +another variable +30", table)
    environ["HOROVOD_START_TIMEOUT"] = "5"
    assert Settings.read(environ).start_timeout_seconds == 5


def test_horovods_variables_are_known() -> None:
    """Each is read, has its reason for not being read, or is only set for scripts; and never two of these."""
    known = [field.metadata["variable"] for field in dataclasses.fields(Settings)] + list(WITHOUT_EFFECT)
    assert len(known) == len(set(known))
    assert not SET_FOR_SCRIPTS.keys() & WITHOUT_EFFECT.keys()
    assert make_horovod_variables(Topology.of("a", 0), "a").keys() == SET_FOR_SCRIPTS.keys()


def test_what_the_engine_is_told_in_other_terms() -> None:
    settings = Settings.read(
        {
            "HOROVOD_CACHE_CAPACITY": "100000",
            "HOROVOD_THREAD_AFFINITY": "0,2",
            "HOROVOD_TIMELINE": "DYNAMIC",
        }
    )
    assert settings.cache_capacity == 8192
    assert settings.thread_affinity == (0, 2)
    assert settings.timeline == "DYNAMIC"


def test_one_late_sign_of_life_is_no_death() -> None:
    with pytest.raises(ValueError, match=r"SILENCE_SECONDS=6 must be more than twice .*HEARTBEAT_SECONDS=3"):
        Settings.read({"SPARK_ESTIMATOR_HEARTBEAT_SECONDS": "3"})
    assert Settings.read({"SPARK_ESTIMATOR_HEARTBEAT_SECONDS": "0"}).heartbeat_seconds == 0


def test_variables_for_scripts() -> None:
    topology = Topology.of(["a", "b", "a"], 2)
    assert make_horovod_variables(topology, "a") == {
        "HOROVOD_RANK": "2",
        "HOROVOD_SIZE": "3",
        "HOROVOD_LOCAL_RANK": "1",
        "HOROVOD_LOCAL_SIZE": "2",
        "HOROVOD_CROSS_RANK": "0",
        "HOROVOD_CROSS_SIZE": "1",
        "HOROVOD_HOSTNAME": "a",
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
    }


def test_collectives_read_the_environment_nowhere_else() -> None:
    package = Path(spark_estimator.__file__).parent
    sources = [package / name for name in ("_native.py", "security/authentication.py", "log.py")]
    sources += (package / "collectives").glob("*.py")
    for source in sources:
        assert not re.search(r"os\.environ|getenv", source.read_text(encoding="utf-8")), source
