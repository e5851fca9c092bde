"""The folders of checkpoints in a store: their names, which are complete, and which can be removed.

``step-0000000120-0003-20261125T093543Z-1a2b3c4d``: the step, how often a training has begun there, when the state was
copied (UTC), and the writers that belong together.

``.begun-0003``: a training has begun, and has no complete checkpoint yet. A later one has a higher number, even if the
writers of the first, whose ranks are dead, have not made a folder yet.
"""

from __future__ import annotations

import contextlib
import posixpath
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from spark_estimator.store import FilesystemStore

METADATA = ".metadata"
_MARK = re.compile(r"\.begun-(\d{4,})")
_NAME = re.compile(r"step-(?P<step>\d{10,})-(?P<generation>\d{4,})-(?P<time>\d{8}T\d{6}Z)-(?P<group>[0-9a-f]{8})")
_TIME = "%Y%m%dT%H%M%SZ"


@dataclass(frozen=True, order=True)
class Folder:
    """One checkpoint's folder; the newest is the largest.

    A training that begins again, or at an earlier checkpoint, has lower steps; its copies are newer, and have a higher
    generation. The time has no part in the order: clocks of hosts differ, and are put right.
    """

    generation: int  # from 1; each beginning in a folder has a higher one than all before
    step: int  # of the training
    group: str  # names the writers that have written it together
    time: int  # when the state was copied by rank 0's clock, in whole seconds since 1970

    @property
    def name(self) -> str:
        """Return the folder's name, without the folders above."""
        moment = datetime.fromtimestamp(self.time, timezone.utc).strftime(_TIME)
        return f"step-{self.step:010d}-{self.generation:04d}-{moment}-{self.group}"

    @staticmethod
    def parse(name: str) -> Folder | None:
        """Return the folder of this name; None if it is not a checkpoint's."""
        match = _NAME.fullmatch(name)
        if match is None:
            return None
        try:
            moment = datetime.strptime(match["time"], _TIME).replace(tzinfo=timezone.utc)
        except ValueError:
            return None
        return Folder(int(match["generation"]), int(match["step"]), match["group"], int(moment.timestamp()))


def make_part_name(rank: int) -> str:
    """Return the file name of a rank's part, as torch names it."""
    return f"__{rank}_0.distcp"


def make_note_name(rank: int) -> str:
    """Return the name of the file that exists once a rank's part is whole."""
    return f".part-{rank}.json"


def list_folders(store: FilesystemStore, root: str) -> list[Folder]:
    """Return the folders of checkpoints, complete or not, the newest first; none if the root does not exist.

    Raises:
        Exception: the store cannot be read; the class of the error depends on the store.
    """
    try:
        entries = store.entries(root)
    except FileNotFoundError:
        return []
    parsed = [Folder.parse(posixpath.basename(entry.path)) for entry in entries if entry.size is None]
    return sorted((folder for folder in parsed if folder is not None), reverse=True)


def find_marks(store: FilesystemStore, root: str) -> dict[int, str]:
    """Return the paths of marks that trainings have begun, by generation; none if the root does not exist.

    Raises:
        Exception: the store cannot be read; the class of the error depends on the store.
    """
    try:
        entries = store.entries(root)
    except FileNotFoundError:
        return {}
    matches = [(_MARK.fullmatch(posixpath.basename(entry.path)), entry.path) for entry in entries]
    return {int(match[1]): path for match, path in matches if match is not None}


def mark_beginning(store: FilesystemStore, root: str, generation: int) -> None:
    """Note that a training has begun; not if the store cannot be written: then no writer writes there."""
    with contextlib.suppress(Exception):  # its class depends on the store
        store.write(posixpath.join(root, f".begun-{generation:04d}"), b"")


def is_complete(store: FilesystemStore, root: str, folder: Folder) -> bool:
    """Return whether the folder is a checkpoint.

    Raises:
        Exception: the store cannot be read; the class of the error depends on the store.
    """
    try:
        entries = store.entries(posixpath.join(root, folder.name))
    except FileNotFoundError:
        return False
    return METADATA in {posixpath.basename(entry.path) for entry in entries}


def find_expendable(
    folders: Sequence[Folder], complete: Collection[Folder], keep: int, keep_every: timedelta | None
) -> list[Folder]:
    """Return the folders to remove after a checkpoint was completed.

    Args:
        folders: all folders, the newest first.
        complete: those that are checkpoints.
        keep: the number of newest ones that stay.
        keep_every: the first of each such period stays, too; None: no others.
    """
    completed = [folder for folder in folders if folder in complete]
    stay = set(completed[:keep])
    if keep_every is not None:
        firsts: dict[int, Folder] = {}
        for folder in completed:  # the oldest of a period is the last
            firsts[int(folder.time // keep_every.total_seconds())] = folder
        stay |= set(firsts.values())
    newest = completed[0] if completed else None
    for folder in folders:
        if folder in complete:
            continue
        # A newer folder may be in progress, here or by the writers of an earlier attempt.
        if newest is None or folder > newest:
            stay.add(folder)
    return [folder for folder in folders if folder not in stay]
