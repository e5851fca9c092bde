"""Runs an elastic job as processes, of this host or of several: does what ``elastic.rounds.RoundPlanner`` decides.

``elastic/__init__.py`` defines the terms and the guarantees.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from spark_estimator.elastic.decisions import Terms
from spark_estimator.launch.elastic.job import Discovery, ElasticJob, Following
from spark_estimator.launch.elastic.placement import Cooldown, Placement
from spark_estimator.launch.elastic.process import MakeWorker
from spark_estimator.launch.job.environment import decide_host_threads, make_worker_environment
from spark_estimator.launch.job.hosts import Host
from spark_estimator.launch.job.options import JobOptions
from spark_estimator.launch.job.outcome import Outcome, Relay
from spark_estimator.launch.job.pickling import load_values
from spark_estimator.launch.job.rank_files import DriverFiles
from spark_estimator.launch.job.spec import JobSpec
from spark_estimator.launch.worker.worker_host import LocalWorkerHandle, WorkerHandle
from spark_estimator.observe.driver_log import ShowLine, announce, print_line

ELASTIC_VARIABLE = "HOROVOD_ELASTIC"
_DEFAULTS = JobOptions()
_PLAIN = Following()


def run_elastic_local(function: Callable[..., Any], terms: Terms, options: JobOptions = _DEFAULTS) -> list[Any]:
    """Call `function` as ``local.run_local`` does, in a job that continues when it loses ranks.

    `function` uses ``elastic.run``.

    Args:
        options: its `limits`, `all_results` and `verbose` have no effect.

    Returns:
        The values of the ranks that returned, in the order of their last ranks.

    Raises:
        PicklingError: the function or an argument can't be pickled.
        WorkerFailedError: too few ranks are left, or another limit of `terms` is exceeded; the text lists all
            lost ranks.
        ResultError: a rank's value can't be returned.
        ValueError: an environment variable for the workers has an invalid value.
    """
    environment = make_worker_environment(os.environ, options.variables, decide_host_threads(terms.size))
    job = JobSpec.build(function, terms.size, replace(options, all_results=True), environment)
    outcomes = run_elastic(job, terms, show_line=options.show_line or print_line)
    return load_values([outcome.pickled for outcome in outcomes], job.function)


def run_elastic(
    job: JobSpec,
    terms: Terms,
    *,
    show_line: ShowLine = print_line,
    report: Callable[[str], None] = announce,
    gentle: timedelta = timedelta(0),
    hosts: Sequence[Host] | None = None,
    make: MakeWorker | None = None,
    cooldown: Cooldown | None = None,
    discovery: Discovery | None = None,
    placement: Placement | None = None,
    poll: Callable[[int], None] = lambda started: None,
    following: Following = _PLAIN,
) -> list[Outcome]:
    """Run an elastic job to its end.

    Args:
        job: what is run; ``job.size`` is ``terms.size``.
        show_line: prints a line; the rank is the present one, -1 for a process that has none yet.
        report: prints what becomes of the job: who was lost, of how many ranks the next round is.
        gentle: as in `Supervisor`; of processes of this host.
        hosts: on which processes may run; None: on this one alone.
        make: makes the handles of its workers; None: on this host.
        cooldown: after which a host that was put out is used again; None: never.
        discovery: reports the hosts when they change; None: `hosts` are all that there are.
        placement: where there is room, when `hosts` and `cooldown` do not decide it.
        poll: called now and then with the number of workers that have started for the first round, all of them
            from then on; ends the job by raising.
        following: how the caller follows the job.

    Returns:
        The outcomes of those that ended well, by their last rank.

    Raises:
        JobFailedError: the job could not continue.
    """
    job = mark_elastic(job, progress=following.has_progress)

    def make_local_worker(_host: str, _number: int, _rank: int, relay: Relay, link: socket.socket) -> WorkerHandle:
        return LocalWorkerHandle(job, relay, gentle=gentle, link=link)

    placement = Placement(hosts or [Host("", terms.size + terms.standby)], cooldown) if placement is None else placement
    with DriverFiles(job) as files:
        return ElasticJob(
            terms,
            show_line,
            report,
            gentle,
            placement,
            make or make_local_worker,
            discovery,
            poll,
            encrypted=job.encrypted,
            following=following,
            files=files,
        ).run()


def mark_elastic(job: JobSpec, *, progress: bool = False) -> JobSpec:
    """Return `job`, marked as elastic; with `progress`, its ranks report it: useless where ranks join and leave."""
    return replace(job, progress=progress, environment={**job.environment, ELASTIC_VARIABLE: "1"})
