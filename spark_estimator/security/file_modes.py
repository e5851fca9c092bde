"""Permissions of this package's files: the user's own (0600, folders 0700), or also for their folder's group.

A folder with the set-group-ID bit (``chmod g+s``) is a team's: new files and folders in it get its group's permissions.
What exists keeps its permissions, also when its content is replaced. The process's umask has no part in it.
"""

from __future__ import annotations

import contextlib
import os
import stat

from spark_estimator.posix import IS_WINDOWS
from spark_estimator.security.shared_folders import refuse_foreign

_OWN_FILE, _OWN_FOLDER = 0o600, 0o700


def choose_file_mode(folder: str) -> int:
    """Return the permissions of a new file in a folder."""
    return _OWN_FILE | _read_group_bits(folder) & 0o060


def choose_folder_mode(parent: str) -> int:
    """Return the permissions of a new folder in a folder."""
    bits = _read_group_bits(parent)
    return _OWN_FOLDER | bits | (stat.S_ISGID if bits else 0)


def choose_inner_file_mode(folder_mode: int) -> int:
    """Return the permissions of the files of a folder that is written and put in place as a whole."""
    return _OWN_FILE | folder_mode & 0o666


def opener(path: str, flags: int) -> int:
    """Open a file for ``open(path, mode, opener=opener)``, as new files are. Raises as `refuse_foreign`."""
    if not flags & os.O_CREAT:
        return os.open(path, flags)
    refuse_foreign(path)
    try:
        descriptor = os.open(path, flags | os.O_EXCL, _OWN_FILE)
    except FileExistsError:
        refuse_foreign(path)  # it may just have appeared
        return os.open(path, flags, _OWN_FILE)
    widen(descriptor, choose_file_mode(os.path.dirname(os.path.abspath(path))))
    return descriptor


def make_folder(path: str) -> None:
    """Make one folder unless it exists."""
    mode = choose_folder_mode(os.path.dirname(os.path.abspath(path)))
    try:
        os.mkdir(path, _OWN_FOLDER)
    except FileExistsError:
        if not os.path.isdir(path):
            raise
    else:
        widen(path, mode)


def make_folders(path: str) -> None:
    """Make a folder, and those above it that don't exist. Raises as `refuse_foreign`."""
    refuse_foreign(path)
    if not os.path.isdir(path):
        make_folders(os.path.dirname(os.path.abspath(path)))
        make_folder(path)


def widen(path: str | int, mode: int) -> None:
    """Set permissions that are more than the user's own, where the file system has them."""
    if mode not in (_OWN_FILE, _OWN_FOLDER) and not IS_WINDOWS:
        with contextlib.suppress(OSError):
            os.chmod(path, mode)


def _read_group_bits(folder: str) -> int:
    try:
        mode = os.stat(folder or ".").st_mode
    except OSError:
        return 0
    return mode & 0o070 if mode & stat.S_ISGID else 0
