"""``horovodrun``'s flags become settings of the ranks and terms of an elastic job."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from spark_estimator.elastic.decisions import Terms
from spark_estimator.env import Settings
from spark_estimator.launch.cli.flags import parse_arguments, to_environment, to_terms


def test_flags_become_settings() -> None:
    flags = ["--fusion-threshold-mb", "3", "--start-timeout", "9", "--no-stall-check", "--log-level", "debug"]
    flags += ["--stall-check-warning-time-seconds", "5", "--stall-check-shutdown-time-seconds", "8"]
    _, options = parse_arguments(["-np", "2", *flags, "true"])
    assert to_environment(options) == {
        "HOROVOD_FUSION_THRESHOLD": str(3 << 20),
        "HOROVOD_START_TIMEOUT": "9",
        "HOROVOD_STALL_CHECK_DISABLE": "1",
        "HOROVOD_STALL_CHECK_TIME_SECONDS": "5",
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "8",
        "HOROVOD_LOG_LEVEL": "DEBUG",
    }
    flags = ["--no-hierarchical-allreduce", "--no-autotune", "--timeline-filename", "t.json", "--timeline-mark-cycles"]
    flags += ["--autotune-log-file", "a.csv", "--thread-affinity", "0,1", "--log-without-timestamp", "--stall-check"]
    _, options = parse_arguments(["-np", "2", *flags, "true"])
    assert to_environment(options) == {
        "HOROVOD_HIERARCHICAL_ALLREDUCE": "0",
        "HOROVOD_TIMELINE": "t.json",
        "HOROVOD_TIMELINE_MARK_CYCLES": "1",
        "HOROVOD_THREAD_AFFINITY": "0,1",
        "HOROVOD_LOG_HIDE_TIME": "1",
        "HOROVOD_STALL_CHECK_DISABLE": "0",
    }
    Settings.read(to_environment(options))


def test_flags_of_an_elastic_job(monkeypatch: pytest.MonkeyPatch) -> None:
    def terms(*flags: str) -> Terms | None:
        return to_terms(parse_arguments(["-np", "3", *flags, "true"])[1])

    assert terms() is None
    assert terms("--min-np", "2") == Terms(3, 2)
    assert terms("--max-num-proc", "4") == Terms(3, 3, replace=True, max_size=4)
    monkeypatch.setenv("HOROVOD_ELASTIC_TIMEOUT", "7")
    assert terms("--min-num-proc", "1", "--reset-limit", "5") == Terms(3, 1, False, 5, timedelta(seconds=7))
    assert terms("--min-np", "1", "--elastic-timeout", "9") == Terms(3, 1, timeout=timedelta(seconds=9))


def test_the_command_line_wins_over_the_config_file(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("timeline:\n  filename: of the file\n  mark-cycles: true\n")
    flags = ["-np", "2", "--config-file", str(config), "--timeline-filename", "of the line", "python", "-np", "7"]
    _, options = parse_arguments(flags)
    assert (options.num_proc, options.command) == (2, ["python", "-np", "7"])
    assert to_environment(options) == {"HOROVOD_TIMELINE": "of the line", "HOROVOD_TIMELINE_MARK_CYCLES": "1"}


@pytest.mark.parametrize("flags", [["--reset-limit", "1"], ["--elastic-timeout", "5"]])
def test_an_option_of_elastic_jobs_alone_is_an_error(flags: list[str]) -> None:
    with pytest.raises(ValueError, match=f"{flags[0]} needs an elastic job: set --min-np"):
        to_terms(parse_arguments(["-np", "2", *flags, "true"])[1])
