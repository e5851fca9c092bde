"""Refuses output paths by which another user could have this process write elsewhere.

In a folder where all users can make files, as ``/tmp``, a link may be one that another user has put there, to have a
file of this user overwritten; and a file may be one of another user, who then reads what is written. The kernel refuses
the same where ``fs.protected_symlinks``, ``protected_regular`` and ``protected_hardlinks`` are set. It does not refuse
links in a folder that another user has made in a shared one, under the name that this process was going to take.
"""

from __future__ import annotations

import os
import stat

from spark_estimator.posix import IS_WINDOWS

# As in the kernel.
_MOST_LINKS = 40


def refuse_foreign(path: str) -> None:
    """Refuse a path right before a file or folder is made or opened for writing; a missing one is no problem.

    Raises:
        PermissionError: the path leads through a link that another user has made in a shared folder, or in a
            folder of their own there; or to a file in a shared folder that is another user's or has a second name.
        OSError: the path cannot be followed.
    """
    if IS_WINDOWS:  # where no folder is shared so
        return
    # The kernel goes up from where a link leads; abspath(), by which folders are made, from the link itself.
    for absolute in {os.path.join(os.getcwd(), path), os.path.abspath(path)}:
        _refuse_on(absolute, path)


def _refuse_on(absolute: str, path: str) -> None:
    """Follow an absolute path; `path`: as the caller has named it."""
    folder, remaining, links = os.sep, _split(absolute), 0
    foreign_users: set[int] = set()  # who have made a folder on the path in a shared one
    while remaining:
        name = remaining.pop(0)
        if name == os.pardir:
            folder = os.path.dirname(folder)
            continue
        current = os.path.join(folder, name)
        try:
            status, around = os.lstat(current), os.stat(folder)
        except (FileNotFoundError, NotADirectoryError):
            return
        is_foreign = status.st_uid not in (0, os.geteuid(), around.st_uid) and _is_shared(around)
        if stat.S_ISLNK(status.st_mode):
            if is_foreign or status.st_uid in foreign_users:
                location = "a folder that all users can write to" if is_foreign else "a folder of that user"
                raise _make_error(path, f"{current} is a link of user {status.st_uid} in {location}")
            links += 1
            if links > _MOST_LINKS:
                return  # opening it fails
            target = os.readlink(current)
            remaining = _split(target) + remaining
            folder = os.sep if os.path.isabs(target) else folder
            continue
        if not stat.S_ISDIR(status.st_mode) and _is_shared(around) and around.st_mode & stat.S_ISVTX:
            if status.st_uid not in (0, os.geteuid()):
                raise _make_error(
                    path, f"{current} is a file of user {status.st_uid} in a folder that all users can write to"
                )
            if status.st_nlink > 1:
                raise _make_error(path, f"{current} has a second name (a hard link), which another user may have made")
        if is_foreign:
            foreign_users.add(status.st_uid)
        folder = current


def _split(path: str) -> list[str]:
    return [name for name in path.split(os.sep) if name not in ("", os.curdir)]


def _is_shared(folder: os.stat_result) -> bool:
    """Return whether users who are not trusted with the folder's files can make some in it."""
    return bool(folder.st_mode & 0o002 or (folder.st_mode & stat.S_ISVTX and folder.st_mode & 0o020))


def _make_error(path: str, why: str) -> PermissionError:
    error = PermissionError(f"{path} is not written: {why}. Remove it, or name a path in a folder of this user's own.")
    error.strerror = str(error)
    return error
