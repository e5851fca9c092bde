"""Runs the ranks of a job as processes: of this host for ``np < 0`` and ``horovodrun``, of others for ``ssh``."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from spark_estimator.collectives.rendezvous import PeerFacts, Rendezvous, host_id, new_job_id, new_key
from spark_estimator.errors import JobFailedError
from spark_estimator.launch.job.attempts import Attempt, Limits, run_attempts
from spark_estimator.launch.job.environment import host_share, worker_environment
from spark_estimator.launch.job.failures import first_failure, job_error
from spark_estimator.launch.job.monitor import EventRelay, JobMonitor, say_when_done
from spark_estimator.launch.job.outcome import Outcome
from spark_estimator.launch.job.pickling import dump_function, load_values, name_of
from spark_estimator.launch.job.spec import JobSpec, checked_environment, driver_sys_path, modules_to_preload
from spark_estimator.launch.worker.worker_host import LocalWorkerHandle, WorkerHandle, WorkerHandles
from spark_estimator.observe.driver_log import print_line
from spark_estimator.observe.status_line import StatusLine, screen

_NO_LIMITS, _ONLY_ATTEMPT = Limits(), Attempt()


def run_local(
    function: Callable[..., Any],
    size: int,
    *,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    all_results: bool = False,
    show_line: Callable[[int, str, str], None] = print_line,
    show_status: bool = True,
    limits: Limits = _NO_LIMITS,
) -> list[Any]:
    """Calls ``function(*args, **kwargs)`` in `size` processes of this host that can use collectives.

    Args:
        environment: variables for the processes, beside this process's own.
        all_results: every rank's value is wanted, not only rank 0's.
        show_line: is given (rank, "stdout" or "stderr", text) of each line that a rank prints.
        show_status: a status line is shown where somebody looks on.
        limits: whether, and until when, it is started anew when it fails.

    Returns:
        The return values that are wanted, in rank order.

    Raises:
        PicklingError: the function or an argument cannot travel.
        WorkerFailedError: a rank failed; its traceback is the cause.
        ResultError: a value that is wanted cannot be had.
        JobTimeoutError: it took too long.
        ValueError: a setting for the workers has a value that cannot be used.
    """
    payload = dump_function(function, args, kwargs or {})
    job = JobSpec(
        job_id=new_job_id(),
        size=size,
        function=name_of(function),
        payload=payload,
        environment=worker_environment(os.environ, checked_environment(environment), host_share(size)),
        preload=modules_to_preload(payload),
        all_results=all_results,
        progress=show_status and screen() is not None,
        driver_host_id=host_id(),
        driver_sys_path=driver_sys_path(),
    )

    def run(attempt: Attempt) -> list[Outcome]:
        again = replace(job, job_id=new_job_id(), attempt=attempt.number)
        return run_job(again, show_line=show_line, attempt=attempt)

    outcomes = run_attempts(run, limits, job.function)
    return load_values([outcomes[rank].pickled for rank in job.wanted_ranks], job.function)


def run_job(
    job: JobSpec,
    places: WorkerHandles | None = None,
    *,
    show_line: Callable[[int, str, str], None] = print_line,
    gentle: timedelta = timedelta(0),
    cancel: Callable[[], None] | None = None,
    attempt: Attempt = _ONLY_ATTEMPT,
) -> list[Outcome]:
    """Runs all ranks of `job` to their end.

    Args:
        job: with ``progress``, how far the ranks are is shown in a status line.
        places: makes as many places as the job has ranks; None: on this host.
        gentle: as in `Supervisor`; of places on this host.
        cancel: ends all at once, after stopping has not.
        attempt: says when its time is over.

    Returns:
        [size] outcomes, in rank order, all of them good.

    Raises:
        JobFailedError: a rank failed, or it took too long.
    """
    where: list[WorkerHandle] = []
    outcomes: dict[int, Outcome] = {}

    def stop(reason: str) -> None:
        for place in where:
            place.stop(reason)

    watch = JobMonitor(stop=stop, cancel=cancel, show_line=show_line, size=job.size)
    if job.progress:
        watch.status = StatusLine.on_screen(job.size)
    watch.clock = lambda: attempt.look_at_the_clock(job.function, job.size, watch.begun)
    relay = EventRelay(watch.events)
    started = [threading.Event() for _ in range(job.size)]
    all_started = threading.Event()
    errors: list[BaseException] = []
    peers: dict[int, PeerFacts] = {}
    key = new_key()

    def supervise(rank: int) -> None:
        # The thread that starts a worker stays until its end: the kernel takes a thread's end for its parent's.
        place = where[rank]
        try:
            try:
                found = place.start()
                if isinstance(found, Outcome):
                    outcomes[rank] = found
                    return
                peers[rank] = replace(found, rank=rank)
            finally:
                started[rank].set()
            all_started.wait()
            if len(peers) < job.size:
                place.discard()
                return
            everyone = tuple(peers[number] for number in range(job.size))
            outcomes[rank] = place.run(Rendezvous(job.job_id, key, rank, everyone, -1))
        except BaseException as error:
            errors.append(error)
            stop(f"because rank {rank} could not be watched any more: {error!r}")
            place.discard()

    where += places(relay) if places else [LocalWorkerHandle(job, relay, gentle=gentle) for _ in range(job.size)]
    threads = [
        threading.Thread(target=supervise, args=(rank,), name=f"spark_estimator rank {rank}", daemon=True)
        for rank in range(job.size)
    ]
    for thread in threads:
        thread.start()
    say_when_done(threads, watch.events)
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
    cause = first_failure(watch.reports)
    if cause is not None:
        raise job_error(cause, watch.reports, job.size, job.function)
    if errors:
        raise JobFailedError(f"a worker could not be started or watched: {errors[0]!r}") from errors[0]
    if len(outcomes) != job.size:
        raise JobFailedError(f"only {len(outcomes)} of {job.size} workers ended in time; the others were left behind.")
    return [outcomes[rank] for rank in range(job.size)]
