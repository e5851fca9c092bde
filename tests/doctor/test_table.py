"""The matrix of executors and checks."""

from __future__ import annotations

from spark_estimator.doctor.findings import Finding, Severity
from spark_estimator.doctor.table import table_of
from spark_estimator.doctor.verdicts import findings_of
from tests.doctor.reports import HERE, report


def test_findings_with_the_same_text_are_listed_once_below_the_matrix() -> None:
    bad = {"package": {"version": "0.0.9", "path": "/p"}, "meeting": {"reached": ["x"] * 2, "unreached": {}}}
    findings = findings_of(HERE, [report(n, f"{n}:1", str(n), **bad) for n in range(3)])
    text = table_of([Finding("session", Severity.OK, "Spark 4"), *findings])
    assert text.count("spark_estimator 0.0.9 in /p") == 1
    assert "MISSING  wheel            everywhere: " in text and text.endswith("Missing: wheel.")
    some = table_of(findings_of(HERE, [report(**bad), report(1, "b:1", "b")]))
    assert "wheel            a:1: spark_estimator 0.0.9" in some
