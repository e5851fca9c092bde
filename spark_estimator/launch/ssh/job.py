"""A job whose ranks are on several hosts: reaching the hosts, and giving each its share of the ranks."""

from __future__ import annotations

import ipaddress
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar

from spark_estimator.collectives.rendezvous import host_id, new_job_id
from spark_estimator.elastic.rounds import Terms
from spark_estimator.errors import PreflightError, PythonEnvironmentError
from spark_estimator.launch.elastic import elastic, print_on_stderr, run_elastic
from spark_estimator.launch.hosts import Host, is_here, parse_hosts, place, read_hostfile
from spark_estimator.launch.local import run_job
from spark_estimator.launch.outcome import Outcome, Relay
from spark_estimator.launch.pickling import dump_function, load_values, name_of
from spark_estimator.launch.place import LOOPBACK, Place, PlaceHere
from spark_estimator.launch.spec import JobSpec, checked_environment, driver_sys_path, modules_to_preload
from spark_estimator.launch.ssh.agent import address_of
from spark_estimator.launch.ssh.command import SshOptions
from spark_estimator.launch.ssh.connection import HostConnection
from spark_estimator.launch.ssh.environment import exported_environment
from spark_estimator.launch.worker_environment import host_share, path_with_own_python, worker_environment
from spark_estimator.observe.driver_address import driver_address
from spark_estimator.observe.driver_log import print_line

_Item = TypeVar("_Item")
_Found = TypeVar("_Found")


def named_hosts(hosts: str | None, hostfile: str | None, size: int) -> list[Host] | None:
    """The hosts that a user has named; None when all ranks are on this one.

    Args:
        hosts: ``host:slots,...``; None: not given.
        hostfile: a path; None: not given. Without both there is this host alone.
        size: number of ranks.

    Raises:
        ValueError: what was named cannot be used, or has too few slots; the text quotes it.
    """
    if hosts is not None and hostfile is not None:
        raise ValueError(f"hosts {hosts} and hostfile {hostfile}: give one of them.")
    if hosts is not None:
        said, found = hosts, parse_hosts(hosts)
    elif hostfile is not None:
        said, found = hostfile, read_hostfile(hostfile)
    else:
        return None
    used = {share.host.name for share in place(found, size, said)}
    return None if all(_side_by_side(is_here, list(used))) else found


def run_on_hosts(
    job: JobSpec,
    hosts: Sequence[Host],
    options: SshOptions,
    *,
    show_line: Callable[[int, str, str], None] = print_line,
    gentle: timedelta = timedelta(0),
) -> list[Outcome]:
    """Runs all ranks of `job` to their end, each on its host.

    Args:
        job: its environment is what the user has said beside this process's own.
        hosts: with slots enough; ranks fill them in this order.
        gentle: as in `Supervisor`.

    Returns:
        [size] outcomes, in rank order, all of them good.

    Raises:
        PreflightError: a host cannot be had; nothing was started.
        JobFailedError: a rank failed.
    """
    shares = place(hosts, job.size, str([host.name for host in hosts]))
    with Hosts(job, {share.host.name: len(share.ranks) for share in shares}, options, gentle) as reached:

        def places(relay: Relay) -> list[Place]:
            return [reached.place(share.host.name, rank, rank, relay) for share in shares for rank in share.ranks]

        return run_job(job, places, show_line=show_line, gentle=gentle, cancel=reached.cut)


def run_elastic_on_hosts(
    job: JobSpec,
    terms: Terms,
    hosts: Sequence[Host],
    options: SshOptions,
    *,
    show_line: Callable[[int, str, str], None] = print_line,
    say: Callable[[str], None] = print_on_stderr,
    gentle: timedelta = timedelta(0),
) -> list[Outcome]:
    """As ``elastic.run_elastic``, on several hosts: one that is out of contact is not used again.

    Raises:
        PreflightError: a host cannot be had; nothing was started.
        JobFailedError: the job could not go on.
    """
    job = elastic(job)
    with Hosts(job, {host.name: host.slots for host in hosts}, options, gentle) as reached:

        def make(host: str, number: int, rank: int, relay: Relay, link: socket.socket) -> Place:
            return reached.place(host, number, rank, relay, link=link)

        return run_elastic(job, terms, show_line=show_line, say=say, gentle=gentle, hosts=hosts, make=make)


def run_function_on_hosts(
    function: Callable[..., Any],
    size: int,
    hosts: Sequence[Host],
    options: SshOptions,
    *,
    terms: Terms | None = None,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    show_line: Callable[[int, str, str], None] = print_line,
) -> list[Any]:
    """As ``local.run_local`` with all results, on several hosts. Raises `PreflightError`, too, as `run_on_hosts`.

    Args:
        terms: of an elastic job; None: the first failure ends the job.
    """
    payload = dump_function(function, args, kwargs or {})
    job = JobSpec(
        job_id=new_job_id(),
        size=size,
        function=name_of(function),
        payload=payload,
        environment=checked_environment(environment),
        preload=modules_to_preload(payload),
        all_results=True,
        driver_host_id=host_id(),
        driver_sys_path=driver_sys_path(),
    )
    if terms is None:
        outcomes = run_on_hosts(job, hosts, options, show_line=show_line)
    else:
        outcomes = run_elastic_on_hosts(job, terms, hosts, options, show_line=show_line)
    return load_values([outcome.pickled for outcome in outcomes], job.function)


