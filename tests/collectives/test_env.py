"""Settings: every variable is read once, checked, printed, and named when it is wrong."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

import spark_estimator
from spark_estimator.collectives.rendezvous import Topology
from spark_estimator.env import Settings, horovod_variables


def test_defaults() -> None:
    settings = Settings.read({})
    assert settings == Settings()
    assert settings.fusion_threshold_bytes == 128 << 20
    assert settings.stall_warning_seconds == 60
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
            "SPARK_ESTIMATOR_SHARED_MEMORY": "0",
            "SPARK_ESTIMATOR_SPIN_MICROSECONDS": "0",
        }
    )
    assert settings.fusion_threshold_bytes == 0
    assert settings.stall_warning_seconds == 2.5
    assert settings.start_timeout_seconds == 7
    assert settings.log_level == "trace"
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
        ("HOROVOD_FUSION_THRESHOLD", "-1", "whole number"),
        ("HOROVOD_FUSION_THRESHOLD", "99999999999999999999", "whole number"),
        ("HOROVOD_START_TIMEOUT", "0", "more than 0"),
        ("HOROVOD_START_TIMEOUT", "nan", "seconds"),
        ("HOROVOD_STALL_CHECK_TIME_SECONDS", "inf", "seconds"),
        ("HOROVOD_LOG_LEVEL", "loud", "trace, debug"),
        ("SPARK_ESTIMATOR_SHARED_MEMORY", "maybe", "1 or 0"),
    ],
)
def test_a_bad_value_is_named(variable: str, value: str, expected: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"{variable}={value!r}")) as raised:
        Settings.read({variable: value})
    assert expected in str(raised.value)


def test_the_table_shows_every_variable_with_its_value() -> None:
    table = Settings.read({"HOROVOD_START_TIMEOUT": "12.5"}).describe()
    for field in dataclasses.fields(Settings):
        assert field.metadata["variable"] in table
        assert field.metadata["effect"] in table
    assert re.search(r"HOROVOD_START_TIMEOUT +12\.5 +30 +seconds", table)


def test_variables_for_scripts() -> None:
    topology = Topology.of(["a", "b", "a"], 2)
    assert horovod_variables(topology, "a") == {
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
    sources = [package / name for name in ("_native.py", "authentication.py", "log.py")]
    sources += (package / "collectives").glob("*.py")
    for source in sources:
        assert not re.search(r"os\.environ|getenv", source.read_text(encoding="utf-8")), source
