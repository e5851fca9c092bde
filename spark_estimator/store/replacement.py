"""Replaces a file or a folder of this machine: a crash at any moment leaves the previous one or the new one.

The new content is written beside the target, as ``.NAME.TOKEN.partial``, and synchronized to the disk. Then
it takes the target's place in one step. A file system that cannot exchange two folders needs two steps:
between them the previous folder is ``.NAME.TOKEN.previous``, where `find_surviving_folder` finds it.

A writer holds a lock (``flock``) on its partial file or folder. The kernel releases the lock when the process
ends, so the next writer distinguishes what a dead process has left from what a living one still writes. On a
file system without locks, as all are on Windows, a partial file is a dead writer's when a process has seen it
unchanged for a day by its monotonic clock: the times of files are those of other hosts' clocks.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import glob
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from spark_estimator.posix import IS_WINDOWS, fcntl, libc
from spark_estimator.security import file_modes
from spark_estimator.security.shared_folders import refuse_foreign

_LEFTOVER = re.compile(r"\.(?P<name>.+)\.(?P<token>[0-9a-f]{8})\.(?P<kind>partial|previous)")
_OCCUPIED = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)
# Of a file system, or of a kernel, that cannot exchange two names.
_NO_EXCHANGE = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM)
# Of a folder that cannot be renamed.
_IMMOVABLE = (errno.EXDEV, errno.EBUSY)
# Of a file system that cannot synchronize a folder.
_NO_FOLDER_SYNC = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
# How often other writers may interfere.
_TRIES = 100
# Without locks in the file system: after this time without a change a partial file's writer has certainly ended.
_ABANDONED_AFTER = timedelta(days=1)
# There, what this process has seen of partial files: number, size and time, and since when, by its monotonic clock.
_seen: dict[str, tuple[tuple[int, int, int], float]] = {}
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


def replace_file(target: str, content: bytes, confirm: Callable[[], None] = lambda: None) -> None:
    """Put a file in place, on the disk, with the folders above it, unless `confirm`, called right before, raises.

    Raises OSError: it cannot be written; the previous file is unchanged.
    """
    refuse_foreign(target)
    target = os.path.realpath(target)
    folder, name = os.path.split(target)
    make_folders(folder)
    discard_leftovers(folder, name)
    with _claim(target, _create) as (names, descriptor, opened):
        view = memoryview(content)
        while view:
            view = view[os.write(descriptor, view) :]
        file_modes.widen(descriptor, _find_mode(target, file_modes.choose_file_mode(folder)))
        os.fsync(descriptor)
        confirm()
        if IS_WINDOWS:
            opened.close()
        os.replace(names.partial, target)
    _sync_folder(folder)


@contextmanager
def replace_folder(target: Path, *, overwrite: bool) -> Iterator[Path]:
    """Give a new folder to write into, which takes the target's place at the end of the block.

    Raises FileExistsError: there is a previous one, not to be overwritten, or OSError; the previous one is unchanged.
    """
    refuse_foreign(str(target))
    target = Path(os.path.realpath(target))
    make_folders(str(target.parent))
    discard_leftovers(str(target.parent), target.name)
    with _claim(str(target), _create_folder) as (names, *_):
        yield Path(names.partial)
        _sync_tree(names.partial, _find_mode(str(target), file_modes.choose_folder_mode(str(target.parent))))
        try:
            _put_in_place(names, overwrite=overwrite)
        except OSError as error:
            if error.errno not in _IMMOVABLE:
                raise
            text = "the previous folder is a mount, or of a container's image: remove it, or save to a new path"
            raise OSError(error.errno, f"{os.strerror(error.errno)}; {text}", names.target) from error
        # Before the previous folder is removed, which is what `partial` is after an exchange.
        _sync_folder(str(target.parent))


def find_surviving_folder(target: Path, marker: str) -> Path:
    """Return the folder, with its `marker`, to read: the target, or the previous one if a replacement was killed."""
    if not (target / marker).exists():
        real = Path(os.path.realpath(target))
        for aside in real.parent.glob(f".{glob.escape(real.name)}.????????.previous"):
            if (aside / marker).exists() and aside.with_suffix(".partial").exists():
                return aside
    return target


def discard_leftovers(folder: str, name: str | None = None) -> None:
    """Remove what dead writers have left in a folder, of one target or all; complete what they began. Raise nothing."""
    try:
        entries = sorted(os.listdir(folder))  # of one token the partial folder is first
    except OSError:
        return
    for entry in entries:
        match = _LEFTOVER.fullmatch(entry)
        if match is not None and name in (None, match["name"]):
            with contextlib.suppress(OSError):
                _discard(_Names(folder, match["name"], match["token"]))


def make_folders(folder: str) -> None:
    """Make a folder and those above it, so that their names are on the disk."""
    if os.path.isdir(folder):
        return
    parent = os.path.dirname(os.path.abspath(folder))
    make_folders(parent)
    file_modes.make_folder(folder)
    _sync_folder(parent)


class _Names:
    """The paths of one replacement.

    Attributes:
        target: what is replaced.
        partial: the new content; after an exchange the previous one.
        previous: the previous folder, where there is no exchange.
    """

    def __init__(self, folder: str, name: str, token: str) -> None:
        self.target = os.path.join(folder, name)
        self.partial = os.path.join(folder, f".{name}.{token}.partial")
        self.previous = os.path.join(folder, f".{name}.{token}.previous")

    def remove(self) -> None:
        """Remove what is not needed any more; after an interruption puts the previous folder back first."""
        if os.path.lexists(self.previous) and not os.path.lexists(self.target):
            os.rename(self.previous, self.target)
        _remove(self.partial)
        _remove(self.previous)


def _discard(names: _Names) -> None:
    if not os.path.lexists(names.partial):  # the new folder is in place
        if os.path.lexists(names.target):
            _remove(names.previous)
        return
    with _check_abandoned(names.partial) as is_abandoned:
        if is_abandoned:
            names.remove()


@contextmanager
def _claim(target: str, create: Callable[[str], int]) -> Iterator[tuple[_Names, int, contextlib.ExitStack]]:
    """Yield new names, the locked descriptor of what `create` has made at `partial`, and what closes it."""
    folder, name = os.path.split(target)
    for _ in range(_TRIES):
        names = _Names(folder, name, secrets.token_hex(4))
        with contextlib.ExitStack() as opened:
            try:
                try:
                    descriptor = create(names.partial)
                except FileNotFoundError:
                    if not os.path.isdir(folder):
                        raise
                    continue  # another writer took the new folder for a leftover before it was open
                if descriptor >= 0:
                    opened.callback(os.close, descriptor)
                if not _try_lock(descriptor) or not os.path.lexists(names.partial):
                    continue  # another writer took it for a leftover before it was locked
                yield names, descriptor, opened
                return
            finally:
                names.remove()
    raise FileExistsError(errno.EEXIST, "other writers remove each new file", target)


def _create(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600)


def _create_folder(path: str) -> int:
    os.mkdir(path, 0o700)
    return -1 if IS_WINDOWS else os.open(path, os.O_RDONLY)


def _try_lock(descriptor: int) -> bool:
    """Return whether this process has got the lock; true on a file system without locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (OSError, AttributeError):  # a file system, or a system, without locks
        return True
    return True


