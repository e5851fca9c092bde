"""A client package of Horovod's estimators over Spark Connect, in separate executors.

The program is ``tests/launch/drivers/client_fits.py``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark.sql.connect.session")
pytest.importorskip("lightning", reason="the extra 'lightning' is not installed")

from tests.launch import clusters

pytestmark = pytest.mark.slow


@pytest.mark.timeout(400)
def test_over_connect(tmp_path: Path) -> None:
    memory = {"spark.executor.memory": "1g"}
    with (
        clusters.connect_server(tmp_path, "local-cluster[2,1,1024]", memory) as address,
        clusters.driver("client_fits.py", address, str(tmp_path / "data"), folder=tmp_path) as driver,
    ):
        results = driver.wait(300)
    assert len(results["history"]) == 4  # type: ignore[arg-type]
    assert results["right"] == results["rows"] == 48
