"""Decides who may write a run's files: one driver at a time, and of its attempts only the last.

The *lease* (``driver.json`` in the run's folder) is the driver's. A driver whose user has named the run holds it from
before its ranks start until they have ended, and renews it every `RENEWED_EVERY`. Another driver that finds it is
refused: at once if the holder is a living process of the same host, else as soon as it sees the lease renewed. A lease
    is over when its holder is a dead process of the same host, or when it has not changed for `STALE_AFTER`
while the other watched, by the other's own clock: no two hosts' clocks are compared.

The *fence* (``attempt.json``) is that of rank 0. It is taken before the checkpoint is read, and checked before each
file of the run is put in place. A rank 0 whose attempt has been given up, because its executor was cut off or its
driver has lost the lease, then finds the fence of another attempt and must not write. It cannot take the fence back:
the fence contains the number of the attempt, and the lease names the driver.

A gap remains: no store has a write that depends on another file. On this machine's file systems the check happens after
the content was written and synchronized, right before the rename, so a write is too late only if its attempt is taken
over in that moment. Elsewhere the check happens right before the upload, whose duration is not bounded. A file that is
written too late is a whole checkpoint of the same training, from which a resumed run may continue; the present
attempt's next checkpoint replaces it. Two drivers that take a free lease in the same moment both start; the ranks of
the one whose lease was replaced then end with an error, as do those of a driver that was suspended for longer than
`STALE_AFTER`.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from spark_estimator.env import ATTEMPT_VARIABLE
from spark_estimator.errors import DataError, PreflightError
from spark_estimator.estimators.train_spec import TrainSpec
from spark_estimator.log import get_logger
from spark_estimator.store import FilesystemStore, Store

RENEWED_EVERY = timedelta(seconds=10)
STALE_AFTER = timedelta(seconds=60)
_WATCHED_EVERY = timedelta(seconds=1)
LEASE_FILE, FENCE_FILE = "driver.json", "attempt.json"
_log = get_logger(__name__)


class SupersededError(DataError):
    """Another attempt or driver has taken the run over: this process must not write its files."""


def make_owner() -> str:
    """Return a name for one fit, which no other has."""
    return secrets.token_hex(8)


# --- the driver's lease -----------------------------------------------------------------------------------------------


@contextmanager
def hold_lease(spec: TrainSpec) -> Iterator[None]:
    """Hold the lease of a run inside of the block.

    There is none where nothing is kept, or in a store that this driver can't read or write: that is the ranks'
    alone.

    Raises:
        PreflightError: another driver holds it; the text names the driver and what to do.
    """
    lease = None if spec.store is None or spec.checkpoint_path is None else _Lease(spec.store, spec.run_id, spec.owner)
    if lease is None or not lease.take():
        yield
        return
    ended = threading.Event()
    renewal = threading.Thread(target=lease.renew_until, args=(ended,), name="spark_estimator lease", daemon=True)
    renewal.start()
    try:
        yield
    finally:
        ended.set()
        renewal.join()
        lease.release()


class _Lease:
    """The lease of one run, as one driver sees it."""

    def __init__(self, store: Store, run_id: str, owner: str) -> None:
        self._store = store
        self._run_id = run_id
        self._path = _make_path(store, run_id, LEASE_FILE)
        self._owner = owner
        self._renewals = 0
        self._since = datetime.now(timezone.utc).isoformat(timespec="seconds")

    def take(self) -> bool:
        """Write the lease. Return False if this driver has no access to the store."""
        try:
            content = _read(self._store, self._path)
        except Exception as error:  # each kind of store has its own errors
            _log.info("run %s has no lease: %s cannot be read: %s", self._run_id, self._path, error)
            return False
        if content is not None and not _is_over(_parse_fields(content)):
            self._watch(content)
        try:
            self._write()
        except Exception as error:
            _log.info("run %s has no lease: %s cannot be written: %s", self._run_id, self._path, error)
            return False
        return True

    def _watch(self, content: bytes) -> None:
        """Wait until a lease has not been renewed for `STALE_AFTER`. Raise if it is renewed, or its holder lives
        here.
        """
        fields: dict[str, Any] | None = _parse_fields(content)
        assert fields is not None
        if not _is_here(fields):
            _log.warning(
                "run_id=%r is held by %s. Waiting up to %g seconds to see whether that driver still renews its lease",
                self._run_id, _describe_holder(fields), STALE_AFTER.total_seconds(),
            )  # fmt: skip
            fields = self._wait_for_renewal(content)
        if fields is not None:
            raise PreflightError(
                f"run_id={self._run_id!r} is in use: {_describe_holder(fields)} trains it in "
                f"{os.path.dirname(self._path)}. Wait until that fit ends or stop it, or choose another run_id. (If "
                f"that driver is lost, its lease ends {STALE_AFTER.total_seconds():g} seconds after its last renewal.)"
            )

    def _wait_for_renewal(self, content: bytes) -> dict[str, Any] | None:
        """Return a lease's content once it is renewed; None: it was not renewed in time, or was released."""
        until = time.monotonic() + STALE_AFTER.total_seconds()
        while time.monotonic() < until:
            time.sleep(_WATCHED_EVERY.total_seconds())
            with contextlib.suppress(Exception):  # a store that is away for a moment
                present = _read(self._store, self._path)
                if present != content:
                    fields = _parse_fields(present or b"")
                    return None if _is_over(fields) else fields
        return None

    def _write(self) -> None:
        fields = {
            "owner": self._owner,
            "user": _get_user(),
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started": _get_start(os.getpid()),
            "place": _find_place(),
            "since": self._since,
            "renewals": self._renewals,
        }
        self._store.write(self._path, json.dumps(fields).encode())

    def renew_until(self, ended: threading.Event) -> None:
        """Renew the lease until the event; stop when another driver has taken it."""
        while not ended.wait(RENEWED_EVERY.total_seconds()):
            try:
                content = _read(self._store, self._path)
                if content is not None and _parse_fields(content).get("owner") != self._owner:
                    _log.error("run_id=%r was taken over by %s", self._run_id, _describe_holder(_parse_fields(content)))
                    return
                self._renewals += 1
                self._write()
            except Exception as error:  # it may be there again next time
                _log.warning("the lease %s cannot be renewed: %s", self._path, error)

    def release(self) -> None:
        """Remove the lease, unless it is another driver's by now."""
        with contextlib.suppress(Exception):
            content = _read(self._store, self._path)
            if content is None or _parse_fields(content).get("owner") != self._owner:
                return
            if isinstance(self._store, FilesystemStore):
                self._store.remove(self._path)
            else:
                self._store.write(self._path, b"{}")


