"""While a process waits, it notices other processes with its rank, and a rank 0 that does not wait for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_estimator.collectives.other_launchers import watch as module
from spark_estimator.collectives.other_launchers.launchers import ForeignJob
from spark_estimator.collectives.other_launchers.rank_locks import RankLocks
from spark_estimator.collectives.other_launchers.watch import Watch
from spark_estimator.errors import ForeignLauncherError

RANK_1 = ForeignJob("a launcher", "WORLD_SIZE", 3, 1)


class Others(RankLocks):
    """RankLocks of other processes, as a table of ranks and processes."""

    def __init__(self, folder: Path, processes: dict[int, int]) -> None:
        super().__init__(str(folder), "job")
        self.processes = processes

    def acquire(self, rank: int) -> bool:
        return rank not in self.processes

    def find_holder(self, rank: int) -> int:
        return self.processes.get(rank, 0)


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_CERTAIN_SECONDS", "_NO_NOTICE_SECONDS", "_SEEN_SECONDS", "_FIRST_GIVES_UP_SECONDS"):
        monkeypatch.setattr(module, name, 0.0)


@pytest.mark.parametrize(
    ("processes", "text"),
    [
        ({1: 7}, "number 1 of 3 .* but process 7 on this host has the same number.* set another MASTER_PORT"),
        ({-2: 8}, "but process 8 on this host has the same number"),
        ({0: 9}, r"but rank 0 \(process 9 on this host\) does not wait for it: its job is complete"),
    ],
)
def test_a_process_that_can_never_join_raises(tmp_path: Path, processes: dict[int, int], text: str) -> None:
    watch = Watch(RANK_1, Others(tmp_path, processes), 0, whole=True)
    watch.check()
    watch.check_unanswered(noticed=False)  # seen once: it may be about to end
    with pytest.raises(ForeignLauncherError, match=text):
        watch.check_unanswered(noticed=False)


def test_a_rank_0_with_a_notice_may_be_slow(tmp_path: Path) -> None:
    watch = Watch(RANK_1, Others(tmp_path, {0: 9}), 0, whole=True)
    for _ in range(3):
        watch.check_unanswered(noticed=True)


def test_a_process_that_ends_in_time_changes_nothing(tmp_path: Path) -> None:
    others = Others(tmp_path, {1: 7})
    watch = Watch(RANK_1, others, 0, whole=True)
    watch.check_unanswered(noticed=False)
    others.processes = {1: 70}
    watch.check_unanswered(noticed=False)
    others.processes = {}
    watch.check_unanswered(noticed=False)
    watch.check_unanswered(noticed=False)
