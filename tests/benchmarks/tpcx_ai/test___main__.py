"""The command for the use cases: a line and a result for each, and an error where quality is missing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("keras")

from benchmarks.interleaved import BenchmarkError
from benchmarks.tpcx_ai import __main__ as command
from benchmarks.tpcx_ai.use_case import PHASES, Result


def test_lines_and_levels(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    good = Result(5, 1, 100, 25, dict.fromkeys(PHASES, 1.5), "mean squared logarithmic error", 0.02, 0.05)
    ran: list[tuple[Any, ...]] = []

    def in_process(*arguments: Any) -> Result:
        ran.append(arguments)
        return replace(good, ranks=arguments[1], quality=0.02 * arguments[1] ** 2)

    monkeypatch.setattr(command, "_in_process", in_process)
    command.main(["--case", "5", "--np", "1,2", "--rows", "100", "--json", str(tmp_path / "out.json")])
    assert ran == [(5, 1, 100, None), (5, 2, 100, None)]
    assert capsys.readouterr().out.splitlines()[2].split()[:7] == ["5", "1", "100", "1.5", "1.5", "1.5", "1.5"]
    runs = json.loads((tmp_path / "out.json").read_text())["runs"]
    assert [run["quality"] for run in runs] == [0.02, 0.08]
    with pytest.raises(BenchmarkError, match=r"use case 5 with 2 ranks .* error 0\.080, and 0\.05 is the level"):
        command.main(["--case", "5"])


def test_a_program_that_fails() -> None:
    with pytest.raises(BenchmarkError, match=r"(?s)use case 3 with 1 ranks failed:.*KeyError: 3"):
        command._in_process(3, 1)
