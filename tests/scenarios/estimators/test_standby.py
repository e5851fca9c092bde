"""Fits that lose an executor: a process that waits in another one takes the lost rank, or the others continue without.

The programs are ``standby_fit.py`` and ``shrinking_fit.py``, beside this.
"""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("lightning", reason="the extra 'lightning' is not installed")

from tests.launch import clusters

pytestmark = pytest.mark.slow


@pytest.mark.timeout(300)
@pytest.mark.parametrize("harm", ["killed", "warned"])
def test_a_process_on_standby_takes_the_rank_of_a_lost_executor(tmp_path: Path, harm: str) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    with clusters.driver(
        Path(__file__).with_name("standby_fit.py"), "local-cluster[3,1,1024]", str(folder), harm, folder=tmp_path
    ) as driver:
        results = driver.wait(270)
    assert results == {"same": True, "killed": True}
    lines = driver.output()
    assert lines.count("starting 1 processes that wait for the loss of a rank") >= 1
    assert ("lost rank 1" in lines) == (harm == "killed")
    assert ("rank 1 (host" in lines and "is about to lose its machine" in lines) == (harm == "warned")
    assert "round 2 starts with 2 ranks" in lines


@pytest.mark.timeout(330)
def test_a_fit_continues_without_a_lost_executor(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    with clusters.driver(
        Path(__file__).with_name("shrinking_fit.py"), "local-cluster[3,1,1024]", str(folder), folder=tmp_path
    ) as driver:
        results = driver.wait(300)
    lines = driver.output()
    assert results["killed"], lines
    # The mean of the labels 0 ... 359: each epoch has counted each row once, those of the lost rank, too.
    assert results["losses"] == pytest.approx([179.5] * 4)
    assert "lost rank 1" in lines and "round 2 starts with 2 ranks" in lines
    assert "; without 1 lost rank, not replaced in time" in lines
    assert "round 3 starts with 3 ranks" in lines
