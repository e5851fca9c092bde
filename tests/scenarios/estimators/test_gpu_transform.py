"""`transform` where Spark gives tasks GPUs by a discovery script, with a stand-in for CUDA."""

from __future__ import annotations

import stat
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("torch")

from tests.launch import clusters

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What the driver program printed: rows for each choice of a device."""
    folder = tmp_path_factory.mktemp("gpus")
    script = folder / "gpus.sh"
    script.write_text('#!/bin/sh\necho \'{"name": "gpu", "addresses": ["0", "1"]}\'\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    with clusters.driver("gpu_transform.py", str(folder), folder=folder) as driver:
        return driver.wait(280)


@pytest.mark.parametrize("choice", ["auto", "cuda"])
def test_each_task_predicts_on_the_gpu_that_spark_gave_it(results: Any, choice: str) -> None:
    rows = results[choice]
    assert all(row["device"] == row["address"] for row in rows), rows
    assert {row["device"] for row in rows} == {0, 1}
    assert len({row["process"] for row in rows}) > 2, "two tasks at a time share a GPU"


def test_cpu_forbids_gpus(results: Any) -> None:
    assert {row["device"] for row in results["cpu"]} == {-1}
    assert {row["address"] for row in results["cpu"]} == {0, 1}


def test_the_bits_of_a_cpu_stay(results: Any) -> None:
    assert all(row["same"] for rows in results.values() for row in rows)
