"""Runs an elastic job as processes, of this host or of several: does what ``elastic.rounds.RoundPlanner`` decides.

What the words mean, and what is promised, stands in ``elastic/__init__.py``.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from spark_estimator.collectives.rendezvous import host_id, new_job_id
from spark_estimator.elastic.rounds import Terms
from spark_estimator.launch.elastic.job import Discovery, ElasticJob
from spark_estimator.launch.elastic.placement import Cooldown, Placement
from spark_estimator.launch.elastic.process import MakePlace
from spark_estimator.launch.job.environment import host_share, worker_environment
from spark_estimator.launch.job.hosts import Host
from spark_estimator.launch.job.outcome import Outcome, Relay
from spark_estimator.launch.job.pickling import dump_function, load_values, name_of
from spark_estimator.launch.job.spec import JobSpec, checked_environment, driver_sys_path, modules_to_preload
from spark_estimator.launch.worker.worker_host import LocalWorkerHandle, WorkerHandle
from spark_estimator.observe.driver_log import print_line

ELASTIC_VARIABLE = "HOROVOD_ELASTIC"


def print_on_stderr(text: str) -> None:
    """Says what becomes of a job to whoever has started it."""
    print(f"spark_estimator: {text}", file=sys.stderr, flush=True)


def run_elastic_local(
    function: Callable[..., Any],
    terms: Terms,
    *,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    show_line: Callable[[int, str, str], None] = print_line,
) -> list[Any]:
    """As ``local.run_local``, in a job that goes on when it loses ranks; `function` uses ``elastic.run``.

    Returns:
        The values of those that returned, in the order of their last ranks.

    Raises:
        PicklingError: the function or an argument cannot travel.
        WorkerFailedError: fewer ranks are left than are needed, or another of the terms is broken; the text tells of
            all that were lost.
        ResultError: a value cannot be had.
        ValueError: a setting for the workers has a value that cannot be used.
    """
    payload = dump_function(function, args, kwargs or {})
    job = JobSpec(
        job_id=new_job_id(),
        size=terms.size,
        function=name_of(function),
        payload=payload,
        environment=worker_environment(os.environ, checked_environment(environment), host_share(terms.size)),
        preload=modules_to_preload(payload),
        all_results=True,
        driver_host_id=host_id(),
        driver_sys_path=driver_sys_path(),
    )
    outcomes = run_elastic(job, terms, show_line=show_line)
    return load_values([outcome.pickled for outcome in outcomes], job.function)


def run_elastic(
    job: JobSpec,
    terms: Terms,
    *,
    show_line: Callable[[int, str, str], None] = print_line,
    say: Callable[[str], None] = print_on_stderr,
    gentle: timedelta = timedelta(0),
    hosts: Sequence[Host] | None = None,
    make: MakePlace | None = None,
    cooldown: Cooldown | None = None,
    discovery: Discovery | None = None,
    seats: Placement | None = None,
    look: Callable[[int], None] = lambda started: None,
) -> list[Outcome]:
    """Runs an elastic job to its end.

    Args:
        job: what is run; ``job.size`` is ``terms.size``.
        show_line: prints a line; the rank is the present one, -1 for a process that has none yet.
        say: prints what becomes of the job: who was lost, of how many ranks the next round is.
        gentle: as in `Supervisor`; of processes of this host.
        hosts: on which processes may run; None: on this one alone.
        make: makes their places; None: here.
        cooldown: after which a host that was put out is used again; None: never.
        discovery: tells of hosts that come and go; None: `hosts` are all that there are.
        seats: where there is room, when that is not told by `hosts` and `cooldown`.
        look: called now and then with the number of workers that have started for the first round, all of them from
            then on; ends the job by raising.

    Returns:
        The outcomes of those that ended well, by their last rank.

    Raises:
        JobFailedError: the job could not go on.
    """
    job = elastic(job)

    def here(_host: str, _number: int, _rank: int, relay: Relay, link: socket.socket) -> WorkerHandle:
        return LocalWorkerHandle(job, relay, gentle=gentle, link=link)

    found = Placement(hosts or [Host("", terms.size)], cooldown) if seats is None else seats
    return ElasticJob(terms, show_line, say, gentle, found, make or here, discovery, look).run()


def elastic(job: JobSpec) -> JobSpec:
    """`job`, with what tells its ranks that it is elastic."""
    return replace(job, environment={**job.environment, ELASTIC_VARIABLE: "1"})
