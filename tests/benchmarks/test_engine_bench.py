"""The program that measures the engine alone prints the documented lines, in every one of its modes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks import programs
from benchmarks.namespaces import UnavailableError

pytestmark = pytest.mark.slow

OPS = ["allreduce", "broadcast", "allgather", "reducescatter", "alltoall", "barrier"]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        return programs.engine_bench(tmp_path_factory.mktemp("engine_bench"))
    except UnavailableError as error:
        pytest.skip(str(error))


def run(program: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program, *words], capture_output=True, text=True, timeout=100)


def figures(program: Path, *words: str) -> Any:
    done = run(program, *words, "--json", "-")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("channel", [[], ["--tcp"]])
def test_every_op_size_and_variant_has_a_figure(program: Path, channel: list[str]) -> None:
    whole = figures(program, "--np", "3", "--bytes", "4,9000", "--seconds", "0.005", *channel)
    assert (whole["ranks"], whole["channel"]) == (3, "loopback TCP" if channel else "shared memory")
    expected = [(op, size) for op in OPS[:-1] for size in (4, 9000)] + [("barrier", 0)]
    assert [(result["op"], result["bytes"]) for result in whole["results"]] == expected
    for result in whole["results"]:
        variants = {"plan", "run", "submit"} | (set() if channel else {"shared"})
        assert set(result["subjects"]) == variants | ({"bound"} if result["op"] in ("allreduce", "alltoall") else set())
        for figure in result["subjects"].values():
            assert 0 < figure["rank0_us"] <= figure["us"] * 1.001 and figure["blocks"] >= 3


def test_busy_processes_come_with_a_job_that_does_not_spin(program: Path) -> None:
    words = ["--foreign", "1", "--op", "allreduce", "--bytes", "64", "--variant", "plan", "--seconds", "0.005"]
    (result,) = figures(program, *words)["results"]
    assert set(result["subjects"]) == {"plan", "plan, no spin"}


def test_costs_are_told(program: Path) -> None:
    whole = figures(program, "--idle", "0.1", "--wait", "0.1", "--memory", "--names", "5")
    assert 0 <= whole["idle_percent"] <= 100 and whole["idle_wake_ups"] >= 0
    assert 0 <= whole["wait_percent"] <= 100
    assert 0 < whole["resident_mebibytes"] < 1024 and 0 < whole["proportional_mebibytes"] < 1024


@pytest.mark.parametrize("words", [["--op", "scan"], ["--np", "0"], ["--bytes", "many"], ["--np"], ["--fast", "1"]])
def test_arguments_that_mean_nothing_are_refused(program: Path, words: list[str]) -> None:
    done = run(program, *words)
    assert done.returncode == 1 and words[0] in done.stderr and not done.stdout
