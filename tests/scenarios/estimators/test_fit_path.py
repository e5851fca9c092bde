"""A DataFrame's path through ``fit`` and ``transform``: it hardly ever returns to a file that it has left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

for name in ("torch", "keras", "lightning", "pyspark"):
    pytest.importorskip(name)

ROOT = Path(__file__).resolve().parents[3]
MOST_RETURNS = 8


def returns(path: list[str]) -> int:
    """How often the path enters a file that it has left before."""
    return sum(file in path[:position] for position, file in enumerate(path))


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, list[str]]]:
    """By framework, and by the source of the rows. In a separate process, as Keras' backend is chosen once."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.scenarios.estimators.fit_path", tmp_path_factory.mktemp("path")],
        cwd=ROOT,
        env={**os.environ, "KERAS_BACKEND": "torch"},
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr
    imported: dict[str, dict[str, list[str]]] = json.loads(done.stdout.splitlines()[-1])
    return imported


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("case", ["through Spark", "files", "materialized"])
@pytest.mark.parametrize("framework", ["torch", "keras", "lightning"])
def test_a_data_frame_goes_down_once(paths: dict[str, dict[str, list[str]]], framework: str, case: str) -> None:
    path = paths[framework][case]
    assert "estimators/estimator.py" in path and "estimators/rows/sampling.py" in path
    assert "estimators/rows/row_source.py" in path
    assert returns(path) <= MOST_RETURNS, path


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_data_frame_that_is_predicted_stays_in_the_model(paths: dict[str, dict[str, list[str]]]) -> None:
    path = paths["torch"]["transform"]
    assert path[0] == "estimators/model.py"
    assert returns(path) <= MOST_RETURNS // 2, path


def test_returns_are_counted() -> None:
    assert returns(["a", "b", "a", "b", "c", "a"]) == 3
    assert returns(["a", "b", "c"]) == 0
