"""Who may write a run's files: a driver's lease and rank 0's fence, in stores of each kind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import fsspec
import pytest

from spark_estimator.errors import DataError, PreflightError
from spark_estimator.estimators.persistence import model_transfer, run_lease
from spark_estimator.estimators.persistence.checkpoint import Checkpoint, Saver, load
from spark_estimator.estimators.persistence.run_lease import Fence, SupersededError, hold_lease
from spark_estimator.estimators.torch.checkpoint import TorchForm
from spark_estimator.estimators.train_spec import TrainSpec
from spark_estimator.store import FilesystemStore, Store
from tests.estimators.specs import spec_of


class PlainStore(Store):
    """A user's store: it has only the methods of `Store`."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    def get_run_path(self, run_id: str) -> str:
        return f"plain/{run_id}"

    def get_checkpoint_path(self, run_id: str) -> str:
        return f"plain/{run_id}/checkpoint"

    def exists(self, path: str) -> bool:
        return path in self.files

    def read(self, path: str) -> bytes:
        if path not in self.files:
            raise FileNotFoundError(path)
        return self.files[path]

    def write(self, path: str, content: bytes) -> None:
        self.files[path] = content


@pytest.fixture(params=["local", "memory", "in place", "plain"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "plain":
        yield PlainStore()
    elif request.param == "local":
        yield Store.create(str(tmp_path))
    elif request.param == "memory":
        yield FilesystemStore("memory://leases")
        fsspec.filesystem("memory").store.clear()
    else:
        yield FilesystemStore(f"local://{tmp_path}")


def attempt(spec: TrainSpec, number: int, monkeypatch: pytest.MonkeyPatch) -> Saver:
    """What rank 0 of that attempt has, once it has looked for a checkpoint."""
    monkeypatch.setenv("SPARK_ESTIMATOR_ATTEMPT", str(number))
    fence = Fence.from_spec(spec)
    assert fence is not None
    fence.take()
    return Saver(spec, TorchForm())


def save(saver: Saver, epochs: int) -> None:
    saver.save(Checkpoint({}, 1, {}, [{"epoch": epoch} for epoch in range(epochs)], None))
    saver.wait()


def epochs_in(spec: TrainSpec) -> int:
    assert spec.store is not None and spec.checkpoint_path is not None
    return int(TorchForm().unpack(spec.store.read(spec.checkpoint_path))["epoch"]) + 1


def lease_of(store: Store, **changed: Any) -> None:
    """Leaves the lease of another driver."""
    fields = {"owner": "other", "user": "ada", "host": "far", "pid": 7, "place": "elsewhere", "since": "2026-01-02"}
    store.write(f"{store.get_run_path('run')}/driver.json", json.dumps({**fields, **changed}).encode())


# --- the fence --------------------------------------------------------------------------------------------------------


def test_an_attempt_that_was_given_up_does_not_overwrite_the_next_ones_checkpoint(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_of(store=store, owner="fit")
    zombie = attempt(spec, 1, monkeypatch)
    save(zombie, 1)
    save(attempt(spec, 2, monkeypatch), 5)
    with pytest.raises(SupersededError, match=r"run_id='run': attempt 1 on rank 0 .*: attempt 2 \(rank 0 on host"):
        save(zombie, 2)
    assert epochs_in(spec) == 5
    with pytest.raises(SupersededError):
        model_transfer.put(store, "run", b"old", "model.pt", zombie._fence)
    assert not store.exists(f"{store.get_run_path('run')}/model.pt")


def test_an_attempt_that_was_given_up_cannot_take_the_fence_back(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = spec_of(store=store, owner="fit")
    attempt(spec, 2, monkeypatch)
    with pytest.raises(SupersededError, match="attempt 2"):
        attempt(spec, 1, monkeypatch)
    save(attempt(spec, 3, monkeypatch), 1)


def test_the_later_attempt_wins_when_both_take_the_fence_at_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = spec_of(store=store, owner="fit")
    later = attempt(spec, 2, monkeypatch)
    assert later._fence is not None
    earlier = replace(later._fence, attempt=1)
    earlier._write()  # it had looked before
    save(later, 3)
    with pytest.raises(SupersededError):
        earlier.check()


def test_ranks_of_a_driver_that_has_lost_the_run_end(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    old = attempt(spec_of(store=store, owner="old"), 1, monkeypatch)
    lease_of(store, owner="new")
    save(attempt(spec_of(store=store, owner="new"), 1, monkeypatch), 4)
    with pytest.raises(SupersededError):
        save(old, 9)
    with pytest.raises(SupersededError, match=r"a driver \(pid 7, user ada, host far, since 2026-01-02\)"):
        attempt(spec_of(store=store, owner="old"), 2, monkeypatch)


def test_a_checkpoint_is_read_when_no_earlier_attempt_can_write(
    store: Store, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    import spark_estimator.torch as hvd

    hvd.init()
    request.addfinalizer(hvd.shutdown)
    spec = spec_of(store=store, owner="fit")
    zombie = attempt(spec, 1, monkeypatch)
    save(zombie, 1)
    monkeypatch.setenv("SPARK_ESTIMATOR_ATTEMPT", "2")
    kept = load(spec, {}, TorchForm())
    assert kept is not None and len(kept.history) == 1
    with pytest.raises(SupersededError):
        save(zombie, 2)


def test_on_this_machine_the_check_comes_after_the_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The attempt is given up while it writes."""
    spec = spec_of(store=Store.create(str(tmp_path)), owner="fit")
    zombie = attempt(spec, 1, monkeypatch)
    folder = tmp_path / "runs" / "run"
    check = Fence.check

    def late(fence: Fence) -> None:
        written = [path for path in folder.iterdir() if path.name.endswith(".partial")]
        assert written and written[0].stat().st_size > 0
        replace(fence, attempt=2)._write()
        check(fence)

    monkeypatch.setattr(Fence, "check", late)
    assert spec.store is not None and spec.checkpoint_path is not None
    with pytest.raises(SupersededError):
        run_lease.write(spec.store, spec.checkpoint_path, b"content", zombie._fence)
    assert [path.name for path in folder.iterdir()] == ["attempt.json"]


def test_a_fence_that_cannot_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "run").write_text("no folder")
    spec = spec_of(store=Store.create(str(tmp_path)), owner="fit")
    monkeypatch.setattr(run_lease, "_read", lambda *_: None)
    with pytest.raises(DataError, match=r"runs/run/attempt\.json cannot be written on rank 0 \(host .*be writable"):
        attempt(spec, 1, monkeypatch)


def test_without_a_store_there_is_no_fence() -> None:
    assert Fence.from_spec(spec_of()) is None


# --- the lease --------------------------------------------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_lease, "RENEWED_EVERY", timedelta(seconds=0.02))
    monkeypatch.setattr(run_lease, "STALE_AFTER", timedelta(seconds=1))
    monkeypatch.setattr(run_lease, "_WATCHED_EVERY", timedelta(seconds=0.02))


def test_a_second_driver_is_refused_at_once_while_the_first_lives_on_its_host(store: Store) -> None:
    words = (
        rf"run_id='run' is in use: a driver \(pid {os.getpid()}, user .*, host .*, since 20.*\) trains it in .*run\. "
    )
    with hold_lease(spec_of(store=store, owner="first")):
        with pytest.raises(PreflightError, match=words + r"Wait until .* choose another run_id.* ends 60 seconds"):
            with hold_lease(spec_of(store=store, owner="second")):
                raise AssertionError
        with hold_lease(spec_of(store=store, owner="other", run_id="another")):
            pass
    with hold_lease(spec_of(store=store, owner="second")):
        pass


def test_a_driver_of_this_host_that_has_died_holds_nothing(store: Store) -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    started = run_lease._get_start(process.pid)
    lease_of(store, place=run_lease._find_place(), pid=process.pid, started=started)
    with (
        pytest.raises(PreflightError, match=f"pid {process.pid}, user ada"),
        hold_lease(spec_of(store=store, owner="mine")),
    ):
        raise AssertionError
    process.communicate(b"\n")
    with hold_lease(spec_of(store=store, owner="mine")):
        pass
    lease_of(store, place=run_lease._find_place(), pid=os.getpid(), started="another process had this id")
    with hold_lease(spec_of(store=store, owner="mine")):
        pass


@pytest.mark.usefixtures("quick")
def test_a_driver_elsewhere_is_known_by_its_renewals(store: Store) -> None:
    lease_of(store)
    ended = threading.Event()

    def renew() -> None:
        number = 0
        while not ended.wait(0.02):
            number += 1
            lease_of(store, renewals=number)

    thread = threading.Thread(target=renew)
    thread.start()
    try:
        with pytest.raises(PreflightError, match="pid 7, user ada, host far, since 2026-01-02"):
            with hold_lease(spec_of(store=store, owner="mine")):
                raise AssertionError
    finally:
        ended.set()
        thread.join()
    with hold_lease(spec_of(store=store, owner="mine")):  # it renews no more
        lease = json.loads(store.read(f"{store.get_run_path('run')}/driver.json"))
        assert lease["owner"] == "mine"


@pytest.mark.usefixtures("quick")
def test_a_driver_that_was_replaced_does_not_renew_or_remove_the_lease(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    renewals = threading.Event()
    logged = run_lease._log.error
    with hold_lease(spec_of(store=store, owner="mine")), pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_lease._log, "error", lambda *args: (logged(*args), renewals.set()))
        lease_of(store)
        # A renewal that had begun may overwrite it once.
        for _ in range(200):
            if renewals.wait(0.1):
                break
            lease_of(store)
    assert json.loads(store.read(f"{store.get_run_path('run')}/driver.json"))["owner"] == "other"
    assert "run_id='run' was taken over by a driver (pid 7, user ada" in caplog.text


def test_what_is_no_lease_holds_nobody_back(store: Store) -> None:
    for content in (b"", b"\xff{", b"[1]", b"{}"):
        store.write(f"{store.get_run_path('run')}/driver.json", content)
        with hold_lease(spec_of(store=store, owner="mine")):
            pass


def test_a_store_that_only_the_ranks_can_use_has_no_lease(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("no folder")
    with hold_lease(spec_of(store=Store.create(str(tmp_path)), owner="mine")), hold_lease(spec_of(owner="mine")):
        pass


def test_a_store_of_users_that_writes_in_its_own_way_is_asked_first(monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(FilesystemStore):
        def write(self, path: str, content: bytes) -> None:  # type: ignore[override]
            written.append(path)

    written: list[str] = []
    fence = Fence(Own("memory://own"), "run", "fit", 1)
    order: list[str] = []
    monkeypatch.setattr(Fence, "check", lambda _: order.append("check"))
    run_lease.write(fence.store, "memory://own/x", b"1", fence)
    assert (order, written) == (["check"], ["memory://own/x"])
