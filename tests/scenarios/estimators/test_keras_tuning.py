"""`KerasEstimator` among Spark ML's own: a pipeline, folds over a grid, saved and loaded; and a large model's way back.

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


@pytest.mark.timeout(400)
def test_folds_over_a_pipeline_and_the_way_back_through_a_store(tmp_path: Path) -> None:
    with clusters.driver("keras_tuning.py", str(tmp_path / "data"), folder=tmp_path) as driver:
        found: dict[str, Any] = dict(driver.wait(350))
    bad, good = found["folds"]
    assert bad < 0.2 and good > 0.8, found
    assert found["tuned"] == found["loaded"] == found["again"] > 0.8
    assert found["history"] == ["accuracy", "loss"]
    assert found["grid"] == [[1e-9], [0.5]]
    assert found["shares"] < 1e-6
    assert found["by the store"]
    assert "[0]<stdout>:A=of the backend\n" in found["lines"]
    assert found["stopped"].startswith("PreflightError: fit(): the DataFrame's Spark session has been stopped"), found
