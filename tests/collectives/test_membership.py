"""The membership of a job of one rank: its engine, its numbers and its timelines."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spark_estimator._native import Op
from spark_estimator.collectives import membership as membership_module
from spark_estimator.collectives.call import Call
from spark_estimator.collectives.connections.connection import RankGroup
from spark_estimator.collectives.engine import Engine
from spark_estimator.collectives.membership import EngineStarter, Membership
from spark_estimator.collectives.rendezvous import Topology, host_id
from spark_estimator.collectives.requests import submit
from spark_estimator.env import Settings
from spark_estimator.errors import HorovodInternalError, ShutDownError

Join = Callable[..., Membership]


@pytest.fixture
def join() -> Iterator[Join]:
    """Makes a membership of a job of one rank, with settings."""
    with contextlib.ExitStack() as stack:

        def make(**fields: object) -> Membership:
            settings = Settings(**fields)  # type: ignore[arg-type]
            starter = EngineStarter(None, settings, contextlib.nullcontext())
            membership = Membership(starter, Topology.of([host_id()], 0), settings, [])
            stack.callback(membership.shutdown)
            return membership

        yield make


def test_each_kind_is_counted_until_it_restarts(join: Join) -> None:
    membership = join()
    kinds = ["optimizer.a", "optimizer.a", "optimizer.b", "state"]
    assert [membership.take_number(kind) for kind in kinds] == [0, 1, 0, 0]
    membership.restart_numbers("optimizer.")
    assert [membership.take_number(kind) for kind in kinds] == [0, 1, 0, 1]


def test_progress_counts_the_submitted_collectives(join: Join) -> None:
    membership = join()
    before = membership._starter.measure_progress()[0]
    submit(membership.engine, Call(Op.BARRIER, "x"), [], None).wait()
    assert membership._starter.measure_progress() == (before + 1, 0.0, "")


def test_a_timeline_is_started_and_stopped(join: Join, tmp_path: Path) -> None:
    membership = join()
    path = str(tmp_path / "timeline.json")
    membership.start_timeline(path, mark_cycles=False)
    with pytest.raises(ValueError, match="timeline"):
        membership.start_timeline(path, mark_cycles=False)
    membership.stop_timeline()
    membership.stop_timeline()
    assert json.loads(Path(path).read_text())
    with pytest.raises(HorovodInternalError, match="nowhere"):
        membership.start_timeline(str(tmp_path / "nowhere" / "timeline.json"), mark_cycles=False)


def test_a_timeline_from_the_settings_begins_with_the_engine(join: Join, tmp_path: Path) -> None:
    membership = join(timeline=str(tmp_path / "timeline.json"))
    assert (tmp_path / "timeline.json").exists()
    membership.shutdown()
    assert json.loads((tmp_path / "timeline.json").read_text())


def test_a_timeline_that_cannot_be_written_does_not_end_the_job(
    join: Join, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "spark_estimator"):
        membership = join(timeline=str(tmp_path / "nowhere" / "timeline.json"))
    assert "no timeline is written" in caplog.text
    submit(membership.engine, Call(Op.BARRIER, "x"), [], None).wait()


def test_without_a_thread_for_an_engine_it_is_shut_down(monkeypatch: pytest.MonkeyPatch) -> None:
    engines: list[Engine] = []

    def fail(await_question: Callable[[float], int | None], *_args: object) -> None:
        engines.append(await_question.__self__)  # type: ignore[attr-defined]
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(membership_module, "StackReporter", fail)
    with pytest.raises(RuntimeError, match="new thread"):
        EngineStarter(None, Settings(), contextlib.nullcontext()).start(RankGroup.job(1))
    with pytest.raises(ShutDownError):
        submit(engines[0], Call(Op.BARRIER, "x"), [], None)


def test_a_starter_knows_only_engines_that_are_alive() -> None:
    starter = EngineStarter(None, Settings(), contextlib.nullcontext())
    engine = starter.start(RankGroup.job(1))
    assert starter._list_engines() == [engine]
    engine.shutdown()
    del engine
    assert starter._list_engines() == []
