"""Findings from the reports of tasks."""

from __future__ import annotations

from typing import Any

import pytest

from spark_estimator.doctor.findings import Severity
from spark_estimator.doctor.table import format_table
from spark_estimator.doctor.verdicts import CHECKS, MIB, DriverSide, judge_reports
from tests.doctor.reports import HERE, report


def test_two_executors_that_have_everything() -> None:
    met = {"reached": ["b:1"], "unreached": {}, "shared": None, "sharing_trouble": ""}
    other = {"reached": ["a:1"], "unreached": {}, "shared": None, "sharing_trouble": ""}
    findings = judge_reports(HERE, [report(meeting=met), report(1, "b:1", "b", meeting=other)])
    assert [finding.name for finding in findings] == [*CHECKS, *CHECKS]
    assert {finding.executor for finding in findings} == {"a:1", "b:1"}
    assert {finding.state for finding in findings} == {Severity.OK}, [
        str(finding) for finding in findings if finding.state is not Severity.OK
    ]
    text = format_table(findings)
    assert text.splitlines()[1].split() == ["executor", *CHECKS]
    assert text.splitlines()[2].split() == ["a:1", *["ok"] * len(CHECKS)]
    assert text.endswith("Everything that a job needs is present on 2 executors.")


GPU = ["0", "GPU-abc", "NVIDIA H200"]


@pytest.mark.parametrize(
    ("changed", "name", "state", "text", "fix"),
    [
        ({"package": {"error": "No module named 'x'"}}, "wheel", "missing", "cannot be imported: No", "0.1.0 in /u"),
        ({"package": {"version": "0.0.9", "path": "/p"}}, "wheel", "missing", "0.0.9 in /p, and 0.1.0 here", "install"),
        ({"python": {"version": "3.12.1", "executable": "/p"}}, "python", "missing", "be pickled", "PYSPARK_PYTHON"),
        ({"python": {"version": "3.11.9", "executable": "/p"}}, "python", "note", "and 3.11.2 here", ""),
        ({"packages": {"torch": "", "numpy": "2.1"}}, "packages", "missing", "torch missing", "torch==2.13.0"),
        ({"packages": {"torch": "2.9", "numpy": "2.1"}}, "packages", "note", "torch 2.9 (2.13.0 here)", "same"),
        ({"engine": {"error": "signal 4"}}, "engine", "missing", "signal 4", "wheel for this platform"),
        ({"driver": {"error": "timed out"}}, "driver", "note", "timed out", "spark.driver.host"),
        ({"driver": {"error": "timed out"}}, "clock", "note", "was not reached", ""),
        ({"driver": {"address": "a:1", "clock": -9.0, "clock_within": 1}}, "clock", "note", "9.000 s behind", "chrony"),
        ({"driver": {"address": "a:1", "clock": 2.0, "clock_within": 1.5}}, "clock", "ok", "give or take 1.500", ""),
        ({"meeting": {"error": "no address"}}, "peers", "missing", "no address", "SPARK_LOCAL_IP"),
        ({"meeting": {"reached": [], "unreached": {"b:2": "10.0.0.2 port 7: timed out"}}}, "peers", "missing",
         "cannot connect to b:2 (10.0.0.2 port 7: timed out)", "all ports"),
        ({"meeting": {"shared": False, "sharing_trouble": "refused"}}, "sharing", "note", "refused", "use TCP"),
        ({"disk": {"folder": "/tmp", "free": 3 * MIB}}, "disk", "missing", "3 MiB free in /tmp", "TMPDIR"),
        ({"disk": {"folder": "/tmp", "free": 300 * MIB}}, "disk", "note", "300 MiB", "TMPDIR"),
        ({"disk": {"error": "read-only"}}, "disk", "missing", "read-only", "TMPDIR"),
        ({"memory": {"free": 100 * MIB}}, "memory", "note", "100 MiB free", "memoryOverhead"),
        ({"gpus": {"given": [], "visible": None, "there": [GPU]}}, "gpus", "note", "NVIDIA H200", "gpu.amount"),
        ({"gpus": {"given": ["0"], "visible": "4,5", "there": [GPU]}}, "gpus", "ok", "of CUDA_VISIBLE_DEVICES=4,5", ""),
        ({"gpus": {"given": ["0"], "visible": None, "there": []}}, "gpus", "note", "unknown without nvidia-smi", ""),
        ({"task_cpus": 8}, "cores", "note", "4 usable, 1 slots on this host x 8", "spark.executor.cores"),
    ],
)  # fmt: skip
def test_a_problem_is_reported_with_its_remedy(
    changed: dict[str, Any], name: str, state: str, text: str, fix: str
) -> None:
    [finding] = [finding for finding in judge_reports(HERE, [report(**changed)]) if finding.name == name]
    assert finding.state.name.lower() == state, finding
    assert text in finding.text and fix in finding.fix and bool(fix) == bool(finding.fix), finding


def test_without_barrier_stages_executors_are_looked_at_and_do_not_meet() -> None:
    alone = report()
    del alone["meeting"]
    findings = {
        finding.name: finding for finding in judge_reports(DriverSide("3.11.2", "0.1.0", {}, barrier=False), [alone])
    }
    assert findings["peers"].state is Severity.NOTE and "not tried" in findings["peers"].text