def _is_over(fields: dict[str, Any]) -> bool:
    """Return whether a lease is free, as far as this host knows without waiting."""
    if not fields.get("owner"):
        return True
    return _is_here(fields) and fields.get("started") != _get_start(int(fields.get("pid") or 0))


def _is_here(fields: dict[str, Any]) -> bool:
    """Return whether this process can see whether the holder lives."""
    return bool(_find_place()) and fields.get("place") == _find_place()


# --- the fence of rank 0 ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fence:
    """The right of one process to write a run's files, as rank 0 of one attempt.

    Attributes:
        owner: the fit that has started the attempt.
        attempt: its number.
    """

    store: Store
    run_id: str
    owner: str
    attempt: int
    process: Mapping[str, Any] = field(default_factory=lambda: _identify_process())

    @classmethod
    def from_spec(cls, spec: TrainSpec) -> Fence | None:
        """Return the fence of this process; None if nothing is kept."""
        if spec.store is None or spec.checkpoint_path is None:
            return None
        return cls(spec.store, spec.run_id, spec.owner, int(os.environ.get(ATTEMPT_VARIABLE) or 1))

    def take(self) -> None:
        """Keep all earlier attempts from writing.

        Raises:
            SupersededError: this is an earlier one itself, or another driver has the run.
            Exception: the store's own, of reading.
            DataError: the store cannot be written.
        """
        lease = _parse_fields(_read(self.store, _make_path(self.store, self.run_id, LEASE_FILE)) or b"")
        if lease.get("owner") and lease["owner"] != self.owner:
            raise self._make_error(_describe_holder(lease))
        present = self._read_present()
        if present.get("owner") == self.owner and int(present.get("attempt") or 0) > self.attempt:
            raise self._make_error(_describe_attempt(present))
        try:
            self._write()
        except Exception as error:  # each kind of store has its own errors
            raise DataError(
                f"{self._path} cannot be written on rank 0 (host {socket.gethostname()}): {type(error).__name__}: "
                f"{error}. The folder must be writable on every executor, with room for two checkpoints."
            ) from error

    def check(self) -> None:
        """Check the fence, right before a file of the run is put in place.

        Raises:
            SupersededError: another attempt has taken the fence.
            Exception: the store's own.
        """
        present = self._read_present()
        # A fence that is not there was never taken, or has been removed with the run's folder.
        if not present or present == self._mark():
            return
        if present.get("owner") != self.owner or int(present.get("attempt") or 0) >= self.attempt:
            raise self._make_error(_describe_attempt(present))
        self._write()  # an earlier attempt looked before this one took the fence, and wrote after it

    def _write(self) -> None:
        self.store.write(self._path, json.dumps(self._mark()).encode())

    @property
    def _path(self) -> str:
        return _make_path(self.store, self.run_id, FENCE_FILE)

    def _read_present(self) -> dict[str, Any]:
        return _parse_fields(_read(self.store, self._path) or b"")

    def _mark(self) -> dict[str, Any]:
        return {"owner": self.owner, "attempt": self.attempt, **self.process}

    def _make_error(self, by: str) -> SupersededError:
        return SupersededError(
            f"run_id={self.run_id!r}: attempt {self.attempt} on rank 0 (host {self.process['host']}, pid "
            f"{self.process['pid']}) may not write to {os.path.dirname(self._path)} any more: {by} has the run now."
        )


