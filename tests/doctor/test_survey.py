"""``doctor --cluster`` on real clusters."""

from __future__ import annotations

import json
import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import spark_estimator
from spark_estimator import __main__ as verbs
from spark_estimator import doctor
from spark_estimator.errors import PreflightError
from tests.launch import clusters


@pytest.mark.timeout(240)
def test_tasks_that_do_not_start_together_still_report(spark: Any) -> None:
    from spark_estimator.doctor.survey import _Survey, examine_cluster

    findings = examine_cluster(spark, timedelta(seconds=120))
    assert [next(findings).name for _ in range(4)] == ["session", "barrier stages", "encryption", "slots"], (
        "before the job"
    )
    spark.conf.set("spark.spark_estimator.barrier", "false")
    try:
        findings = examine_cluster(spark, timedelta(seconds=120))
        assert [next(findings).text for _ in range(2)][1].startswith("not used here: ranks start one by one")
    finally:
        spark.conf.unset("spark.spark_estimator.barrier")
    reports = _Survey(spark, 2, barrier=False, encrypted=True).run(timedelta(seconds=120))
    assert [report["partition"] for report in reports] == [0, 1]
    assert all("meeting" not in report and "clock" in report["driver"] for report in reports), reports


@pytest.mark.timeout(240)
def test_speed_of_a_session(spark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    speed = doctor.speed(spark, parameters=1000)
    assert (speed.ranks, speed.links, speed.parameters) == (2, (), 1000)
    assert verbs.main(["doctor", "--cluster", "--speed", "--parameters", "2K", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] and report["speed"]["parameters"] == 2000 and report["speed"]["ranks"] == 2
    assert [row["name"] for row in report["findings"]][-4:] == ["links", "allreduce", "gradients", "turn on"]
    with pytest.raises(ValueError, match="parameters must be an int, 1 or more; got 0"):
        doctor.speed(spark, parameters=0)


class StoppedSession:
    """As a session is after ``stop()``."""

    is_stopped = True


def test_speed_of_a_stopped_session() -> None:
    with pytest.raises(PreflightError, match="this Spark session has been stopped"):
        doctor.speed(StoppedSession())  # type: ignore[arg-type]


def shadow(folder: Path) -> None:
    """A copy of this package with the version in the file `version`, and a torch 9.9.9 beside it."""
    shutil.copytree(clusters.ROOT / "spark_estimator", folder / "spark_estimator", ignore=skip_caches)
    (folder / "version").write_text(spark_estimator.__version__)
    init = folder / "spark_estimator" / "__init__.py"
    init.write_text(f"{init.read_text()}\n__version__ = open({str(folder / 'version')!r}).read()\n")
    (folder / "torch-9.9.9.dist-info").mkdir()
    (folder / "torch-9.9.9.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 9.9.9\n")


skip_caches = shutil.ignore_patterns("__pycache__")


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_executors_with_other_packages_than_the_driver(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    executors = tmp_path / "executors"
    shadow(executors)
    with clusters.driver("doctored.py", str(executors), "local-cluster[2,1,1024]", folder=tmp_path) as driver:
        results: Any = driver.wait(300)
        output = driver.output()
    first = {(row["executor"], row["name"]): row for row in results["torch differs"]["rows"]}
    assert len({executor for executor, _ in first} - {""}) == 2
    for (executor, name), row in first.items():
        if name == "packages":
            assert row["state"] == "note" and "torch 9.9.9 (2.13" in row["text"], row
        elif name == "peers":
            assert (row["state"], row["text"]) == ("ok", "the other one was reached"), row
        elif name == "sharing":
            assert (row["state"], row["text"]) == ("ok", "two tasks of this host share memory"), row
        elif name == "wheel":
            assert row["state"] == "ok" and str(executors) in row["text"], row
        elif name in ("python", "engine", "driver", "clock", "slots", "barrier stages"):
            assert row["state"] == "ok", (executor, row)
    second = [row for row in results["ours differs"]["rows"] if row["name"] == "wheel"]
    assert [row["state"] for row in second] == ["MISSING", "MISSING"]
    assert f"spark_estimator 0.0.9 in {executors}/spark_estimator, and {results['package']} here" in second[0]["text"]
    assert results["torch differs"]["job"] == 1
    assert output.count("which may cause errors: torch 9.9.9 on ") == 1, "once, by the first rank"
    assert "runs spark_estimator 0.0.9, but the driver runs 0.1.0" in results["ours differs"]["job"], output
