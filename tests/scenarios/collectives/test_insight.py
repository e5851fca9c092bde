"""The reports of a running job: stalls with stacks, timelines, counters, the last ops before a failure."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

from spark_estimator.launch.log_relay.lines import LastLines
from tests.ranks import run_ranks, start_ranks


def test_a_stall_names_the_missing_rank_and_what_it_is_doing() -> None:
    def stalls(rank: int) -> None:
        import time

        import numpy

        from spark_estimator.collectives import arrays, context

        def busy_with_something_else() -> None:
            time.sleep(4)

        context.init(process_sets="dynamic")
        pair = context.add_process_set([1, 2])
        array, later = numpy.ones(3), None
        other, name = numpy.ones(3), "DistributedOptimizer.1.bucket.0"
        unfetched = arrays.allreduce_into(other, other, arrays.ReduceOp.SUM, "done and not fetched")
        if rank == 2:
            later = arrays.allreduce_into(array, array, arrays.ReduceOp.SUM, name, process_set=pair)
            busy_with_something_else()
        if rank:
            arrays.allreduce(numpy.ones(3), name="waited for", process_set=pair)
        arrays.allreduce(numpy.ones(3), name="waited for")
        if rank == 1:
            later = arrays.allreduce_into(array, array, arrays.ReduceOp.SUM, name, process_set=pair)
        if later is not None:
            later.wait()
        unfetched.wait()
        assert not context.engine().pending and not (rank and context.engine(pair).pending)

    environ = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "1"}
    with start_ranks(3, stalls, environ=environ) as ranks:
        outcomes = ranks.wait()
    assert all(outcome.returned for outcome in outcomes), outcomes
    # Rank 0 is the job's coordinator, and rank 1 that of the pair.
    for output in (outcomes[0].output, outcomes[1].output):
        assert "'waited for'" in output, output
        assert "rank 2" in output, output
        assert "busy_with_something_else" in output, output
        assert "It is not waiting in a collective. It has submitted, without waiting for the result: " in output, output
        assert "result: allreduce 'DistributedOptimizer.1.bucket.0' of process set 1 (" in output, output
        assert "The number in 'DistributedOptimizer.1' counts the ones that this rank made before" in output, output
    assert "other ranks are waiting for rank 2, this rank. It is not waiting in a collective" in outcomes[2].output


def events_of(path: Path) -> list[dict[str, Any]]:
    return [event for event in json.loads(path.read_text()) if event]


def test_a_timeline_from_the_start(tmp_path: Path) -> None:
    def traced(rank: int) -> None:
        import numpy

        from spark_estimator.collectives import arrays, context
        from spark_estimator.collectives.process_set import ProcessSet

        pair = ProcessSet([0, 1])
        context.init(process_sets=[pair])
        for _ in range(5):
            arrays.allreduce(numpy.ones(3), name="gradient")
        if rank < 2:
            arrays.broadcast(numpy.ones(3), name="of the set", process_set=pair)

    run_ranks(3, traced, environ={"HOROVOD_TIMELINE": str(tmp_path / "trace.json")})
    names = {"trace.json", "trace.rank1.json", "trace.rank2.json", "trace.set1.json", "trace.set1.rank1.json"}
    assert {path.name for path in tmp_path.iterdir()} == names
    for path in tmp_path.iterdir():
        wanted = "of the set" if "set1" in path.name else "gradient"
        assert wanted in path.read_text(), path
        assert events_of(path)


def test_a_timeline_for_a_while(tmp_path: Path) -> None:
    def traced(rank: int, folder: str) -> None:
        import os

        import numpy
        import pytest

        from spark_estimator.collectives import arrays, context
        from spark_estimator.errors import HorovodInternalError

        context.init(process_sets="dynamic")
        context.stop_timeline()
        arrays.allreduce(numpy.ones(3), name="before")
        for wrong in ("", os.path.join(folder, "no such folder", "trace.json")):
            with pytest.raises((ValueError, HorovodInternalError)):
                context.start_timeline(wrong)
        for number in range(2):
            context.start_timeline(os.path.join(folder, f"{number}.json"), mark_cycles=True)
            with pytest.raises(ValueError, match="timeline"):
                context.start_timeline(os.path.join(folder, "another.json"))
            added = context.add_process_set([0])
            arrays.allreduce(numpy.ones(3), name=f"during {number}")
            if rank == 0:
                arrays.allreduce(numpy.ones(3), name=f"alone {number}", process_set=added)
            context.remove_process_set(added)
            context.stop_timeline()
            context.stop_timeline()
        arrays.allreduce(numpy.ones(3), name="after")

    run_ranks(2, traced, args=(str(tmp_path),), environ={"HOROVOD_TIMELINE": "DYNAMIC"})
    made = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert set(made) == {name for n in range(2) for name in (f"{n}.json", f"{n}.rank1.json", f"{n}.set{n + 1}.json")}
    for name, text in made.items():
        json.loads(text)
        assert f"{'alone' if 'set' in name else 'during'} {name[0]}" in text
        assert "before" not in text
        assert "after" not in text


def test_a_timeline_that_cannot_be_written_ends_no_training(tmp_path: Path) -> None:
    def trains(rank: int) -> None:
        import numpy

        from spark_estimator.collectives import arrays, context

        context.init()
        arrays.allreduce(numpy.ones(3))

    environ = {"HOROVOD_TIMELINE": str(tmp_path / "no such folder" / "trace.json")}
    with start_ranks(2, trains, environ=environ) as ranks:
        outcomes = ranks.wait()
    for outcome in outcomes:
        assert outcome.returned, outcome
        assert "no timeline is written" in outcome.output
        assert "no such folder" in outcome.output


def test_the_last_ops_are_told_once_when_a_rank_is_lost() -> None:
    def loses(rank: int) -> int:
        import os
        import signal

        import numpy

        from spark_estimator.collectives import arrays, context
        from spark_estimator.errors import PeerLostError

        context.init()
        for number in range(50):
            arrays.allreduce(numpy.ones(3), name=f"gradient {number}")
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        failed = 0
        for number in range(3):
            try:
                arrays.allreduce(numpy.ones(3), name=f"after {number}")
            except PeerLostError:
                failed += 1
        return failed

    with start_ranks(2, loses) as ranks:
        survivor, killed = ranks.wait()
    assert killed.exit_code == -signal.SIGKILL
    assert survivor.value == 3, survivor
    assert survivor.output.count("recorded operations") == 1, survivor
    assert "the last 3 of " in survivor.output
    assert "gradient 49" in survivor.output
    assert "gradient 46" not in survivor.output
    # A launcher's report of a failure has other things to show.
    last = LastLines(40)
    for line in ["before", *survivor.output.splitlines(), "after"]:
        last.add("stderr", line)
    assert next(iter(last)) == "before" and list(last)[-1] == "after" and "gradient 49" not in "\n".join(last)


def test_counters_and_descriptions() -> None:
    def counts(rank: int) -> None:
        import numpy
        import pytest

        from spark_estimator.collectives import arrays, context

        context.init()
        engine = context.engine()
        before = engine.counters()
        for number in range(100):
            arrays.allreduce(numpy.ones(3), name="again")
            arrays.allreduce(numpy.ones(100_000), name=f"new {number % 2}")
        after = engine.counters()
        assert after["requests"] - before["requests"] == 200
        assert after["cache_hits"] - before["cache_hits"] >= 150
        assert after["shared_memory"] == 1
        assert engine.read_counter("no such counter") == -1
        assert "allreduce" in engine.describe("algorithms").lower()
        recorded = engine.describe("flight_recorder")
        assert "again" in recorded.rstrip().splitlines()[-2]
        assert "new 1" in recorded.rstrip().splitlines()[-1]
        with pytest.raises(ValueError, match="something else"):
            engine.describe("something else")

    run_ranks(2, counts)
