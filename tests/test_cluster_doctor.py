"""What ``doctor --cluster`` makes of reports, how executors meet, and what it finds on real clusters."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import spark_estimator
from spark_estimator.doctor.findings import Finding, Severity
from spark_estimator.doctor.meeting import Meeting, callers, sharers
from spark_estimator.doctor.table import table_of
from spark_estimator.doctor.verdicts import CHECKS, MIB, DriverSide, findings_of
from tests.launch import clusters

HERE = DriverSide("3.11.2", "0.1.0", {"torch": "2.13.0", "numpy": "2.1", "pyarrow": "20.0", "pyspark": "4.3.0"})


def report(partition: int = 0, executor: str = "a:1", host: str = "a", **found: Any) -> dict[str, Any]:
    """What a task reports where all is well, but for `found`."""
    return {
        "partition": partition,
        "executor": executor,
        "host": host,
        "task_cpus": 1,
        "python": {"version": "3.11.2", "executable": "/usr/bin/python3"},
        "package": {"version": "0.1.0", "path": "/site/spark_estimator"},
        "packages": dict(HERE.packages),
        "engine": {"build": "ABI 1"},
        "driver": {"address": "10.0.0.1:5", "clock": 0.01, "clock_within": 0.002},
        "disk": {"folder": "/tmp", "free": 50_000 * MIB},
        "memory": {"free": 5000 * MIB},
        "cores": {"usable": 4},
        "gpus": {"given": [], "visible": None, "there": []},
        "meeting": {"reached": [], "unreached": {}, "shared": None, "sharing_trouble": ""},
        **found,
    }


def test_two_executors_that_have_everything() -> None:
    met = {"reached": ["b:1"], "unreached": {}, "shared": None, "sharing_trouble": ""}
    other = {"reached": ["a:1"], "unreached": {}, "shared": None, "sharing_trouble": ""}
    found = findings_of(HERE, [report(meeting=met), report(1, "b:1", "b", meeting=other)])
    assert [finding.name for finding in found] == [*CHECKS, *CHECKS]
    assert {finding.executor for finding in found} == {"a:1", "b:1"}
    assert {finding.state for finding in found} == {Severity.OK}, [
        str(one) for one in found if one.state is not Severity.OK
    ]
    text = table_of(found)
    assert text.splitlines()[1].split() == ["executor", *CHECKS]
    assert text.splitlines()[2].split() == ["a:1", *["ok"] * len(CHECKS)]
    assert text.endswith("All that a job needs is on 2 executors.")


GPU = ["0", "GPU-abc", "NVIDIA H200"]


@pytest.mark.parametrize(
    ("changed", "name", "state", "says", "fix"),
    [
        ({"package": {"error": "No module named 'x'"}}, "wheel", "missing", "cannot be imported: No", "0.1.0 in /u"),
        ({"package": {"version": "0.0.9", "path": "/p"}}, "wheel", "missing", "0.0.9 in /p, and 0.1.0 here", "install"),
        ({"python": {"version": "3.12.1", "executable": "/p"}}, "python", "missing", "cannot travel", "PYSPARK_PYTHON"),
        ({"python": {"version": "3.11.9", "executable": "/p"}}, "python", "note", "and 3.11.2 here", ""),
        ({"packages": {"torch": "", "numpy": "2.1"}}, "packages", "missing", "torch missing", "torch==2.13.0"),
        ({"packages": {"torch": "2.9", "numpy": "2.1"}}, "packages", "note", "torch 2.9 (2.13.0 here)", "same"),
        ({"engine": {"error": "signal 4"}}, "engine", "missing", "signal 4", "wheel of this platform"),
        ({"driver": {"error": "timed out"}}, "driver", "note", "timed out", "spark.driver.host"),
        ({"driver": {"error": "timed out"}}, "clock", "note", "was not reached", ""),
        ({"driver": {"address": "a:1", "clock": -9.0, "clock_within": 1}}, "clock", "note", "9.000 s behind", "chrony"),
        ({"driver": {"address": "a:1", "clock": 2.0, "clock_within": 1.5}}, "clock", "ok", "give or take 1.500", ""),
        ({"meeting": {"error": "no address"}}, "peers", "missing", "no address", "SPARK_LOCAL_IP"),
        ({"meeting": {"reached": [], "unreached": {"b:2": "10.0.0.2 port 7: timed out"}}}, "peers", "missing",
         "cannot connect to b:2 (10.0.0.2 port 7: timed out)", "all ports"),
        ({"meeting": {"shared": False, "sharing_trouble": "refused"}}, "sharing", "note", "refused", "over TCP"),
        ({"disk": {"folder": "/tmp", "free": 3 * MIB}}, "disk", "missing", "3 MiB free in /tmp", "TMPDIR"),
        ({"disk": {"folder": "/tmp", "free": 300 * MIB}}, "disk", "note", "300 MiB", "TMPDIR"),
        ({"disk": {"error": "read-only"}}, "disk", "missing", "read-only", "TMPDIR"),
        ({"memory": {"free": 100 * MIB}}, "memory", "note", "100 MiB free", "memoryOverhead"),
        ({"gpus": {"given": [], "visible": None, "there": [GPU]}}, "gpus", "note", "NVIDIA H200", "gpu.amount"),
        ({"gpus": {"given": ["0"], "visible": "4,5", "there": [GPU]}}, "gpus", "ok", "of CUDA_VISIBLE_DEVICES=4,5", ""),
        ({"gpus": {"given": ["0"], "visible": None, "there": []}}, "gpus", "note", "no nvidia-smi to ask", ""),
        ({"task_cpus": 8}, "cores", "note", "4 usable, 1 slots on this host x 8", "spark.executor.cores"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_remedy(
    changed: dict[str, Any], name: str, state: str, says: str, fix: str
) -> None:
    [found] = [one for one in findings_of(HERE, [report(**changed)]) if one.name == name]
    assert found.state.name.lower() == state, found
    assert says in found.text and fix in found.fix and bool(fix) == bool(found.fix), found


def test_what_was_found_alike_stands_once_below_the_matrix() -> None:
    bad = {"package": {"version": "0.0.9", "path": "/p"}, "meeting": {"reached": ["x"] * 2, "unreached": {}}}
    found = findings_of(HERE, [report(n, f"{n}:1", str(n), **bad) for n in range(3)])
    text = table_of([Finding("session", Severity.OK, "Spark 4"), *found])
    assert text.count("spark_estimator 0.0.9 in /p") == 1
    assert "MISSING  wheel            everywhere: " in text and text.endswith("Missing: wheel.")
    some = table_of(findings_of(HERE, [report(**bad), report(1, "b:1", "b")]))
    assert "wheel            a:1: spark_estimator 0.0.9" in some


def test_without_barrier_stages_executors_are_looked_at_and_do_not_meet() -> None:
    alone = report()
    del alone["meeting"]
    found = {one.name: one for one in findings_of(DriverSide("3.11.2", "0.1.0", {}, barrier=False), [alone])}
    assert found["peers"].state is Severity.NOTE and "not tried" in found["peers"].text


@pytest.mark.timeout(240)
def test_tasks_that_do_not_start_together_still_report(spark: Any) -> None:
    from spark_estimator.doctor.survey import _Survey, examine_cluster

    found = examine_cluster(spark, timedelta(seconds=120))
    assert [next(found).name for _ in range(4)] == ["session", "barrier stages", "encryption", "slots"], (
        "before the job"
    )
    reports = _Survey(spark, 2, barrier=False).run(timedelta(seconds=120))
    assert [one["partition"] for one in reports] == [0, 1]
    assert all("meeting" not in one and "clock" in one["driver"] for one in reports), reports


def told(executor: str, host: str, port: int = 1) -> dict[str, Any]:
    return {"executor": executor, "host_id": host, "port": port, "local_name": "x" * port}


def test_one_task_stands_for_each_executor_and_two_of_each_host_share_memory() -> None:
    everyone = [told("a", "h"), told("a", "h"), told("b", "h"), told("c", "i"), {"executor": "d"}]
    assert callers(everyone) == {"a": 0, "b": 2, "c": 3}
    assert sharers(everyone) == [(0, 2)]
    assert sharers(everyone[:2]) == [(0, 1)]
    assert callers([{"executor": "d"}]) == {}


@pytest.fixture
def meetings() -> Iterator[list[Meeting]]:
    key = b"k" * 32
    made = [Meeting(f"127.0.0.1:{number}", key, 5.0) for number in range(2)]
    made.append(Meeting("127.0.0.1:2", b"z" * 32, 5.0))
    yield made
    for meeting in made:
        meeting.close()


def test_executors_that_cannot_be_reached_are_named(meetings: list[Meeting]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        closed = gone.getsockname()[1]
    everyone = [meeting.facts for meeting in meetings]
    everyone.append({**everyone[0], "executor": "gone:1", "port": closed, "host_id": "other"})
    found = meetings[0].meet(everyone, 0)
    assert found["reached"] == ["127.0.0.1:1"]
    assert set(found["unreached"]) == {"127.0.0.1:2", "gone:1"}
    assert "127.0.0.1 port" in found["unreached"]["127.0.0.1:2"], "it holds another key"
    assert f"127.0.0.1 port {closed}: " in found["unreached"]["gone:1"]
    assert found["shared"] is None, "the other one takes the segment"
    assert json.loads(json.dumps(found)) == found


def test_a_segment_is_passed_and_written_to(meetings: list[Meeting]) -> None:
    found = meetings[1].meet([meeting.facts for meeting in meetings[:2]], 1)
    assert (found["shared"], found["sharing_trouble"]) == (True, "")
    found = meetings[1].meet([meetings[2].facts, meetings[1].facts], 1)
    assert found["shared"] is False and "AuthenticationError" in found["sharing_trouble"]


def shadow(folder: Path) -> None:
    """A copy of our package that says it is of the version in the file `version`, and a torch 9.9.9 beside it."""
    shutil.copytree(clusters.ROOT / "spark_estimator", folder / "spark_estimator", ignore=skip_caches)
    (folder / "version").write_text(spark_estimator.__version__)
    init = folder / "spark_estimator" / "__init__.py"
    init.write_text(f"{init.read_text()}\n__version__ = open({str(folder / 'version')!r}).read()\n")
    (folder / "torch-9.9.9.dist-info").mkdir()
    (folder / "torch-9.9.9.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 9.9.9\n")


skip_caches = shutil.ignore_patterns("__pycache__")


@pytest.mark.timeout(400)
def test_executors_with_other_packages_than_the_driver(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    executors = tmp_path / "executors"
    shadow(executors)
    with clusters.driver("doctored.py", str(executors), "local-cluster[2,1,1024]", folder=tmp_path) as driver:
        found: Any = driver.wait(300)
        output = driver.output()
    first = {(row["executor"], row["name"]): row for row in found["torch differs"]["rows"]}
    assert len({executor for executor, _ in first} - {""}) == 2
    for (executor, name), row in first.items():
        if name == "packages":
            assert row["state"] == "note" and "torch 9.9.9 (2.13" in row["text"], row
        elif name == "peers":
            assert (row["state"], row["text"]) == ("ok", "all 1 others were reached"), row
        elif name == "sharing":
            assert (row["state"], row["text"]) == ("ok", "two tasks of this host share memory"), row
        elif name == "wheel":
            assert row["state"] == "ok" and str(executors) in row["text"], row
        elif name in ("python", "engine", "driver", "clock", "slots", "barrier stages"):
            assert row["state"] == "ok", (executor, row)
    second = [row for row in found["ours differs"]["rows"] if row["name"] == "wheel"]
    assert [row["state"] for row in second] == ["MISSING", "MISSING"]
    assert f"spark_estimator 0.0.9 in {executors}/spark_estimator, and {found['package']} here" in second[0]["text"]
    assert found["torch differs"]["job"] == 1
    assert output.count("differ, which may do harm: torch 9.9.9 on ") == 1, "once, by the first rank"
    assert "runs spark_estimator 0.0.9, but the driver runs 0.1.0" in found["ours differs"]["job"], output
