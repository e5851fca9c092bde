"""The benchmark of recovery kills a rank in each way, and compares numbers."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from benchmarks import namespaces

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_one_kill_each() -> None:
    arguments = ("--np", "2", "--kills", "1", "--step-ms", "10", "--steps", "100", "--epochs", "2", "--keep", "20")
    command = [sys.executable, "-m", "benchmarks.recovery", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    for way in ("replaced", "restarted"):
        assert re.search(rf"^{way}: 1 kills .*numbers the same$", done.stdout, re.MULTILINE), done.stdout
    twice = re.search(r"^replaced: .* ([\d.]+) batches computed twice", done.stdout, re.MULTILINE)
    assert twice and float(twice[1]) <= 1


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_the_cost_without_a_loss() -> None:
    command = [sys.executable, "-m", "benchmarks.recovery.cost", "--steps", "60", "--rounds", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert re.search(r"^difference: -?\d+\.\d+ ms; numbers the same$", done.stdout, re.MULTILINE), done.stdout


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("place", "way"), [("hosts", "replaced"), ("spark", "replaced"), ("spark", "warned")])
def test_a_kill_of_an_executor_and_of_a_host_and_a_warning(place: str, way: str) -> None:
    if place == "spark":
        pytest.importorskip("pyspark")
    else:
        try:
            namespaces.Network.open(1).close()
        except namespaces.UnavailableError as error:
            pytest.skip(str(error))
    arguments = ("--np", "2", "--kills", "1", "--step-ms", "10", "--steps", "300", "--epochs", "2", "--standby", "1")
    command = [sys.executable, "-m", "benchmarks.recovery", "--place", place, "--ways", way, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    line = {"replaced": "replaced: 1 kills .*", "warned": r"warned: 1 warnings .* 0\.00 batches computed twice.*"}[way]
    assert re.search(f"{line}numbers the same$", done.stdout, re.MULTILINE), done.stdout


def test_ways_and_places_that_do_not_go_together() -> None:
    command = [sys.executable, "-m", "benchmarks.recovery", "--place", "hosts", "--ways", "restarted"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 2 and "needs --place local" in done.stderr
