"""Fits that lose a rank, or are warned before: the numbers of a fit without a loss, and at most a step twice.

The program is ``recovering_fit.py``, beside this.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from tests.launch import clusters

KINDS = ("files", "rows by Spark", "cache_bytes", "transformation_fn", "decoders", "local_sgd", "diloco")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_killed_rank_costs_a_step_however_rows_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    program = Path(__file__).with_name("recovering_fit.py")
    with clusters.standalone(tmp_path, addresses=("127.0.0.1",)) as master:
        with clusters.driver(program, master, str(folder), "SIGKILL", *KINDS, folder=tmp_path) as driver:
            results: dict[str, Any] = driver.wait(860)
            output = driver.output()
    assert list(results) == list(KINDS)
    for kind, result in results.items():
        assert result["same"], kind
        steps = 4 if kind in ("local_sgd", "diloco") else 1  # of each rank, since all had the same parameters
        assert 0 < result["repeated"] <= 2 * steps, (kind, result)
        first, *others = result["places"]
        assert first in ("0-0", "0-1") and len(others) == 2, result
        assert set(others) == {f"1-{1 - int(first[-1])}"}, f"{kind}: the new process has a device of its own: {result}"
        assert result["left"] == [], "the copy of the rows is removed"
    assert output.count("lost rank 1") >= len(KINDS)
    assert "resumes from its checkpoint" not in output


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kinds", [("SIGUSR1", "files", "diloco"), ("SIGPWR", "files")], ids=lambda kinds: kinds[0])
def test_a_warned_rank_moves_between_two_steps(tmp_path: Path, kinds: tuple[str, ...]) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    program = Path(__file__).with_name("recovering_fit.py")
    reason = "it got SIGUSR1" if kinds[0] == "SIGUSR1" else "Spark decommissions its executor "
    variables = {"SPARK_ESTIMATOR_PREEMPTION_SIGNAL": "USR1"} if kinds[0] == "SIGUSR1" else {}
    with clusters.standalone(tmp_path, settings=["spark.decommission.enabled true"]) as master:
        arguments = (master, str(folder), *kinds)
        with clusters.driver(program, *arguments, folder=tmp_path, env=variables) as driver:
            results: dict[str, Any] = driver.wait(560)
            output = driver.output()
    for kind, result in results.items():
        # For the checkpoint that a warning brings, ranks that step alone exchange what they have.
        assert result["same"] or kind == "diloco", kind
        assert result["repeated"] == 0, (kind, result)
        # Of a decommissioned executor also rank 0, if it was there.
        moved = [place[0] for place in result["places"]]
        assert moved == ["0", "1", "1"] or (kinds[0] == "SIGPWR" and moved == ["0", "0", "1", "1"]), (kind, result)
    assert output.count(f"is about to lose its machine ({reason}") >= len(kinds) - 1
    assert "lost rank" not in output
