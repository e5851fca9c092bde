"""Ranks' lines if executors do not reach the driver: through shared files while they run, or the last at the end."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

import spark_estimator.spark
from spark_estimator import HorovodRunner
from spark_estimator.env import Settings
from spark_estimator.observe.driver_log import log_to_driver

pytestmark = pytest.mark.usefixtures("functions_travel_by_value")

SECONDS = 60


@pytest.fixture
def unreachable(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session whose executors cannot connect to the driver."""
    monkeypatch.setenv("SPARK_ESTIMATOR_DRIVER_CHANNEL", "0")


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + SECONDS
    while not path.exists():
        assert time.monotonic() < deadline, f"nobody has made {path} within {SECONDS} s"
        time.sleep(0.02)


def speak(count: int) -> str:
    for number in range(count):
        print(f"line {number}\r")
    print("not so good", file=sys.stderr)
    log_to_driver(f"from {os.environ['HOROVOD_RANK']}\x1b[31m\nin two lines")
    return "value"


@pytest.mark.usefixtures("unreachable")
def test_a_shared_folder_shows_all_lines_while_they_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SPARK_ESTIMATOR_LOG_DIR", str(tmp_path / "logs"))
    seen = tmp_path / "seen"

    def main() -> str:
        print("first", flush=True)
        wait_for(seen)  # the driver has shown it while this runs
        return speak(20_000)

    class Screen:
        """Records what is shown, and notifies the ranks of the first line."""

        text = ""

        def write(self, text: str) -> None:
            self.text += text
            if "first" in text:
                seen.touch()

    screen = Screen()
    assert spark_estimator.spark.run(main, num_proc=2, stdout=screen, verbose=0) == ["value"] * 2
    output, errors = capfd.readouterr()
    for rank in (0, 1):
        rank_lines = [line for line in screen.text.splitlines() if line.startswith(f"[{rank}]<stdout>:")]
        assert rank_lines == [f"[{rank}]<stdout>:{text}" for text in ["first", *(f"line {n}" for n in range(20_000))]]
        assert f"[{rank}]<stderr>:not so good\n" in errors
        assert f"[{rank}] from {rank}\\x1b[31m\n[{rank}] in two lines\n" in output
    assert errors.count("the executors can't connect to the driver") == 1
    assert f"the ranks' lines are sent through files in {tmp_path / 'logs'}" in errors
    assert "line 0" not in errors, "the executors' logs, here the same screen, are for what goes nowhere else"


@pytest.mark.usefixtures("unreachable")
@pytest.mark.parametrize("folder", [None, "/proc/no/such/folder"])
def test_without_one_the_last_lines_come_at_the_end(
    folder: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if folder is not None:
        monkeypatch.setenv("SPARK_ESTIMATOR_LOG_DIR", folder)
    assert HorovodRunner(np=2, driver_log_verbosity="all").run(speak, count=120) == "value"
    output, errors = capsys.readouterr()
    for rank in (0, 1):
        rank_lines = [line for line in output.splitlines() if line.startswith(f"[{rank}]<stdout>:")]
        assert rank_lines[0] == f"[{rank}]<stdout>:[72 earlier lines are in its executor's log]"
        assert rank_lines[1:] == [f"[{rank}]<stdout>:line {number}" for number in range(72, 120)]
        assert f"[{rank}]<stderr>:not so good\n" in errors
        assert f"[{rank}] from {rank}\\x1b[31m\nin two lines\n" in output
    if folder is None:
        assert errors.count("the executors can't connect to the driver: the last 50 lines of each rank") == 1
    else:
        assert errors.count("could not write its lines to a file (SPARK_ESTIMATOR_LOG_DIR)") == 2
        assert folder in errors


@pytest.mark.usefixtures("unreachable")
def test_what_is_meant_for_the_driver_comes_at_any_verbosity(capsys: pytest.CaptureFixture[str]) -> None:
    HorovodRunner(np=2).run(speak, count=5)
    output, errors = capsys.readouterr()
    assert "line" not in output.replace("in two lines", "")
    assert "[0] from 0" in output and "[1] from 1" in output
    assert errors.count("the last 50 log_to_driver messages of each rank") == 1
    HorovodRunner(np=2).run(lambda: None)
    assert "reach" not in capsys.readouterr().err, "nothing was to be shown"


@pytest.mark.parametrize("folder", ["dbfs:/logs", "s3://bucket/logs", "logs"])
def test_what_is_no_path_for_all_hosts_is_refused(folder: str) -> None:
    with pytest.raises(ValueError, match=f"SPARK_ESTIMATOR_LOG_DIR='{folder}': expected an absolute path"):
        Settings.read({"SPARK_ESTIMATOR_LOG_DIR": folder})