class Hosts:
    """The hosts of one job, this one perhaps among them. A context manager: on leaving it, their agents are gone.

    Args:
        job, options, gentle: as in `run_on_hosts`.
        ranks: host -> how many ranks share its cores.

    Raises:
        PreflightError: some cannot be had; the text names each of them.
    """

    def __init__(self, job: JobSpec, ranks: Mapping[str, int], options: SshOptions, gentle: timedelta) -> None:
        self._job = job
        self._gentle = gentle
        self._options = options
        self._connections: dict[str, HostConnection] = {}
        self._closing = ExitStack()
        self._here: dict[str, JobSpec] = {}
        self._address = LOOPBACK
        try:
            self._reach(ranks)
        except BaseException:
            self._closing.close()
            raise

    def place(self, host: str, number: int, rank: int, relay: Relay, *, link: socket.socket | None = None) -> Place:
        """A place on one of the hosts; the rest is as in `HostConnection.place`."""
        connection = self._connections.get(host)
        if connection is not None:
            return connection.place(number, rank, relay, link=link)
        return PlaceHere(self._here[host], relay, gentle=self._gentle, address=self._address, host=host, link=link)

    def cut(self) -> None:
        """Ends all connections at once; the agents end their ranks."""
        for connection in self._connections.values():
            connection.cut()

    def __enter__(self) -> Hosts:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def _reach(self, ranks: Mapping[str, int]) -> None:
        seconds = self._options.settings.start_timeout_seconds
        deadline = time.monotonic() + seconds
        # All at once: each may take some seconds to end.
        self._closing.callback(lambda: _side_by_side(HostConnection.close, list(self._connections.values())))
        names = list(ranks)
        here = dict(zip(names, _side_by_side(is_here, names), strict=True))
        for name in names:
            if here[name]:
                own = {"PATH": path_with_own_python(self._job.environment.get("PATH") or _path())}
                said = {**self._job.environment, **own}
                environment = worker_environment(os.environ, said, host_share(ranks[name]))
                self._here[name] = replace(self._job, environment=environment)
            else:
                connection = HostConnection(name, self._options)
                self._connections[name] = connection
        greetings = self._ask(lambda connection: connection.greeting(deadline))
        environment = {**exported_environment(os.environ), **self._job.environment}
        job = replace(self._job, environment=environment)
        self._ask(lambda connection: connection.prepare(job, ranks[connection.name], self._gentle, deadline))
        if self._here and self._connections:
            self._address = self._own_address(greetings)
        self._check_addresses()
        _side_by_side(lambda connection: connection.send_payload(job.payload), list(self._connections.values()))

    def _ask(self, what: Callable[[HostConnection], _Found]) -> list[_Found]:
        """What all connections say, asked side by side.

        Raises:
            PreflightError: some hosts cannot be had.
        """

        def asked(connection: HostConnection) -> _Found | PreflightError:
            try:
                return what(connection)
            except PreflightError as error:
                return error

        connections = list(self._connections.values())
        answers = _side_by_side(asked, connections)
        found = [answer for answer in answers if not isinstance(answer, PreflightError)]
        if len(found) == len(answers):
            return found
        failed = [pair for pair in zip(connections, answers, strict=True) if isinstance(pair[1], PreflightError)]
        lines = [f"{len(failed)} of {len(connections)} other hosts cannot be had; nothing was started."]
        lines += [f"  {connection.name}: {error}" for connection, error in failed]
        same = all(isinstance(error, PythonEnvironmentError) for _, error in failed)
        raise (PythonEnvironmentError if same else PreflightError)("\n".join(lines))

    def _own_address(self, greetings: Sequence[Mapping[str, Any]]) -> str:
        """The address of this host at which the ranks of the others can reach its own."""
        if self._options.interfaces:
            try:
                return address_of(self._options.interfaces, "")
            except OSError as error:
                raise PreflightError(f"{socket.gethostname()}: {error}.") from error
        found = []
        for greeting in greetings:
            # As the other host saw this one come; behind a translation of addresses that is none of this host's own.
            with suppress(OSError):
                found.append(driver_address(greeting["launcher_address"], greeting["own_address"]))
        if not found:
            raise PreflightError(
                f"no address of {socket.gethostname()} is known that {', '.join(self._connections)} can reach: name "
                "the network interface, --network-interfaces."
            )
        return next((address for address in found if not _is_loopback(address)), found[0])

    def _check_addresses(self) -> None:
        """Refuses a job of which some ranks would listen where those of other hosts cannot reach them."""
        addresses = {name: connection.address for name, connection in self._connections.items()}
        if self._connections:
            addresses |= dict.fromkeys(self._here, self._address)
        own = [name for name, address in addresses.items() if _is_loopback(address)]
        if own and len(own) < len(addresses):
            raise PreflightError(
                f"ssh reaches {', '.join(own)} at {addresses[own[0]]}, where ranks of the other hosts cannot connect: "
                "name the network interface that they share, --network-interfaces."
            )


def _side_by_side(what: Callable[[_Item], _Found], items: Sequence[_Item]) -> list[_Found]:
    if not items:
        return []
    pool = ThreadPoolExecutor(len(items))
    try:
        return list(pool.map(what, items))
    finally:
        pool.shutdown(wait=False)  # when this thread is interrupted: what the others wait for is about to be closed


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _path() -> str:
    return os.environ.get("PATH", os.defpath)
