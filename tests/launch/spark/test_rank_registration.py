"""The driver collects the facts of all supervisors, or all supervisors use Spark's exchange."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta

import pytest

pytest.importorskip("pyspark")

from spark_estimator.errors import AuthenticationError
from spark_estimator.launch.spark import rank_registration
from spark_estimator.launch.spark.rank_registration import DriverRegistration, RankRegistration, send_to_all
from spark_estimator.observe import frames
from tests.observe.test_channel import Side


class Gathered(Side):
    """A server that collects facts."""

    def __init__(self, size: int = 3) -> None:
        super().__init__(size)
        self.gathering = RankRegistration(size, self.server.send)

    def tell(self) -> None:
        """Takes one frame of facts."""
        partition, frame = self.next()
        if frame["kind"] == frames.GATHER:
            self.gathering.give_up("said so")
        else:
            self.gathering.add(partition, frame["facts"])


@pytest.fixture
def gathered() -> Iterator[Gathered]:
    made = Gathered()
    yield made
    made.server.close()


def test_all_supervisors_get_all_facts(gathered: Gathered) -> None:
    ends = [gathered.connect(partition) for partition in range(3)]
    for partition in (2, 0, 1):
        ends[partition].send(frames.FACTS, facts=f"of {partition}")
        gathered.tell()
    for end in ends:
        assert end.wait_for_answer() == {"kind": frames.EVERYONE, "facts": ["of 0", "of 1", "of 2"]}
    ends[0].send(frames.FACTS, facts="again")
    gathered.tell()
    answer = ends[0].wait_for_answer()
    assert answer is not None and answer["kind"] == frames.GATHER, "a task that Spark has started again"
    for end in ends:
        end.close()


@pytest.mark.parametrize("why", ["nobody came", "one went to Spark"])
def test_facts_that_cannot_be_brought_together_go_through_spark(
    gathered: Gathered, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = [gathered.connect(partition) for partition in range(3)]
    for end in ends[:2]:
        end.send(frames.FACTS, facts="x")
        gathered.tell()
    gathered.gathering.expire()
    if why == "nobody came":
        monkeypatch.setattr(rank_registration, "PATIENCE", timedelta(0))
        gathered.gathering.expire()
    else:
        ends[2].send(frames.GATHER)
        gathered.tell()
    for end in ends[:2]:
        answer = end.wait_for_answer()
        assert answer is not None and answer["kind"] == frames.GATHER
    for end in ends:
        end.close()


def test_facts_that_are_too_many_for_a_frame_come_in_several() -> None:
    sent: dict[int, list[list[str]]] = {0: [], 1: [], 2: []}
    facts = ["a" * 400_000, "b" * 400_000, "c"]
    send_to_all(facts, lambda partition, kind, fields: sent[partition].append(fields["facts"]))
    parts = [facts[:1], facts[1:]]
    assert sent == {0: parts, 1: parts, 2: parts}
    assert all(
        len(frames.encode({"kind": frames.EVERYONE, "facts": part})) <= frames.MAX_FRAME_BYTES for part in sent[0]
    )


def test_a_result_that_spark_has_lost_is_known_by_the_task_that_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    registration = DriverRegistration(2, lambda *_: None)
    registration.approve(1)
    assert registration.remove(1), "no rank runs"
    for partition in (0, 1):
        registration.add(partition, "facts")
    assert not registration.remove(1)
    with pytest.raises(AuthenticationError):
        registration.approve(1)
    assert registration.find_repeated(1) == [], "a rank still runs"
    assert registration.find_repeated(0) == [], "Spark may be about to end the copy"
    monkeypatch.setattr(rank_registration, "RESULTS_ARE_THERE", timedelta(0))
    assert registration.find_repeated(0) == [], "the last attempt came long ago"
    monkeypatch.setattr(rank_registration, "RESULTS_ARE_THERE", timedelta(seconds=1))
    registration._no_rank_since = time.monotonic() - 1
    assert registration.find_repeated(0) == [1]
