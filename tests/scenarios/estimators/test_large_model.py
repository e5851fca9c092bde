"""`transform` with a model that a message of Spark Connect has no room for; the workers of a host share its memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark.sql.connect.session")
pytest.importorskip("torch")

from tests.launch import clusters

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_over_connect(tmp_path: Path) -> None:
    with (
        clusters.connect_server(tmp_path, "local-cluster[1,2,1024]", {"spark.executor.memory": "1g"}) as address,
        clusters.driver("large_model.py", address, folder=tmp_path) as driver,
    ):
        rows: Any = driver.wait(250)["rows"]
    assert len(rows) == 128 and all(row["same"] for row in rows)
    assert all(row["mapped"] > 150 for row in rows), "the numbers are those of the file"
    assert all(row["copied"] < 1 for row in rows), "all workers map one copy"
