"""A rank's writer, run in this process: parts, whole checkpoints, failures and ranks that have ended."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import torch

from spark_estimator.checkpoint.shared_control import CopySlot, SlotState
from spark_estimator.extensions.checkpoint import folders, reading
from spark_estimator.extensions.checkpoint.folders import Folder
from spark_estimator.extensions.checkpoint.job import Objects, write_job
from spark_estimator.extensions.checkpoint.layout import collect_structure, make_layout, select_rows
from spark_estimator.extensions.checkpoint.part_writer import WritePart
from spark_estimator.extensions.checkpoint.state import StateEntry
from spark_estimator.store import FilesystemStore
from tests.checkpoint import writer_memory
from tests.store.crashes import KILL, at_each_call

WEIGHT = torch.arange(8.0).reshape(4, 2)


class Rank(writer_memory.Rank):
    """A rank that writes parts into a folder."""

    def __init__(self, folder: Path, store: FilesystemStore | None = None, limit: Any = None) -> None:
        super().__init__(WritePart(store or FilesystemStore(str(folder))), limit)
        self.root = folder

    def part(
        self, folder: Folder, rank: int = 0, ranks: int = 1, *, weight: torch.Tensor = WEIGHT, **more: Any
    ) -> None:
        """Fills slot 0 with a part and submits it."""
        state = [StateEntry("m.w", ("m", "w"), weight), StateEntry("step", ("step",), folder.step)]
        layout = make_layout(state, collect_structure(state), rank, ranks)
        slot = self.slots[0]
        if layout.end:
            slot.make_room(layout.end)
        for offset, text in layout.texts:
            slot.put(offset, text)
        slot.put(layout.end, layout.table)
        for placed in layout.pieces:
            numbers = select_rows(state[placed.entry].value, placed)
            slot.put(placed.hole.offset, numbers.contiguous().numpy().tobytes())
        objects = Objects().pack(state, {"rank": rank}, rank)
        path = str(self.root / folder.name)
        job = write_job(slot, layout, objects, path, rank, ranks, more.pop("keep", (9, None)))
        self.submit(0, more.pop("ticket", 1), job, **more)


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[Rank]:
    result = Rank(tmp_path)
    yield result
    result.close()


def step(number: int, generation: int = 1) -> Folder:
    return Folder(generation, number, "00000000", 1_700_000_000)


@pytest.mark.parametrize("state", [SlotState.GO, SlotState.STANDBY])
def test_the_copy_of_a_rank_that_has_ended_becomes_a_checkpoint(rank: Rank, tmp_path: Path, state: SlotState) -> None:
    rank.part(step(7), state=state)
    (report,) = rank.run()
    assert (report["ticket"], report["error"], report["path"]) == (1, "", str(tmp_path / step(7).name))
    assert report["bytes"] == (tmp_path / step(7).name / "__0_0.distcp").stat().st_size
    assert (rank.control.completed, rank.control.failed, rank.control.is_busy) == (1, -1, False)
    assert sorted(path.name for path in (tmp_path / step(7).name).iterdir()) == [".metadata", "__0_0.distcp"]
    loaded = reading.load(str(tmp_path))
    assert torch.equal(loaded["m"]["w"], WEIGHT) and loaded["step"] == 7


def test_the_older_copy_is_written_first(rank: Rank, tmp_path: Path) -> None:
    rank.part(step(1), ticket=5, state=SlotState.STANDBY)
    rank.slots.reverse()
    rank.part(step(2), ticket=4)
    slot = rank.control.get_slot(0)
    with rank.control.hold_lock():  # `part` fills the first of the reversed slots, which is the second one
        rank.control.set_slot(1, slot)
        rank.control.set_slot(0, CopySlot(SlotState.FREE))
    assert [report["ticket"] for report in rank.run()] == [4]
    assert reading.complete_steps(str(tmp_path)) == [2]


def test_a_writer_that_advances_counts_its_limit_anew_for_each_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []

    class Limit:
        def postpone(self, size: int | None = None) -> None:
            events.append("postponed")

    store = FilesystemStore(str(tmp_path))
    for name in ("read", "remove"):
        call = getattr(store, name)
        monkeypatch.setattr(store, name, lambda path, name=name, call=call: (events.append(name), call(path))[1])
    ranks = [Rank(tmp_path, store=store, limit=Limit()), *(Rank(tmp_path) for _ in range(3))]
    for number, each in enumerate(ranks):
        each.part(step(3), number, len(ranks))
    for each in reversed(ranks):
        each.run()
        each.close()
    calls = [place for place, event in enumerate(events) if event != "postponed"]
    assert [events[place] for place in calls] == ["read"] * 4 + ["remove"] * 4, "of the notes of all ranks"
    assert all(events[place - 1] == "postponed" for place in calls)


def test_rank_0_waits_for_the_parts_of_all(tmp_path: Path) -> None:
    ranks = [Rank(tmp_path), Rank(tmp_path)]
    large = torch.arange(float(1 << 20)).reshape(4, 1 << 18)  # of more than one piece
    for number, each in enumerate(ranks):
        each.part(step(3), number, 2, weight=large)
    first = threading.Thread(target=ranks[0].run)
    first.start()
    ranks[1].run()
    first.join()
    assert {path.name for path in (tmp_path / step(3).name).iterdir()} == {".metadata", "__0_0.distcp", "__1_0.distcp"}
    assert torch.equal(reading.load(str(tmp_path))["m"]["w"], large)
    for each in ranks:
        each.close()


def test_a_checkpoint_that_another_rank_has_given_up_is_not_awaited(rank: Rank, tmp_path: Path) -> None:
    rank.part(step(3), 0, 2)
    with rank.control.hold_lock():
        rank.control.set_outcome(given_up=1)
    (report,) = rank.run()
    assert report["error"] == "another rank has failed to write its part" and report["raised"] == ""
    assert rank.control.failed == 1 and reading.complete_steps(str(tmp_path)) == []


def test_the_first_checkpoint_of_a_beginning_removes_its_mark(rank: Rank, tmp_path: Path) -> None:
    for generation in (1, 2, 3):
        folders.mark_beginning(FilesystemStore(str(tmp_path)), str(tmp_path), generation)
    rank.part(step(4, generation=2))
    rank.run()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".begun-0003", step(4, generation=2).name]


@pytest.mark.parametrize("is_complete", [True, False])
def test_the_copy_of_a_rank_that_has_ended_yields_to_a_later_beginning(
    rank: Rank, tmp_path: Path, is_complete: bool
) -> None:
    later = tmp_path / step(3, generation=2).name
    later.mkdir()
    if is_complete:
        (later / folders.METADATA).touch()
    rank.part(step(3), state=SlotState.STANDBY)
    (report,) = rank.run()
    assert report["error"] == (f"{tmp_path} has a newer checkpoint than that of step 3" if is_complete else "")
    assert (tmp_path / step(3).name).exists() != is_complete


def test_parts_are_not_awaited_after_a_later_beginning_has_saved(rank: Rank, tmp_path: Path) -> None:
    rank.part(step(3), 0, 2, state=SlotState.STANDBY)
    first = threading.Thread(target=rank.run)
    first.start()
    while not (tmp_path / step(3).name / folders.make_note_name(0)).exists():
        time.sleep(0.01)
    (tmp_path / step(2, generation=2).name).mkdir()
    (tmp_path / step(2, generation=2).name / folders.METADATA).touch()
    first.join(timeout=20)
    assert not first.is_alive(), "it waits for rank 1's part"
    assert rank.control.failed == 1


def test_older_checkpoints_are_removed_once_a_newer_one_is_whole(rank: Rank, tmp_path: Path) -> None:
    for number in (1, 2, 3):
        (tmp_path / step(number).name).mkdir()
        (tmp_path / step(number).name / folders.METADATA).touch()
    (tmp_path / "other").mkdir()
    rank.part(step(4), keep=(2, timedelta(days=1)))
    rank.run()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        [*(step(number).name for number in (1, 3, 4)), "other"]
    ), "the last two, and the first of the day"


def test_a_folder_that_cannot_be_made_is_reported(rank: Rank, tmp_path: Path) -> None:
    (tmp_path / step(5).name).write_text("a file in the folder's place")
    rank.part(step(5), state=SlotState.STANDBY)  # only that of a rank that has ended is not tried again
    (report,) = rank.run()
    assert report["raised"] in ("FileExistsError", "NotADirectoryError") and report["error"].startswith(
        report["raised"]
    )
    assert (rank.control.completed, rank.control.failed, rank.control.find_slots(SlotState.FREE)) == (-1, 1, [0, 1])


class FullStore(FilesystemStore):
    """Parts find no space on the disk."""

    def open(self, path: str, mode: str = "rb", *, make_folder: bool = True) -> BinaryIO:
        full = "w" in mode and path.endswith(".distcp")
        return super().open("/dev/full" if full else path, mode, make_folder=make_folder)


@pytest.mark.parametrize("rows", [0, 1, 1 << 18])
def test_a_full_disk_is_reported_as_such(tmp_path: Path, rows: int) -> None:
    rank = Rank(tmp_path, store=FullStore(str(tmp_path)))
    rank.part(step(5), weight=torch.zeros(rows, 8), state=SlotState.STANDBY)
    (report,) = rank.run()
    assert (report["raised"], rank.control.failed) == ("OSError", 1)
    assert report["error"].startswith("OSError: [Errno 28] No space left on device")
    rank.close()


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("fault", [KILL, "error=EIO", "error=ENOSPC"])
def test_a_fault_at_each_system_call_leaves_a_whole_checkpoint(tmp_path: Path, fault: str) -> None:
    """The previous one or the new one, which replaces it; what is left of the other is no checkpoint."""
    root = tmp_path / "run"
    root.mkdir()

    def write(number: int) -> None:
        rank = Rank(root)
        # Work that meets no fault is done completely: the next child's checkpoint has another folder, a newer one.
        rank.part(step(number, int(time.monotonic() * 1000)), weight=WEIGHT * number, keep=(1, None))
        rank.run()
        rank.close()

    seen: set[int] = set()

    def check(where: str) -> None:
        number = reading.load(str(root))["step"]
        assert torch.equal(reading.load(str(root))["m"]["w"], WEIGHT * number), where
        seen.add(number)
        # The next writer removes what the fault has left, and its own previous checkpoint.
        write(3)
        (left,) = root.iterdir()
        folder = Folder.parse(left.name)
        assert folder is not None and folder.step == 3, where
        shutil.rmtree(left)
        write(1)

    write(1)
    assert at_each_call(lambda: write(2), check, fault, tmp_path / "log") > 10
    assert seen == ({1, 2} if fault == KILL else {2}), "what fails once is tried again"
