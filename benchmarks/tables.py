"""Formats measurements as a text table, a Markdown table, and JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from benchmarks.interleaved import Line

_LEADING_WIDTHS = (13, 8, 10)  # op, dtype, bytes


class Ratio(NamedTuple):
    """A column that divides one subject's time by another's."""

    over: str
    under: str

    @property
    def title(self) -> str:
        return f"{self.over}/{self.under}"


def cells(lines: Sequence[Line], subjects: Sequence[str], ratios: Sequence[Ratio]) -> list[list[str]]:
    """The rows of the table, header first: op, dtype, bytes, a column per subject (microseconds), and per ratio.

    A broadcast has a second row, ``broadcast@0``, with the time of rank 0: the root finishes much earlier than the
    slowest rank. A dash means that the subject does not support the op.
    """
    ratios = [ratio for ratio in ratios if ratio.over in subjects and ratio.under in subjects]
    rows = [["op", "dtype", "bytes", *subjects, *(ratio.title for ratio in ratios)]]
    for line in lines:
        slowest = {name: figure.us for name, figure in line.figures.items()}
        rows.append(_row(line, line.form.op, slowest, subjects, ratios))
        if line.form.op == "broadcast":
            root = {name: figure.rank0_us for name, figure in line.figures.items()}
            rows.append(_row(line, "broadcast@0", root, subjects, ratios))
    return rows


def text(rows: Sequence[Sequence[str]], head: Sequence[str]) -> str:
    """Formats rows with the column widths of `head`, so that rows can be printed one at a time."""
    widths = [_LEADING_WIDTHS[column] if column < 3 else max(9, len(title)) for column, title in enumerate(head)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Formats the table in Markdown."""
    head, *body = rows
    rule = ["---" if column < 2 else "--:" for column in range(len(head))]
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, rule, *body])


def plain(lines: Sequence[Line]) -> list[dict[str, object]]:
    """All measurements as JSON values; times in microseconds."""
    return [
        {
            **asdict(line.form),
            "subjects": {name: asdict(figure) for name, figure in line.figures.items()},
            "not_offered": dict(line.refusals),
        }
        for line in lines
    ]


def write_json(path: Path, document: Mapping[str, object]) -> None:
    """Writes `document` to a file, or to standard output if `path` is ``-``."""
    text = json.dumps(document, indent=2)
    if str(path) == "-":
        print(text)
    else:
        path.write_text(text + "\n", encoding="utf-8")


def _row(
    line: Line, op: str, times: Mapping[str, float], subjects: Sequence[str], ratios: Sequence[Ratio]
) -> list[str]:
    row = [op, line.form.dtype, str(line.form.bytes)]
    row += [_microseconds(times[name]) if name in times else "-" for name in subjects]
    for ratio in ratios:
        known = ratio.over in times and ratio.under in times and times[ratio.under] > 0
        row.append(f"{times[ratio.over] / times[ratio.under]:.2f}" if known else "-")
    return row


def _microseconds(time: float) -> str:
    """Formats with three or more significant digits."""
    return f"{time:.0f}" if time >= 1000 else f"{time:.1f}" if time >= 10 else f"{time:.3f}"
