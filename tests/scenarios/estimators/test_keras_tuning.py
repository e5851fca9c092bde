"""`KerasEstimator` among Spark ML's own: a pipeline, folds over a grid, saved and loaded; and the return of a large
model.

The program is ``tests/launch/drivers/keras_tuning.py``: Keras' backend is chosen once in a process.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("keras")
pytest.importorskip("pyspark")

from tests.launch import clusters

pytestmark = pytest.mark.slow


@pytest.mark.timeout(400)
def test_folds_over_a_pipeline_and_the_way_back_through_a_store(tmp_path: Path) -> None:
    with clusters.driver("keras_tuning.py", str(tmp_path / "data"), folder=tmp_path) as driver:
        results: dict[str, Any] = dict(driver.wait(350))
    bad, good = results["folds"]
    assert bad < 0.2 and good > 0.8, results
    assert results["tuned"] == results["loaded"] == results["again"] > 0.8
    assert results["history"] == ["accuracy", "loss"]
    assert results["grid"] == [[1e-9], [0.5]]
    assert results["shares"] < 1e-6
    assert results["by the store"]
    assert "[0]<stdout>:A=of the backend\n" in results["lines"]
    assert results["stopped"].startswith("PreflightError: fit(): the DataFrame's Spark session has been stopped"), (
        results
    )
