"""Names of folders, and which are not kept."""

from __future__ import annotations

from datetime import timedelta

import pytest

from spark_estimator.extensions.checkpoint.folders import Folder, find_expendable

DAY = 24 * 3600


def of(step: int, time: int = 0, generation: int = 1) -> Folder:
    return Folder(generation, step, "0a1b2c3d", time)


def test_a_name_gives_the_folder_again() -> None:
    folder = Folder(3, 120, "1a2b3c4d", 1_795_599_343)
    assert folder.name == "step-0000000120-0003-20261125T093543Z-1a2b3c4d"
    assert Folder.parse(folder.name) == folder
    assert Folder.parse("step-12-0003-20261125T093543Z-1a2b3c4d") is None
    assert Folder.parse("notes") is None


@pytest.mark.parametrize("keep", [1, 2, 5])
def test_the_newest_complete_ones_stay(keep: int) -> None:
    folders = [of(step) for step in (5, 4, 3, 2, 1)]
    complete = {folder for folder in folders if folder.step != 4}
    expected = [folder for folder in folders if folder.step == 4 or folder not in [of(5), of(3), of(2), of(1)][:keep]]
    assert find_expendable(folders, complete, keep, None) == expected


def test_what_is_newer_than_the_last_complete_one_may_be_in_progress() -> None:
    assert find_expendable([of(7), of(6), of(5)], {of(6)}, 1, None) == [of(5)]


def test_nothing_goes_as_long_as_none_is_complete() -> None:
    assert find_expendable([of(2), of(1)], set(), 1, None) == []


def test_one_of_each_period_stays() -> None:
    folders = [of(6, 2 * DAY + 9), of(5, DAY + 8), of(4, DAY + 7), of(3, 6), of(2, 5), of(1, 4)]
    assert find_expendable(folders, set(folders), 1, timedelta(days=1)) == [of(5, DAY + 8), of(3, 6), of(2, 5)]


def test_a_training_that_began_again_has_the_newest_ones() -> None:
    earlier, later = [of(200, 20), of(190, 19)], [of(2, 40, 2), of(1, 30, 2)]
    folders = sorted([*earlier, *later], reverse=True)
    assert folders == [*later, *earlier]
    assert find_expendable(folders, set(folders), 2, None) == earlier


def test_a_clock_that_was_ahead_is_no_order() -> None:
    ahead, since = [of(2, 9 * DAY), of(1, 8 * DAY)], [of(4, DAY, 2), of(3, DAY, 2)]
    folders = sorted([*ahead, *since], reverse=True)
    assert folders == [*since, *ahead]
    assert find_expendable(folders, set(folders), 2, None) == ahead
