"""A job whose ranks are on several hosts: reaching the hosts, and giving each its share of the ranks."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from spark_estimator.elastic.decisions import Terms
from spark_estimator.launch.elastic.discovery import HostWatch
from spark_estimator.launch.elastic.job_entry import mark_elastic, run_elastic
from spark_estimator.launch.elastic.placement import Cooldown
from spark_estimator.launch.job.hosts import Host, assign_hosts
from spark_estimator.launch.job.options import JobOptions
from spark_estimator.launch.job.outcome import Outcome, Relay
from spark_estimator.launch.job.pickling import load_values
from spark_estimator.launch.job.spec import JobSpec
from spark_estimator.launch.local import run_job
from spark_estimator.launch.ssh.command import SshOptions
from spark_estimator.launch.ssh.hosts import Hosts
from spark_estimator.launch.worker.worker_host import WorkerHandle
from spark_estimator.observe.driver_log import ShowLine, announce, print_line


def run_on_hosts(
    job: JobSpec,
    hosts: Sequence[Host],
    options: SshOptions,
    *,
    show_line: ShowLine = print_line,
    gentle: timedelta = timedelta(0),
) -> list[Outcome]:
    """Run all ranks of `job` to their end, each on its host.

    Args:
        job: its environment has the user's variables beside this process's.
        hosts: with slots enough; ranks fill them in this order.
        gentle: as in `Supervisor`.

    Returns:
        [size] outcomes, in rank order, all of them good.

    Raises:
        PreflightError: a host is unavailable; nothing was started.
        JobFailedError: a rank failed.
    """
    shares = assign_hosts(hosts, job.size, str([host.name for host in hosts]))
    with Hosts(job, {share.host.name: len(share.ranks) for share in shares}, options, gentle) as reached:

        def make_workers(relay: Relay) -> list[WorkerHandle]:
            return [
                reached.make_worker_handle(share.host.name, rank, rank, relay)
                for share in shares
                for rank in share.ranks
            ]

        return run_job(job, make_workers, show_line=show_line, gentle=gentle, cancel=reached.cut)


def run_elastic_on_hosts(
    job: JobSpec,
    terms: Terms,
    hosts: Sequence[Host],
    options: SshOptions,
    *,
    show_line: ShowLine = print_line,
    report: Callable[[str], None] = announce,
    gentle: timedelta = timedelta(0),
    cooldown: Cooldown | None = None,
    watch: HostWatch | None = None,
) -> list[Outcome]:
    """Run an elastic job on several hosts, as ``job_entry.run_elastic``; its errors, and those of `run_on_hosts`."""
    job = mark_elastic(job)
    slots = {host.name: host.slots for host in hosts}
    # A script may print a hundred hosts, of which a few are needed. Hosts that a user has listed are all checked.
    used = (
        slots if watch is None else {share.host.name: share.host.slots for share in assign_hosts(hosts, terms.size, "")}
    )
    with Hosts(job, used, options, gentle, others_may_come=watch is not None) as reached:

        def make(host: str, number: int, rank: int, relay: Relay, link: socket.socket) -> WorkerHandle:
            present = slots if watch is None else {host.name: host.slots for host in watch.hosts}
            return reached.make_pending_worker_handle(host, present.get(host, 1), number, rank, relay, link=link)

        return run_elastic(
            job,
            terms,
            show_line=show_line,
            report=report,
            gentle=gentle,
            hosts=hosts,
            make=make,
            cooldown=cooldown,
            discovery=watch,
        )


def run_function_on_hosts(
    function: Callable[..., Any],
    size: int,
    hosts: Sequence[Host],
    options: SshOptions,
    job_options: JobOptions,
    *,
    terms: Terms | None = None,
    cooldown: Cooldown | None = None,
    watch: HostWatch | None = None,
) -> list[Any]:
    """Call a function on several hosts, as ``local.run_local`` with all results, and errors as of `run_on_hosts`."""
    job = JobSpec.build(function, size, replace(job_options, all_results=True))
    show = job_options.show_line or print_line
    if terms is None:
        outcomes = run_on_hosts(job, hosts, options, show_line=show)
    else:
        outcomes = run_elastic_on_hosts(job, terms, hosts, options, show_line=show, cooldown=cooldown, watch=watch)
    return load_values([outcome.pickled for outcome in outcomes], job.function)
