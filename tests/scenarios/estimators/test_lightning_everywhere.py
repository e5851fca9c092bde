"""Lightning's `TorchEstimator.fit` in a separate program, whose classes are pickled to the ranks by value.

The program is ``tests/launch/drivers/lightning_fits.py``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark.sql.connect.session")
pytest.importorskip("lightning", reason="the extra 'lightning' is not installed")

from tests.launch import clusters

pytestmark = pytest.mark.slow


@pytest.mark.timeout(400)
def test_over_connect_in_executors_of_their_own(tmp_path: Path) -> None:
    memory = {"spark.executor.memory": "1g"}
    with (
        clusters.connect_server(tmp_path, "local-cluster[2,1,1024]", memory) as address,
        clusters.driver("lightning_fits.py", address, str(tmp_path / "data"), folder=tmp_path) as driver,
    ):
        results = driver.wait(300)
    assert len(results["history"]) == 2, "a callback on rank 1 ended it"  # type: ignore[arg-type]
    assert results["history"][1]["train"]["loss"] < results["history"][0]["train"]["loss"]  # type: ignore[index]
    assert results["near"] > 200  # type: ignore[operator]
    assert (tmp_path / "data" / "store" / "runs" / "run" / "checkpoint").exists()
