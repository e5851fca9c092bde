"""Prints the findings on a cluster's executors: a matrix of executors and checks, and below it each problem once."""

from __future__ import annotations

from collections.abc import Sequence

from spark_estimator.doctor.findings import Finding, Severity

# More of them would hide what was found on them.
_MOST_NAMED = 4


def format_table(findings: Sequence[Finding]) -> str:
    """Return the report of ``doctor.cluster`` for people, below the lines on the session as a whole."""
    lines: list[str] = []
    on_executors = [finding for finding in findings if finding.executor]
    if on_executors:
        lines = ["", *_format_matrix(on_executors), "", *_format_details(on_executors)]
    missing = list(dict.fromkeys(finding.name for finding in findings if finding.state is Severity.MISSING))
    if missing:
        lines += ["", f"Missing: {', '.join(missing)}."]
    else:
        count = len({finding.executor for finding in on_executors})
        lines += ["", f"Everything that a job needs is present on {count} executor{'s' * (count != 1)}."]
    return "\n".join(lines)


def _format_matrix(findings: Sequence[Finding]) -> list[str]:
    names = list(dict.fromkeys(finding.name for finding in findings))
    rows: dict[str, dict[str, str]] = {}
    for finding in findings:
        rows.setdefault(finding.executor, {})[finding.name] = finding.state.value
    cells = [["executor", *names], *([executor, *map(row.__getitem__, names)] for executor, row in rows.items())]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]


def _format_details(findings: Sequence[Finding]) -> list[str]:
    """List problems first, then the rest; equal findings of several executors appear once."""
    alike: dict[tuple[str, Severity, str, str], list[str]] = {}
    for finding in sorted(findings, key=lambda finding: list(Severity).index(finding.state), reverse=True):
        alike.setdefault((finding.name, finding.state, finding.text, finding.fix), []).append(finding.executor)
    everywhere = len({finding.executor for finding in findings})
    lines = []
    for (name, state, text, fix), executors in alike.items():
        if state is Severity.OK:
            continue
        named = ", ".join(executors[:_MOST_NAMED])
        more = f" and {len(executors) - _MOST_NAMED} more" if len(executors) > _MOST_NAMED else ""
        location = "everywhere" if len(executors) == everywhere > 1 else f"{named}{more}"
        lines.append(str(Finding(name, state, f"{location}: {text}", fix)))
    return lines
