"""The matrix of executors and checks."""

from __future__ import annotations

from spark_estimator.doctor.findings import Finding, Severity
from spark_estimator.doctor.table import format_table
from spark_estimator.doctor.verdicts import judge_reports
from tests.doctor.reports import HERE, report


def test_findings_with_the_same_text_are_listed_once_below_the_matrix() -> None:
    bad = {"package": {"version": "0.0.9", "path": "/p"}, "meeting": {"reached": ["x"] * 2, "unreached": {}}}
    findings = judge_reports(HERE, [report(n, f"{n}:1", str(n), **bad) for n in range(3)])
    text = format_table([Finding("session", Severity.OK, "Spark 4"), *findings])
    assert text.count("spark_estimator 0.0.9 in /p") == 1
    assert "MISSING  wheel            everywhere: " in text and text.endswith("Missing: wheel.")
    some = format_table(judge_reports(HERE, [report(**bad), report(1, "b:1", "b")]))
    assert "wheel            a:1: spark_estimator 0.0.9" in some