def write(store: Store, path: str, content: bytes, fence: Fence | None) -> None:
    """Put a file of a run in place unless another attempt has taken the fence. Raise as `Fence.check` does."""
    if fence is None:
        store.write(path, content)
    elif isinstance(store, FilesystemStore) and type(store).write is FilesystemStore.write:
        store.write(path, content, confirm=fence.check)
    else:
        fence.check()
        store.write(path, content)


# --- what both have in common -----------------------------------------------------------------------------------------


def _make_path(store: Store, run_id: str, name: str) -> str:
    return f"{store.get_run_path(run_id)}/{name}"


def _read(store: Store, path: str) -> bytes | None:
    try:
        return store.read(path)
    except FileNotFoundError:
        return None


def _parse_fields(content: bytes) -> dict[str, Any]:
    """Return the content of a lease or a fence; empty if the file is not one."""
    try:
        result = json.loads(content)
    except ValueError:
        return {}
    return result if isinstance(result, dict) else {}


def _describe_holder(fields: dict[str, Any]) -> str:
    names = {name: fields.get(name, "unknown") for name in ("pid", "user", "host", "since")}
    return "a driver (pid {pid}, user {user}, host {host}, since {since})".format(**names)


def _identify_process() -> dict[str, Any]:
    """Identify this process as the owner of a fence, also for the process that writes for it."""
    pid = os.getpid()
    return {"host": socket.gethostname(), "pid": pid, "started": _get_start(pid), "place": _find_place()}


def _describe_attempt(fields: dict[str, Any]) -> str:
    names = {name: fields.get(name, "unknown") for name in ("attempt", "pid", "host")}
    return "attempt {attempt} (rank 0 on host {host}, pid {pid})".format(**names)


def _get_user() -> str:
    with contextlib.suppress(Exception):  # a container's user may have no name
        return getpass.getuser()
    return str(os.getuid()) if hasattr(os, "getuid") else "unknown"


def _find_place() -> str:
    """Return a text that is equal in two processes that can see each other's process ids; '' if the system has none."""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    return ""


def _get_start(pid: int) -> str:
    """Return when a process was started, in the kernel's ticks; '' if the process does not exist."""
    with contextlib.suppress(OSError):
        # The name in parentheses may contain anything.
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19]
    return ""
