"""Turns a user's settings of hosts into where a job runs: on this host, on several, or on those that a script names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from spark_estimator._native import require_engine
from spark_estimator.elastic.decisions import Terms
from spark_estimator.launch.elastic.discovery import HostScript, HostWatch, wait_for_first_hosts
from spark_estimator.launch.elastic.placement import Cooldown
from spark_estimator.launch.job.hosts import Host, assign_hosts, is_here, parse_hosts, read_hostfile
from spark_estimator.launch.ssh.command import SshOptions
from spark_estimator.launch.ssh.hosts import map_in_threads


@dataclass(frozen=True)
class Where:
    """Where a job runs.

    Attributes:
        hosts: None: on this one alone.
        options: how they are reached; None where `hosts` is.
        terms: of an elastic job, which begins with as many ranks as there are slots and it may have; None: it is none.
        cooldown: after which a host that was put out is used again; None: never.
        watch: reports the hosts when they change; None: `hosts` are all that there are.
    """

    hosts: list[Host] | None = None
    options: SshOptions | None = None
    terms: Terms | None = None
    cooldown: Cooldown | None = None
    watch: HostWatch | None = None


def find_hosts(
    size: int,
    read_options: Callable[[bool], SshOptions],
    report: Callable[[str], None],
    *,
    hosts: str | None = None,
    hostfile: str | None = None,
    script: str | None = None,
    slots_per_host: int | None = None,
    terms: Terms | None = None,
    cooldown: Cooldown | None = None,
) -> Where:
    """Find the hosts of a job. Runs a script, and waits for the slots of an elastic job.

    Args:
        size: number of ranks.
        read_options: makes the ssh options; its argument: whether another host is needed now.
        report: prints what is waited for.
        hosts: ``host:slots,...``; None: not given.
        hostfile: a path; None: not given. Without all three there is this host alone.
        script: a command that names hosts; of an elastic job.
        slots_per_host: of hosts that it names without a number; None: 1.
        terms, cooldown: of an elastic job; None: it is none.

    Raises:
        NativeLibraryError: this machine has no engine.
        ValueError: what was named cannot be used, or has too few slots; the text quotes it.
        PreflightError: the script does not answer, or offers too few slots.
    """
    require_engine()
    sources = [f"{name} {value}" for name, value in (("hosts", hosts), ("hostfile", hostfile)) if value is not None]
    sources += [] if script is None else [f"host discovery script {script}"]
    if len(sources) > 1:
        raise ValueError(f"{' and '.join(sources)}: only one of them can be used.")
    if script is not None:
        if terms is None:
            raise ValueError(f"{sources[0]} needs an elastic job.")
        asked = HostScript(script, slots_per_host or 1)
        hosts_found = wait_for_first_hosts(asked, size, terms.timeout, report)
        watch = HostWatch(asked, hosts_found)
        return Where(
            hosts_found, read_options(not _are_all_here(hosts_found)), _fill_slots(hosts_found, terms), cooldown, watch
        )
    if slots_per_host is not None:
        raise ValueError(f"slots_per_host={slots_per_host} needs a host discovery script.")
    if not sources:
        return Where(terms=terms)
    hosts_found = parse_hosts(hosts) if hosts is not None else read_hostfile(str(hostfile))
    if terms is not None:
        terms = _fill_slots(hosts_found, terms)
    used = assign_hosts(
        hosts_found, size if terms is None else terms.size, str(hosts if hosts is not None else hostfile)
    )
    if _are_all_here([share.host for share in used]):
        return Where(terms=terms)
    return Where(hosts_found, read_options(True), terms, cooldown)


def _fill_slots(hosts: list[Host], terms: Terms) -> Terms:
    slots = sum(host.slots for host in hosts)
    return replace(terms, size=max(terms.size, min(slots, terms.most)) if terms.replace else terms.size)


def _are_all_here(hosts: list[Host]) -> bool:
    return all(map_in_threads(is_here, [host.name for host in hosts]))
