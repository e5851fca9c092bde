"""The process of a worker: its pipes, its environment, and that nothing of it is left."""

from __future__ import annotations

import os
import signal
import time
import uuid

import pytest

from spark_estimator.env import JOB_VARIABLE, RENDEZVOUS_FD_VARIABLE
from spark_estimator.launch.job.spec import JobSpec
from spark_estimator.launch.worker.worker_process import WorkerProcess, _make_environment
from tests.launch import clusters


def test_a_worker_ends_with_its_input_and_can_be_discarded_twice() -> None:
    process = WorkerProcess(JobSpec("job", 1, "work()"), [])
    assert process.progress is None and not process.has_ended
    process.end_input()
    deadline = time.monotonic() + 60
    while not process.has_ended:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert process.reap()[0] == 1, "the supervisor ended before it sent the job"
    process.discard()
    process.discard()
    assert process.result.closed and process.stdout.closed


def test_a_discarded_worker_is_killed_and_reaped() -> None:
    marker = uuid.uuid4().hex
    process = WorkerProcess(JobSpec("job", 1, "work()", environment={clusters.MARKER: marker}, progress=True), [])
    assert process.progress is not None
    process.discard()
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)
    clusters.wait_until_gone(marker, 10)
    assert process.reap()[0] != 0, "it was killed by signal 9"


def test_input_is_written_as_the_worker_takes_it() -> None:
    process = WorkerProcess(JobSpec("job", 1, "work()"), [])
    try:
        process.set_input([b"", (1 << 40).to_bytes(8, "big"), bytes(1 << 20)])
        os.kill(process.pid, signal.SIGSTOP)
        writes = 0
        while process.feed() and writes < 100:
            writes += 1
        assert writes == 100, "more than a pipe holds: there is a rest until the worker reads"
    finally:
        process.discard()
    process.set_input([b"late"])


def test_the_environment_of_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RENDEZVOUS_FD_VARIABLE, "7")
    monkeypatch.setenv("OF_THE_HOST", "host")
    job = JobSpec(
        "the id", 1, "work()", environment={"A": "job"}, environment_if_unset={"OF_THE_HOST": "job", "UNSET": "job"}
    )
    environment = _make_environment(job)
    assert RENDEZVOUS_FD_VARIABLE not in environment, "this process may be a rank of another job"
    assert (environment["A"], environment["OF_THE_HOST"], environment["UNSET"]) == ("job", "host", "job")
    assert environment[JOB_VARIABLE] == "the id"