@contextmanager
def _check_abandoned(path: str) -> Iterator[bool]:
    """Yield whether the writer of a partial file or folder is dead; no other process takes it over meanwhile."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_abandoned = True
    except BlockingIOError:
        is_abandoned = False
    except (OSError, AttributeError):
        status = os.fstat(descriptor)
        state, now = (status.st_ino, status.st_size, status.st_mtime_ns), time.monotonic()
        if path not in _seen or _seen[path][0] != state:
            _seen[path] = state, now
        is_abandoned = now - _seen[path][1] > _ABANDONED_AFTER.total_seconds()
    try:
        yield is_abandoned
    finally:
        os.close(descriptor)


def _put_in_place(names: _Names, *, overwrite: bool) -> None:
    for _ in range(_TRIES):
        try:
            os.rename(names.partial, names.target)  # where there is nothing, or an empty folder
            return
        except OSError as error:
            if error.errno not in _OCCUPIED:
                raise
            if not overwrite:
                raise FileExistsError(errno.EEXIST, "another writer has made it meanwhile", names.target) from error
        try:
            if not _exchange(names.partial, names.target):
                _remove(names.previous)  # of the round before
                os.rename(names.target, names.previous)
                os.rename(names.partial, names.target)
            return
        except OSError as error:
            if error.errno not in (errno.ENOENT, *_OCCUPIED):
                raise  # else another writer interfered
    raise FileExistsError(errno.EEXIST, "other writers replace it all the time", names.target)


def _exchange(first: str, second: str) -> bool:
    """Exchange two folders in one step; false: this file system cannot."""
    if not hasattr(libc, "renameat2"):
        return False
    if libc.renameat2(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in _NO_EXCHANGE:
        return False
    raise OSError(number, os.strerror(number), first, None, second)


def _find_mode(target: str, otherwise: int) -> int:
    """Return the permissions of what is replaced; of a new file or folder `otherwise`."""
    try:
        return stat.S_IMODE(os.stat(target).st_mode)
    except OSError:
        return otherwise


def _sync_tree(folder: str, mode: int) -> None:
    """Synchronize a new folder, after it and all in it got the permissions that the folder is to have."""
    for parent, _, files in os.walk(folder, topdown=False):
        for path in (os.path.join(parent, file) for file in files):
            descriptor = os.open(path, os.O_RDWR if IS_WINDOWS else os.O_RDONLY)
            try:
                with contextlib.suppress(OSError):  # a file system without permissions
                    os.chmod(path, file_modes.choose_inner_file_mode(mode))
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        with contextlib.suppress(OSError):
            os.chmod(parent, mode)
        _sync_folder(parent)


def _sync_folder(folder: str) -> None:
    if IS_WINDOWS:
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise
    finally:
        os.close(descriptor)


def _remove(path: str) -> None:
    """Remove a file or folder as far as that is possible."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            os.unlink(path)
