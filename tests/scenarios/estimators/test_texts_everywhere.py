"""`TransformersEstimator` over Spark Connect. The program is ``tests/launch/drivers/text_fits.py``."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark.sql.connect.session")
pytest.importorskip("transformers", reason="the extra 'transformers' is not installed")

from tests.launch import clusters

pytestmark = pytest.mark.slow


@pytest.mark.timeout(500)
def test_over_connect(tmp_path: Path) -> None:
    with (
        clusters.connect_server(tmp_path) as address,
        clusters.driver("text_fits.py", address, str(tmp_path), folder=tmp_path) as driver,
    ):
        results = driver.wait(400)
    assert len(results["history"]) == 8  # type: ignore[arg-type]
    assert results["right"] >= 28  # type: ignore[operator]
    assert (tmp_path / "model" / "model.safetensors").exists()
