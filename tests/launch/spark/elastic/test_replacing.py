"""Jobs on Spark that replace lost ranks one by one: what each loss costs, and the error when there are too many."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from spark_estimator import env
from spark_estimator.errors import WorkerFailedError
from spark_estimator.launch.job.attempts import Limits
from spark_estimator.launch.job.options import JobOptions
from spark_estimator.launch.spark.entry import run_in_session

pytestmark = [pytest.mark.usefixtures("functions_travel_by_value", "spark"), pytest.mark.timeout(120)]


def counted(folder: str, deaths: int) -> tuple[int, str, int]:
    """Ten commits, in a job whose rank 1 dies at a commit in its first `deaths` processes."""
    from spark_estimator.collectives import arrays, context
    from spark_estimator.collectives.objects import broadcast_object
    from spark_estimator.elastic import ObjectState, run_fn
    from spark_estimator.elastic.run import rejoin
    from spark_estimator.observe.training_records import send_record

    context.init()
    state = ObjectState(lambda value: broadcast_object(value, 0), context.rank, steps=0)

    def steps(state: Any) -> int:
        while state.steps < 10:
            arrays.barrier()
            if context.rank() == 1 and state.steps >= 4 and len(list(Path(folder).iterdir())) < deaths:
                Path(folder, str(os.getpid())).touch()
                os.kill(os.getpid(), signal.SIGKILL)
            state.steps += 1
            state.commit()
        return int(state.steps)

    done = run_fn(steps, rejoin)(state)
    if context.rank() == 0:
        send_record({"done": done})
    return context.rank(), os.environ[env.ATTEMPT_VARIABLE], os.getpid()


def run(folder: Path, deaths: int, restarts: int, **more: Any) -> list[Any]:
    options = JobOptions(args=(str(folder), deaths), limits=Limits(restarts, timedelta(seconds=100)), **more)
    return run_in_session(counted, 2, options, caller="the test", recovers=True)


def test_a_lost_rank_is_replaced_and_the_other_stays(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    records: list[Mapping[str, Any]] = []
    results = run(tmp_path, 1, 1, take_record=lambda rank, record: records.append({"rank": rank, **record}))
    assert [result[:2] for result in results] == [(0, "1"), (1, "1")]
    assert records == [{"rank": 0, "done": 10}]
    lines = capfd.readouterr().err
    assert "lost rank 1 (host " in lines and "round 2 starts with 2 ranks" in lines and "attempt" not in lines


def test_each_replacement_takes_one_restart(tmp_path: Path) -> None:
    with pytest.raises(WorkerFailedError) as failure:
        run(tmp_path, 3, 2)
    text = str(failure.value)
    assert text.startswith("rank 1 (host ") and "was killed by signal 9" in text.splitlines()[0]
    assert "The job continued 2 times after a loss (each takes one of max_restarts)" in text
    assert (failure.value.kind, failure.value.rank, len(list(tmp_path.iterdir()))) == ("killed", 1, 3)


def test_without_restarts_it_is_an_ordinary_job(tmp_path: Path) -> None:
    with pytest.raises(WorkerFailedError, match="was killed by signal 9"):
        run(tmp_path, 1, 0)
    assert len(list(tmp_path.iterdir())) == 1
