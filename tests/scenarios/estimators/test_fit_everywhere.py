"""`TorchEstimator.fit` in a separate program on a Spark Connect server: from files, through a store, in folds.

The program, ``tests/launch/drivers/fits.py``, takes any master; the other kinds of Spark differ in how ranks are
started, which ``tests/scenarios/launch/test_spark_everywhere.py`` tries on each.
"""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark.sql.connect.session")
pytest.importorskip("torch")

from tests.launch import clusters

pytestmark = pytest.mark.slow


@pytest.mark.timeout(500)
def test_fit_over_connect(tmp_path: Path) -> None:
    with (
        clusters.connect_server(tmp_path) as address,
        clusters.driver("fits.py", address, str(tmp_path / "data"), folder=tmp_path) as driver,
    ):
        results = driver.wait(400)
        output = driver.output()
    assert "Parquet files (300 rows) directly" in str(results["lines"])
    assert results["files"]["history"][1]["train"]["loss"] < results["files"]["history"][0]["train"]["loss"]  # type: ignore[index]
    assert "spark_estimator: lost rank 1 (host " in output and "attempt 1 of 2" not in output
    assert results["killed"] == results["undisturbed"], "bit for bit, after the loss of a rank"
    assert {Path(name).name for name in results["left"]} == {"attempt.json", "checkpoint"}  # type: ignore[attr-defined]
    (error,) = results["folds"]["errors"]  # type: ignore[index]
    assert error < 0.2
    assert results["folds"]["rows"] == 300  # type: ignore[index]
    assert results["categories"] == {"known": {"city": ["city 0", "city 1", "city 2"]}, "right": [True] * 5}
