"""Cells of a notebook over Apache Livy, as its shell for Python runs them."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("torch")

from tests.launch import clusters

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def test_functions_and_models_of_cells(tmp_path: Path) -> None:
    """They belong to no module: the cells' names have no ``__name__``."""
    with clusters.driver("cells.py", "local-cluster[2,1,1024]", folder=tmp_path) as driver:
        assert driver.wait(300) == {"run": 12, "fit": 20}
