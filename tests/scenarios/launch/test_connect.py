"""The core of `test_spark_everywhere` on a real Spark Connect server: a job, a failure that is named, and a fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.launch import clusters


@pytest.mark.timeout(240)
def test_jobs_and_a_fit_over_spark_connect(tmp_path: Path) -> None:
    with clusters.connect_server(tmp_path) as address:
        with clusters.driver("connect_cases.py", address, folder=tmp_path) as driver:
            results: dict[str, Any] = driver.wait(200)
            output = driver.output()
    assert results["value"] == 15.0
    assert "[0]<stdout>:rank 0 adds" in output and "[1]<stdout>:rank 1 adds" in output
    failure = results["failure"]
    assert (failure["rank"], failure["kind"]) == (1, "raised")
    assert "raised ValueError: rank 1 has had enough" in failure["text"]
    assert results["fit"]["rows"] == 400 and results["fit"]["furthest off"] < 0.1
