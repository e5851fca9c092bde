"""A fit of Lightning's estimator that loses an executor: a process that waits in another one takes the lost rank.

The program is ``standby_fit.py``, beside this.
"""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("lightning", reason="the extra 'lightning' is not installed")

from tests.launch import clusters

pytestmark = pytest.mark.slow


@pytest.mark.timeout(180)
def test_a_lost_executor_costs_a_step(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    with clusters.driver(
        Path(__file__).with_name("standby_fit.py"), "local-cluster[3,1,1024]", str(folder), folder=tmp_path
    ) as driver:
        results = driver.wait(150)
    assert results == {"same": True, "killed": True}
    lines = driver.output()
    assert lines.count("starting 1 processes that wait for the loss of a rank") >= 1
    assert "lost rank 1" in lines and "round 2 starts with 2 ranks" in lines
