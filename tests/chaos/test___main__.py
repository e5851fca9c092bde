from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from chaos import program
from chaos.__main__ import main


def test_a_run_is_judged_and_its_seed_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """Run 180 of this seed is two local ranks without a fault."""
    assert main(["--seed", "b", "--run", "180"]) == 0
    printed = capsys.readouterr().out
    assert "chaos: SEED=b\n" in printed
    assert "chaos: 1 runs, 0 in violation (SEED=b)" in printed


def test_a_violation_is_printed_with_the_command_that_repeats_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = program.expected
    monkeypatch.setattr(program, "expected", lambda run: right(run) + 1)
    assert main(["--seed", "b", "--run", "180"]) == 1
    printed = capsys.readouterr().out
    assert re.search(
        r"VIOLATION wrong numbers: \d+ instead of \d+\n  repeat it with: make chaos SEED=b RUN=180\n", printed
    )


def test_a_job_that_does_not_end_is_a_violation(tmp_path: Path) -> None:
    """Also one whose messages are collected: run 7 of this seed is elastic."""
    hanging = (
        "from chaos import __main__, jobs; jobs.HANG_SECONDS = 0.05; __main__.main(['--seed', 'a51c2', '--run', '7'])"
    )
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", hanging]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 1
    assert "VIOLATION the job did not end" in done.stdout, done.stderr
    assert "run_elastic_local" in done.stderr


def test_no_time_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--seconds", "0"])
    assert "--seconds 0: expected a number above 0." in capsys.readouterr().err


def test_without_a_seed_each_time_has_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        assert main(["--plan", "--count", "1"]) == 0
    first, second = re.findall(r"chaos: SEED=(\w+)", capsys.readouterr().out)
    assert first != second
