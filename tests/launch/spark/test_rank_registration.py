"""The facts of all supervisors come together at the driver, or all supervisors use Spark's exchange."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest

pytest.importorskip("pyspark")

from spark_estimator.launch.spark import rank_registration
from spark_estimator.launch.spark.rank_registration import RankRegistration
from spark_estimator.observe import frames
from tests.observe.test_channel import Side


class Gathered(Side):
    """A server that brings facts together."""

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
        assert end.answer() == {"kind": frames.EVERYONE, "facts": ["of 0", "of 1", "of 2"]}
    ends[0].send(frames.FACTS, facts="again")
    gathered.tell()
    answer = ends[0].answer()
    assert answer is not None and answer["kind"] == frames.GATHER, "a task that Spark has started again"
    for end in ends:
        end.close()


@pytest.mark.parametrize("why", ["nobody came", "one went to Spark", "they are too long"])
def test_facts_that_cannot_be_brought_together_go_through_spark(
    gathered: Gathered, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = [gathered.connect(partition) for partition in range(3)]
    for end in ends[:2]:
        end.send(frames.FACTS, facts="short" if why != "they are too long" else "x" * 400_000)
        gathered.tell()
    gathered.gathering.look_at_the_clock()
    if why == "nobody came":
        monkeypatch.setattr(rank_registration, "PATIENCE", timedelta(0))
        gathered.gathering.look_at_the_clock()
    else:
        ends[2].send(frames.GATHER if why == "one went to Spark" else frames.FACTS, facts="x")
        gathered.tell()
    for end in ends[:2]:
        answer = end.answer()
        assert answer is not None and answer["kind"] == frames.GATHER
    for end in ends:
        end.close()
