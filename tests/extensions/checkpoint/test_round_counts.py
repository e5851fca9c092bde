"""Each beginning in a folder has a higher number than all before."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_estimator.env import ATTEMPT_VARIABLE
from spark_estimator.errors import DataError
from spark_estimator.extensions.checkpoint.folders import Folder
from spark_estimator.extensions.checkpoint.reading import store_of
from spark_estimator.extensions.checkpoint.round_counts import RoundCounts
from spark_estimator.store import FilesystemStore
from spark_estimator.store.filesystem import Entry
from tests.ranks import run_ranks


@pytest.mark.parametrize("attempt", [1, 3])
def test_a_beginning_is_newer_than_all_in_the_folder(
    tmp_path: Path, attempt: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writers of two earlier attempts may not have begun to write."""
    monkeypatch.setenv(ATTEMPT_VARIABLE, str(attempt))
    counts = RoundCounts(store_of(str(tmp_path / "run")), None)
    assert counts.begin().generation == attempt
    (tmp_path / "run" / Folder(7, 1, "00000000", 0).name).mkdir(parents=True)
    assert counts.begin().generation == 7 + attempt


def test_a_later_round_is_newer_than_all_of_the_rounds_before(tmp_path: Path) -> None:
    """Also where one of them saved a step twice, and where the store is away."""

    def begin(rank: int) -> list[int]:
        from spark_estimator.collectives import context, launcher_link

        context.init()
        counts = RoundCounts(store_of(str(tmp_path / "run")), None)
        first = counts.begin().generation
        counts.begun_again(first + 1)
        launcher_link._link = object()  # type: ignore[assignment]  # a later round's job
        return [first, RoundCounts(NoStore(str(tmp_path / "run")), None).begin().generation]

    assert run_ranks(2, begin) == [[1, 3]] * 2


class NoStore(FilesystemStore):
    """One that is away."""

    def entries(self, folder: str) -> list[Entry]:
        raise ConnectionError("no answer")


def test_a_folder_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot be read on host .*: ConnectionError: no answer\. .* is not known\."):
        RoundCounts(NoStore(str(tmp_path)), None).begin()
