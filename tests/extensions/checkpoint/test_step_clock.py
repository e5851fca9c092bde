"""Each beginning in a folder has a higher number than all before, and each copy a newer folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_estimator.env import ATTEMPT_VARIABLE
from spark_estimator.errors import DataError
from spark_estimator.extensions.checkpoint.folders import Folder
from spark_estimator.extensions.checkpoint.reading import open_store
from spark_estimator.extensions.checkpoint.step_clock import StepClock
from spark_estimator.store import FilesystemStore
from spark_estimator.store.filesystem import Entry
from tests.ranks import run_ranks


def get_generation(clock: StepClock) -> int:
    """Return the generation of the next copy."""
    folder = Folder.parse(clock.name_folder(0))
    assert folder is not None
    return folder.generation


def test_a_beginning_is_above_one_whose_writers_have_made_no_folder_yet(tmp_path: Path) -> None:
    """Their rank may be dead, and its copy become a checkpoint later."""
    store = FilesystemStore(str(tmp_path))
    first, second = StepClock(store), StepClock(store)
    assert (get_generation(first), get_generation(second)) == (1, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".begun-0001", ".begun-0002"]


@pytest.mark.parametrize("attempt", [1, 3])
def test_a_beginning_is_newer_than_all_in_the_folder(
    tmp_path: Path, attempt: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writers of two earlier attempts may not have begun to write."""
    monkeypatch.setenv(ATTEMPT_VARIABLE, str(attempt))
    store = open_store(str(tmp_path / "run"))
    assert get_generation(StepClock(store)) == attempt
    (tmp_path / "run" / Folder(7, 1, "00000000", 0).name).mkdir(parents=True)
    assert get_generation(StepClock(store)) == 7 + attempt


def test_a_later_round_is_newer_than_all_of_the_rounds_before(tmp_path: Path) -> None:
    """Also where one of them saved a step twice, and where the store is away."""

    def begin(rank: int) -> list[int]:
        from spark_estimator.collectives import context, launcher_link

        context.init()
        clock = StepClock(open_store(str(tmp_path / "run")))
        first = get_generation(clock)
        assert get_generation(clock) == first + 1
        launcher_link._link = object()  # type: ignore[assignment]  # a later round's job
        return [first, get_generation(StepClock(NoStore(str(tmp_path / "run"))))]

    assert run_ranks(2, begin) == [[1, 3]] * 2


class NoStore(FilesystemStore):
    """One that is away."""

    def entries(self, folder: str) -> list[Entry]:
        raise ConnectionError("no answer")


def test_a_folder_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot be read on host .*: ConnectionError: no answer\. .* is not known\."):
        StepClock(NoStore(str(tmp_path)))


def test_a_step_that_is_copied_twice_has_a_newer_folder(tmp_path: Path) -> None:
    clock, folders = StepClock(open_store(str(tmp_path))), []
    for steps in (0, 3, 3, 2, 4):
        clock.steps = steps
        folders.append(Folder.parse(clock.name_folder(5)))
    assert [(folder.generation, folder.step, folder.time) for folder in folders if folder is not None] == [
        *((1, 0, 5), (1, 3, 5), (2, 3, 5), (3, 2, 5), (3, 4, 5))
    ]
    assert folders == sorted(folders) and len({folder.group for folder in folders if folder is not None}) == 1


def test_steps_count_from_the_last_checkpoint(tmp_path: Path) -> None:
    clock = StepClock(open_store(str(tmp_path)), every_steps=3)
    assert [clock.count() for _ in range(4)] == [False, False, True, True], "until one is made"
    clock.begin_interval()
    assert [clock.count() for _ in range(3)] == [False, False, True]
    assert clock.steps == 7 and not clock.continues
