"""``check.py`` runs on machines with a GPU; here it is looked at as far as that goes without one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.gpu import check, checks, figures, trainings

SCRIPT = Path(check.__file__)


def test_without_a_gpu_it_says_so() -> None:
    done = subprocess.run(
        [sys.executable, SCRIPT, "--only", "refusals", "--no-figures"],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == check.NO_GPU, done
    assert done.stdout.startswith("no GPU here: "), done


def test_its_arguments_are_looked_at() -> None:
    with pytest.raises(SystemExit) as caught:
        check.main(["--nonsense"])
    assert caught.value.code == 2


def test_what_it_measures_there_is(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    ways = check.ways(2)
    names = [way.name for way in ways]
    assert len(set(names)) == len(names) == len(check.ways(1)) + 1
    for wanted, _ in figures.FIGURES.values():
        assert set(wanted) <= set(names)
    # With the ranks' part left out, a check that fails makes the exit code 1.
    monkeypatch.setattr(check, "count_gpus", lambda: 1)
    monkeypatch.setattr(check, "describe_machine", lambda: "none")
    known = [*checks.CHECKS, *trainings.TRAININGS]
    monkeypatch.setattr(check, "run_ranks", lambda *_, **__: [{"told": "NCCL", **dict.fromkeys(known, "")}])
    assert check.main(["--no-figures"]) == 0
    monkeypatch.setattr(check, "run_ranks", lambda *_, **__: [{"told": "", **dict.fromkeys(known, "")}])
    assert check.main(["--no-figures"]) == 1  # nothing went from a GPU
    monkeypatch.setattr(check, "run_ranks", lambda *_, **__: [{"told": "", **dict.fromkeys(known, "it broke")}])
    assert check.main(["--no-figures", "--only", "joining"]) == 1
    assert "FAILED  joining" in capsys.readouterr().out


def test_spans_are_joined() -> None:
    assert figures.joined([(5, 6), (1, 3), (2, 4)]) == [(1, 4), (5, 6)]
