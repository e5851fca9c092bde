"""Runs the ranks of a job as processes: of this host for ``np < 0`` and ``horovodrun``, of others for ``ssh``."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

from spark_estimator._native import require_engine
from spark_estimator.collectives.rendezvous import PeerFacts, Rendezvous, make_job_id, make_key
from spark_estimator.errors import JobFailedError
from spark_estimator.launch.job.attempts import Attempt, run_attempts
from spark_estimator.launch.job.environment import decide_host_threads, make_worker_environment
from spark_estimator.launch.job.events import EventRelay
from spark_estimator.launch.job.failures import find_first_failure, make_job_error
from spark_estimator.launch.job.interruption import remember_interruption
from spark_estimator.launch.job.monitor import EventDisplay, JobMonitor, put_finished_after
from spark_estimator.launch.job.options import JobOptions
from spark_estimator.launch.job.outcome import Outcome
from spark_estimator.launch.job.pickling import load_values
from spark_estimator.launch.job.rank_files import DriverFiles
from spark_estimator.launch.job.spec import JobSpec
from spark_estimator.launch.worker.worker_host import LocalWorkerHandle, WorkerHandle, WorkerHandles
from spark_estimator.observe.driver_log import ShowLine, print_line
from spark_estimator.observe.status_line import StatusLine
from spark_estimator.observe.stragglers import StragglerWatch
from spark_estimator.observe.training_records import TakeRecord

_DEFAULTS, _ONLY_ATTEMPT = JobOptions(), Attempt()


@remember_interruption()
def run_local(function: Callable[..., Any], size: int, options: JobOptions = _DEFAULTS) -> list[Any]:
    """Call `function` in `size` processes of this host that can use collectives.

    Args:
        options: the ranks inherit this process's environment; `options.environment` overrides it.

    Returns:
        Rank 0's value, or all ranks' values in rank order.

    Raises:
        NativeLibraryError: this machine has no engine.
        PicklingError: the function or an argument can't be pickled.
        WorkerFailedError: a rank failed; its traceback is the cause.
        ResultError: a rank's value can't be returned.
        JobTimeoutError: the job exceeded `options.limits.timeout`.
        ValueError: an environment variable for the workers has an invalid value.
    """
    require_engine()
    job = JobSpec.build(
        function, size, options, make_worker_environment(os.environ, options.variables, decide_host_threads(size))
    )

    def run(attempt: Attempt) -> list[Outcome]:
        again = replace(job, job_id=make_job_id(), attempt=attempt.number)
        return run_job(
            again, show_line=options.show_line or print_line, take_record=options.take_record, attempt=attempt
        )

    outcomes = run_attempts(run, options.limits, job.function)
    return load_values([outcomes[rank].pickled for rank in job.result_ranks], job.function)


def run_job(
    job: JobSpec,
    make_workers: WorkerHandles | None = None,
    *,
    show_line: ShowLine = print_line,
    take_record: TakeRecord | None = None,
    gentle: timedelta = timedelta(0),
    cancel: Callable[[], None] | None = None,
    attempt: Attempt = _ONLY_ATTEMPT,
) -> list[Outcome]:
    """Run all ranks of `job` to their end. Return their outcomes, all good. Raises JobFailedError: a rank failed.

    Args:
        make_workers: makes the handles of all workers; None: on this host.
        gentle: as in `Supervisor`; of workers on this host.
        cancel: ends all at once, after stopping has not.
        attempt: raises when its time is over.
    """
    status = StatusLine.open_on_screen(job.size) if job.progress else None
    stragglers = StragglerWatch(job.size) if job.progress else None
    with DriverFiles(job) as files:
        display = EventDisplay(show_line, take_record=take_record, files=files, status=status, stragglers=stragglers)
        return _run_job(job, make_workers, display, gentle, cancel, attempt)


def _run_job(
    job: JobSpec,
    make_workers: WorkerHandles | None,
    display: EventDisplay,
    gentle: timedelta,
    cancel: Callable[[], None] | None,
    attempt: Attempt,
) -> list[Outcome]:
    workers: list[WorkerHandle] = []
    outcomes: dict[int, Outcome] = {}

    def stop(reason: str) -> None:
        for worker in workers:
            worker.stop(reason)

    watch = JobMonitor(stop=stop, cancel=cancel, display=display, size=job.size)
    watch.clock = lambda: attempt.enforce_timeout(job.function, job.size, display.begun)
    relay = EventRelay(display.events)
    started = [threading.Event() for _ in range(job.size)]
    all_started = threading.Event()
    errors: list[BaseException] = []
    peers: dict[int, PeerFacts] = {}
    key = make_key()

    def supervise(rank: int) -> None:
        # The thread that starts a worker stays until its end: the kernel takes a thread's end for its parent's.
        worker = workers[rank]
        try:
            try:
                started_worker = worker.start()
                if isinstance(started_worker, Outcome):
                    outcomes[rank] = started_worker
                    return
                peers[rank] = replace(started_worker, rank=rank)
            finally:
                started[rank].set()
            all_started.wait()
            if len(peers) < job.size:
                worker.discard()
                return
            everyone = tuple(peers[number] for number in range(job.size))
            outcomes[rank] = worker.run(Rendezvous(job.job_id, key, rank, everyone, -1, encrypted=job.encrypted))
        except BaseException as error:
            errors.append(error)
            stop(f"because rank {rank} could no longer be supervised: {error!r}")
            worker.discard()

    workers += (
        make_workers(relay) if make_workers else [LocalWorkerHandle(job, relay, gentle=gentle) for _ in range(job.size)]
    )
    threads = [
        threading.Thread(target=supervise, args=(rank,), name=f"spark_estimator rank {rank}", daemon=True)
        for rank in range(job.size)
    ]
    for thread in threads:
        thread.start()
    put_finished_after(threads, display.events)
    try:
        for event in started:
            event.wait()
    except BaseException:
        stop("because the launcher was interrupted")
        raise
    finally:
        all_started.set()
    watch.follow()
    for outcome in outcomes.values():
        if outcome.failure is not None:
            watch.note(outcome.failure)
    cause = find_first_failure(watch.reports)
    if cause is not None:
        raise make_job_error(cause, watch.reports, job.size, job.function)
    if errors:
        raise JobFailedError(f"a worker could not be started or supervised: {errors[0]!r}") from errors[0]
    if len(outcomes) != job.size:
        raise JobFailedError(
            f"only {len(outcomes)} of {job.size} workers ended in time; the others may still be running."
        )
    return [outcomes[rank] for rank in range(job.size)]
