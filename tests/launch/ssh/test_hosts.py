"""The hosts of a job: reached side by side, and a worker on a host that is still being reached."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from spark_estimator.env import Settings
from spark_estimator.errors import PreflightError, remove_links
from spark_estimator.launch.job.events import EventRelay
from spark_estimator.launch.job.spec import JobSpec
from spark_estimator.launch.ssh.command import SshOptions
from spark_estimator.launch.ssh.hosts import Hosts, PendingWorkerHandle, map_in_threads
from spark_estimator.launch.worker.worker_host import LocalWorkerHandle

JOB = JobSpec("job", 1, "work()")


@pytest.fixture
def ssh(tmp_path: Path) -> SshOptions:
    """Runs agents on this host, under any name but those that begin with "down"."""
    script = tmp_path / "ssh"
    script.write_text(
        "#!/bin/sh\nprevious=\nfor command; do host=$previous; previous=$command; done\n"
        'case $host in down*) echo "Connection refused" >&2; exit 255;; esac\nexec sh -c "$command"\n'
    )
    script.chmod(0o755)
    return SshOptions(ssh=(str(script),), interfaces=("lo",), settings=Settings.read({}))


@pytest.fixture
def local() -> Iterator[LocalWorkerHandle]:
    handle = LocalWorkerHandle(JOB, EventRelay(queue.Queue()))
    yield handle
    handle.discard()


def test_items_are_treated_side_by_side_and_keep_their_order() -> None:
    together = threading.Barrier(3, timeout=20)

    def number_of(item: str) -> int:
        together.wait()
        return int(item)

    assert map_in_threads(number_of, ["2", "0", "1"]) == [2, 0, 1]
    assert map_in_threads(number_of, []) == []
    with pytest.raises(ValueError):
        map_in_threads(int, ["1", "x"])


def test_every_host_that_is_down_is_named(ssh: SshOptions) -> None:
    ranks = {"192.0.2.1": 1, "down-1.invalid": 1, "down-2.invalid": 1, "localhost": 1}
    with pytest.raises(PreflightError) as caught:
        Hosts(JOB, ranks, ssh, timedelta(0))
    first, *lines = remove_links(str(caught.value)).splitlines()
    assert first == "2 of 3 other hosts can't be used; no rank was started."
    assert [line.partition(":")[0] for line in lines] == ["  down-1.invalid", "  down-2.invalid"]
    assert all("Connection refused. To fix it: is the host up" in line for line in lines)


def test_a_host_is_connected_when_its_first_worker_starts(ssh: SshOptions) -> None:
    relay = EventRelay(queue.Queue())
    with Hosts(JOB, {"localhost": 1}, ssh, timedelta(0), others_may_come=True) as hosts:
        assert isinstance(hosts.make_worker_handle("localhost", 0, 0, relay), LocalWorkerHandle)
        later = hosts.make_pending_worker_handle("192.0.2.1", 1, 1, 1, relay)
        facts = later.start()
        assert facts.host == "192.0.2.1" and later.pid == getattr(facts, "pid", None) != 0
        down = hosts.make_pending_worker_handle("down.invalid", 1, 2, 2, relay)
        with pytest.raises(PreflightError, match=r"^down.invalid: ssh to it failed: Connection refused"):
            down.start()
        down.discard()
    deadline = time.monotonic() + 20
    while Path(f"/proc/{later.pid}").exists():
        assert time.monotonic() < deadline, "the worker ends with its agent"
        time.sleep(0.01)


def test_a_pending_worker_can_be_stopped_before_its_host_is_reached(local: LocalWorkerHandle) -> None:
    joined: Future[None] = Future()
    handle = PendingWorkerHandle(joined, lambda: local)
    handle.stop("because of A")
    handle.stop("because of B")
    with pytest.raises(InterruptedError, match="it was stopped because of A"):
        handle.start()
    joined.set_result(None)
    handle.discard()
    assert handle.pid == 0 == local.pid, "nothing was started"


def test_a_pending_worker_starts_once_its_host_is_reached(local: LocalWorkerHandle) -> None:
    joined: Future[None] = Future()
    handle = PendingWorkerHandle(joined, lambda: local)
    facts: list[Any] = []
    thread = threading.Thread(target=lambda: (facts.append(handle.start()), handle.discard()))
    thread.start()
    thread.join(0.05)
    assert thread.is_alive() and handle.pid == 0
    joined.set_result(None)
    thread.join(20)
    assert facts[0].pid == handle.pid != os.getpid()
