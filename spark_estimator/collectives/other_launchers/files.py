"""A notice in a file that only this user can read: in a folder of this host, or in one that all hosts share.

Rank 0 puts the file in place, over an older one, and removes it once all ranks have connected. A file that an earlier
job left behind does no harm: no process with its key listens at its address any more, so a rank that finds it looks
again until rank 0 has replaced it.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import stat
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from spark_estimator.collectives.other_launchers.notices import Notice, NoticeBoard
from spark_estimator.errors import ForeignLauncherError

_MOST_BYTES = 1 << 16
# A file this old: the process that wrote it has ended without removing it.
_STALE_SECONDS = 86400.0
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)


class FileBoard(NoticeBoard):
    """A file in a folder of this user's own.

    Args:
        parent: an existing folder, in which the user's own folder is made.
        name: of the file; the same in all processes of the job.
        key: the job's first key, if the processes have it already: then it is not written.

    Raises:
        ForeignLauncherError: the folder can't be made, or others could write to it.
    """

    def __init__(self, parent: str, name: str, key: bytes | None) -> None:
        self._folder = own_folder(parent)
        self._path = os.path.join(self._folder, f"{name}.json")
        self._key = key
        self._published = b""
        self.where = f"the file {self._path}"

    def publish(self, places: Sequence[tuple[str, int]]) -> bytes:
        key = self._key or secrets.token_bytes(32)
        fields = {"places": list(places), "key": "" if self._key else key.hex()}
        self._published = json.dumps(fields).encode()
        self._remove_stale()
        temporary = f"{self._path}.{secrets.token_hex(8)}"
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK, 0o600)
            with open(descriptor, "wb") as file:
                file.write(self._published)
            os.replace(temporary, self._path)
        except OSError as error:
            raise ForeignLauncherError(f"init(): rank 0 can't write {self._path}: {error.strerror}.") from error
        return key

    def find(self) -> Notice | None:
        with contextlib.suppress(OSError):
            os.listdir(self._folder)  # has a network file system look again
        content = _read(self._path)
        if content is None:
            return None
        try:
            fields: dict[str, Any] = json.loads(content)
            places = tuple((str(host), int(port)) for host, port in fields["places"])
            key = self._key or bytes.fromhex(fields["key"])
        except (ValueError, KeyError, TypeError):
            return None  # not one that this version writes
        return Notice(places, key)

    def rival(self) -> Notice | None:
        """The notice by which another rank 0 has replaced this one's."""
        return None if _read(self._path) == self._published else self.find()

    def close(self) -> None:
        """Removes the file, unless another job has replaced it."""
        if self._published and _read(self._path) == self._published:
            with contextlib.suppress(OSError):
                os.unlink(self._path)

    def _remove_stale(self) -> None:
        with contextlib.suppress(OSError), os.scandir(self._folder) as entries:
            for entry in entries:
                if time.time() - entry.stat(follow_symlinks=False).st_mtime > _STALE_SECONDS:
                    with contextlib.suppress(OSError):
                        os.unlink(entry.path)


def key_in(path: str) -> str:
    """The secret that a user keeps in a file.

    Raises:
        ForeignLauncherError: it can't be read, or other users can read it.
    """
    try:
        status = os.stat(path)
        if status.st_uid not in (os.getuid(), 0) or status.st_mode & 0o077:
            raise ForeignLauncherError(
                f"init(): other users can read or write {path}, which holds the key of this user's jobs: it belongs to "
                f"user {status.st_uid} and has mode {stat.S_IMODE(status.st_mode):o}. Make another key (`openssl rand "
                f"-hex 32 > {path}`), and run `chmod 600 {path}`, on every host."
            )
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read(_MOST_BYTES).strip()
    except OSError as error:
        raise ForeignLauncherError(
            f"init(): {path}, which holds the key of this user's jobs, can't be read: {error.strerror}. It must be "
            "on every host."
        ) from error


def host_folder() -> str:
    """The folder of this host in which the user's own folder is."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    with contextlib.suppress(OSError):
        if runtime and os.stat(runtime).st_uid == os.getuid() and os.access(runtime, os.W_OK):
            return runtime
    return tempfile.gettempdir()


def own_folder(parent: str) -> str:
    """This user's own folder in `parent`, made unless it is there. Raises ForeignLauncherError if it isn't private."""
    path = os.path.join(parent, f"spark_estimator-{os.getuid()}")
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        status = os.lstat(path)
    except OSError as error:
        raise ForeignLauncherError(
            f"init(): the folder {path}, in which rank 0 leaves the job's key for the others, can't be made: "
            f"{error.strerror}. {parent} must be an existing folder that this user can write to."
        ) from error
    if not stat.S_ISDIR(status.st_mode):
        problem = "is not a folder"
    elif status.st_uid != os.getuid():
        problem = f"belongs to user {status.st_uid}, not to user {os.getuid()}"
    elif status.st_mode & 0o077:
        problem = f"is open to other users (mode {stat.S_IMODE(status.st_mode):o})"
    else:
        return path
    raise ForeignLauncherError(
        f"init(): {path} {problem}. Rank 0 would leave the job's key there for the others. Remove it, or set "
        "SPARK_ESTIMATOR_JOB_KEY."
    )


def _read(path: str) -> bytes | None:
    """The content of a file of this user's that no other user can read or write; None if it does not exist."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | _NO_LINK)
    except OSError:
        return None
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
            return None
        return file.read(_MOST_BYTES)
