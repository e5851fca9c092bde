"""A notice in a file that only this user can read: in a folder of this host, or in one that all hosts share.

Rank 0 puts the file in place, over an older one, and removes it once all ranks have connected. A file that an earlier
job left behind does no harm: no process with its key listens at its address any more, so a rank that finds it looks
again until rank 0 has replaced it. Rank 0 holds a lock (``flock``) on its file, which the kernel releases when the
process ends: so a later job removes what a dead process has left, and nothing of a living one.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

from spark_estimator.collectives.other_launchers.notices import Notice, NoticeBoard
from spark_estimator.errors import ForeignLauncherError
from spark_estimator.posix import fcntl

_MOST_BYTES = 1 << 16
_NOTICE = re.compile(r"[0-9a-z]+\.json(\.[0-9a-f]{16})?")
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
        self._folder = make_own_folder(parent)
        self._path = os.path.join(self._folder, f"{name}.json")
        self._key = key
        self._published = b""
        self._descriptor = -1
        self.where = f"the file {self._path}"

    def publish(self, places: Sequence[tuple[str, int]]) -> bytes:
        key = self._key or secrets.token_bytes(32)
        fields = {"places": list(places), "key": "" if self._key else key.hex()}
        self._published = json.dumps(fields).encode()
        self._remove_abandoned()
        try:
            while not self._put():
                pass  # another job has removed the file before it was locked
        except OSError as error:
            raise ForeignLauncherError(f"init(): rank 0 can't write {self._path}: {error.strerror}.") from error
        return key

    def _put(self) -> bool:
        """Put the file in place, and keep it locked. False: it was removed meanwhile."""
        temporary = f"{self._path}.{secrets.token_hex(8)}"
        self._descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | _NO_LINK, 0o600)
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        os.write(self._descriptor, self._published)
        try:
            os.replace(temporary, self._path)
        except FileNotFoundError:
            os.close(self._descriptor)
            return False
        return True

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

    def find_rival(self) -> Notice | None:
        """Return the notice by which another rank 0 has replaced this one's."""
        return None if _read(self._path) == self._published else self.find()

    def close(self) -> None:
        """Remove the file, unless another job has replaced it."""
        if self._published and _read(self._path) == self._published:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1

    def _remove_abandoned(self) -> None:
        """Remove the files of processes that have ended; none on a file system without locks."""
        with contextlib.suppress(OSError):
            for name in filter(_NOTICE.fullmatch, os.listdir(self._folder)):
                with contextlib.suppress(OSError):
                    _remove_unlocked(os.path.join(self._folder, name))


def read_key(path: str) -> str:
    """Return the secret that a user keeps in a file. Raises ForeignLauncherError: no, or any, user can read it."""
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


def find_host_folder() -> str:
    """Return the folder of this host in which the user's own folder is."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    with contextlib.suppress(OSError):
        if runtime and os.stat(runtime).st_uid == os.getuid() and os.access(runtime, os.W_OK):
            return runtime
    return tempfile.gettempdir()


def make_own_folder(parent: str) -> str:
    """Return this user's own folder in `parent`, made if missing; the same in all processes of a job on this host.

    Raises ForeignLauncherError: it can't be made, or is this user's and isn't private.
    """
    for path in _list_candidates(parent):
        made = True
        try:
            try:
                os.mkdir(path, 0o700)
            except FileExistsError:
                made = False
            status = os.lstat(path)
        except OSError as error:
            raise ForeignLauncherError(
                f"init(): the folder {path}, in which rank 0 leaves the job's key for the others, can't be made: "
                f"{error.strerror}. {parent} must be an existing folder that this user can write to."
            ) from error
        if status.st_uid != os.getuid() and not made:
            continue  # another user has taken the name
        if status.st_uid != os.getuid():
            problem = f"belongs to user {status.st_uid}, not to user {os.getuid()} who has made it"
        elif not stat.S_ISDIR(status.st_mode):
            problem = "is not a folder"
        elif status.st_mode & 0o077:
            problem = f"is open to other users (mode {stat.S_IMODE(status.st_mode):o})"
        else:
            return path
        raise ForeignLauncherError(
            f"init(): {path} {problem}. Rank 0 would leave the job's key there for the others. Remove it, or set "
            "SPARK_ESTIMATOR_JOB_KEY."
        )
    raise AssertionError("there is always another name")


def _list_candidates(parent: str) -> Iterator[str]:
    """Yield paths for this user's own folder, in the order in which all processes try them.

    The first is one that is this user's already: other users can neither make nor remove it in a shared folder,
    so that what they do there meanwhile changes no process's choice.
    """
    path = os.path.join(parent, f"spark_estimator-{os.getuid()}")
    with contextlib.suppress(OSError):  # a folder that cannot be listed
        for name in sorted(os.listdir(parent)):
            if re.fullmatch(rf"{os.path.basename(path)}(-\d+)?", name):
                with contextlib.suppress(FileNotFoundError):
                    if os.lstat(os.path.join(parent, name)).st_uid == os.getuid():
                        yield os.path.join(parent, name)
    yield path
    yield from (f"{path}-{number}" for number in itertools.count(1))


def _remove_unlocked(path: str) -> None:
    """Remove a notice that no process has locked. Raise OSError where that cannot be known."""
    descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | _NO_LINK)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), os.lstat(path)):
            os.unlink(path)
    finally:
        os.close(descriptor)


def _read(path: str) -> bytes | None:
    """Return the content of a file of this user's that no other user can read or write; None if it does not exist."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | _NO_LINK)
    except OSError:
        return None
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
            return None
        return file.read(_MOST_BYTES)
