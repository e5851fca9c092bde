"""The hosts of one job: connected over ssh before the job begins, or when an elastic job first needs them."""

from __future__ import annotations

import concurrent.futures
import ipaddress
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar

from spark_estimator.collectives.rendezvous import PeerFacts, Rendezvous
from spark_estimator.errors import PreflightError, PythonEnvironmentError, remove_links
from spark_estimator.launch.agent.agent import find_address
from spark_estimator.launch.job.environment import (
    add_own_python,
    decide_host_threads,
    exported_environment,
    make_worker_environment,
)
from spark_estimator.launch.job.hosts import is_here
from spark_estimator.launch.job.outcome import Outcome, Relay
from spark_estimator.launch.job.spec import JobSpec
from spark_estimator.launch.ssh.command import SshOptions
from spark_estimator.launch.ssh.connection import HostConnection
from spark_estimator.launch.worker.worker_host import LOOPBACK, LocalWorkerHandle, WorkerHandle
from spark_estimator.observe.driver_address import find_driver_address

_Item = TypeVar("_Item")
_Found = TypeVar("_Found")

# A documentation address (RFC 5737) that no host has: its route is the route to other hosts.
_ELSEWHERE = "192.0.2.1"


class Hosts:
    """The hosts of one job, this one perhaps among them. A context manager: on exit, their agents end.

    Args:
        job, options, gentle: as in ``job.run_on_hosts``.
        ranks: host -> how many ranks share its cores; these are reached at once.
        others_may_come: ranks of this host listen where other hosts can reach them, even if there is none yet.

    Raises:
        PreflightError: some hosts are unavailable; the text names each of them.
    """

    def __init__(
        self,
        job: JobSpec,
        ranks: Mapping[str, int],
        options: SshOptions,
        gentle: timedelta,
        *,
        others_may_come: bool = False,
    ) -> None:
        self._job = job
        self._gentle = gentle
        self._options = options
        self._others_may_come = others_may_come
        self._connections: dict[str, HostConnection] = {}
        self._greetings: dict[str, Mapping[str, Any]] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._joining: dict[str, Future[None]] = {}
        self._local_jobs: dict[str, JobSpec] = {}
        self._address = ""
        self._closing = ExitStack()
        # All at once: each may take some seconds to end.
        self._closing.callback(lambda: map_in_threads(HostConnection.close, list(self._connections.values())))
        self._closing.callback(self._forbid_connections)
        try:
            self._reach(ranks)
        except BaseException:
            self._closing.close()
            raise

    def make_worker_handle(
        self, host: str, number: int, rank: int, relay: Relay, *, link: socket.socket | None = None
    ) -> WorkerHandle:
        """Make the handle of a worker on a connected host; as `HostConnection.make_worker_handle`."""
        connection = self._connections.get(host)
        if connection is not None:
            return connection.make_worker_handle(number, rank, relay, link=link)
        return LocalWorkerHandle(
            self._local_jobs[host], relay, gentle=self._gentle, address=self._address, host=host, link=link
        )

    def make_pending_worker_handle(
        self, host: str, slots: int, number: int, rank: int, relay: Relay, *, link: socket.socket | None = None
    ) -> WorkerHandle:
        """Make a worker's handle on a host that is connected first if it isn't, or if its connection was lost.

        The arguments are those of `make_worker_handle`.
        """
        connection = self._connections.get(host)
        if host in self._local_jobs or (connection is not None and connection.address and not connection.lost):
            return self.make_worker_handle(host, number, rank, relay, link=link)
        with self._lock:
            if host not in self._joining or self._joining[host].done():
                self._joining[host] = Future()
                threading.Thread(target=self._join, args=(host, slots, self._joining[host]), daemon=True).start()
            joined = self._joining[host]
        return PendingWorkerHandle(joined, lambda: self.make_worker_handle(host, number, rank, relay, link=link))

    def cut(self) -> None:
        """End all connections at once; the agents end their ranks."""
        for connection in self._connections.values():
            connection.cut()

    def __enter__(self) -> Hosts:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def _join(self, host: str, slots: int, joined: Future[None]) -> None:
        try:
            self._disconnect(host)
            self._reach({host: slots})
        except BaseException as error:
            self._disconnect(host)
            # It is the only one that is reached now, and the last line is about it.
            if isinstance(error, PreflightError):
                error = PreflightError(remove_links(str(error)).splitlines()[-1].strip())
            joined.set_exception(error)
        else:
            joined.set_result(None)

    def _reach(self, ranks: Mapping[str, int]) -> None:
        deadline = time.monotonic() + self._options.settings.start_timeout_seconds
        names = list(ranks)
        is_own = dict(zip(names, map_in_threads(is_here, names), strict=True))
        local_jobs = {name: self._make_local_job(ranks[name]) for name in names if is_own[name]}
        connections = [self._connect(name) for name in names if not is_own[name]]
        greetings = self._ask(connections, lambda connection: connection.wait_for_greeting(deadline))
        self._greetings |= {
            connection.name: greeting for connection, greeting in zip(connections, greetings, strict=True)
        }
        environment = {**exported_environment(os.environ), **self._job.environment}
        job = replace(self._job, environment=environment)
        self._ask(
            connections, lambda connection: connection.prepare(job, ranks[connection.name], self._gentle, deadline)
        )
        if local_jobs and not self._address:
            self._address = self._find_own_address()
        self._check_addresses({*self._local_jobs, *local_jobs})
        map_in_threads(lambda connection: connection.send_payload(job.payload), connections)
        self._local_jobs |= local_jobs

    def _make_local_job(self, ranks: int) -> JobSpec:
        path = {"PATH": add_own_python(self._job.environment.get("PATH") or os.environ.get("PATH", os.defpath))}
        variables = {**self._job.environment, **path}
        return replace(
            self._job, environment=make_worker_environment(os.environ, variables, decide_host_threads(ranks))
        )

    def _connect(self, name: str) -> HostConnection:
        with self._lock:
            if self._closed:
                raise PreflightError(f"{name}: the job has ended.")
            try:
                self._connections[name] = connection = HostConnection(name, self._options)
            except OSError as error:
                raise PreflightError(f"{name}: {self._options.ssh[0]!r} can't be started: {error}.") from error
        return connection

    def _disconnect(self, name: str) -> None:
        connection = self._connections.pop(name, None)
        if connection is not None:
            connection.close()

    def _forbid_connections(self) -> None:
        with self._lock:
            self._closed = True

    def _ask(self, connections: Sequence[HostConnection], question: Callable[[HostConnection], _Found]) -> list[_Found]:
        """Ask these connections in parallel. Return their answers. Raises PreflightError: some are unavailable."""

        def ask(connection: HostConnection) -> _Found | PreflightError:
            try:
                return question(connection)
            except PreflightError as error:
                return error

        answers = map_in_threads(ask, connections)
        good_answers = [answer for answer in answers if not isinstance(answer, PreflightError)]
        if len(good_answers) == len(answers):
            return good_answers
        failed = [pair for pair in zip(connections, answers, strict=True) if isinstance(pair[1], PreflightError)]
        lines = [f"{len(failed)} of {len(connections)} other hosts can't be used; no rank was started."]
        lines += [f"  {connection.name}: {error}" for connection, error in failed]
        same = all(isinstance(error, PythonEnvironmentError) for _, error in failed)
        raise (PythonEnvironmentError if same else PreflightError)("\n".join(lines))

    def _find_own_address(self) -> str:
        """Find the address of this host at which the ranks of the others can reach its own."""
        if not self._connections and not self._others_may_come:
            return LOOPBACK
        if self._options.interfaces:
            try:
                return find_address(self._options.interfaces, "")
            except OSError as error:
                raise PreflightError(f"{socket.gethostname()}: {error}.") from error
        if not self._connections:
            try:
                return find_driver_address("", _ELSEWHERE)
            except OSError:
                return LOOPBACK
        addresses = []
        for greeting in self._greetings.values():
            # This host's address as the other host sees it; behind NAT that is not an address of this host.
            with suppress(OSError):
                addresses.append(find_driver_address(greeting["launcher_address"], greeting["own_address"]))
        if not addresses:
            raise PreflightError(
                f"found no address of {socket.gethostname()} that {', '.join(self._connections)} can reach: set the "
                "network interface with --network-interfaces."
            )
        return next((address for address in addresses if not _is_loopback(address)), addresses[0])

    def _check_addresses(self, here: set[str]) -> None:
        """Refuse a job if some ranks would listen at addresses that ranks on other hosts cannot reach."""
        # One that is just being reached by another thread has no address yet, and is looked at there.
        addresses = {
            name: connection.address for name, connection in list(self._connections.items()) if connection.address
        }
        if addresses:
            addresses |= dict.fromkeys(here, self._address)
        loopback = [name for name, address in addresses.items() if _is_loopback(address)]
        if loopback and len(loopback) < len(addresses):
            raise PreflightError(
                f"ssh reaches {', '.join(loopback)} at {addresses[loopback[0]]}, to which ranks of other "
                "hosts can't connect: pass the shared network interface with --network-interfaces."
            )


class PendingWorkerHandle:
    """A `WorkerHandle` on a host that is just being reached; `make` makes the real one, once `joined` is set."""

    def __init__(self, joined: Future[None], make: Callable[[], WorkerHandle]) -> None:
        self._joined = joined
        self._make = make
        self._lock = threading.Lock()
        self._stopped: Future[str] = Future()
        self._handle: WorkerHandle | None = None

    @property
    def pid(self) -> int:
        return 0 if self._handle is None else self._handle.pid

    def start(self) -> PeerFacts | Outcome:
        """Implement `WorkerHandle.start`. Raises PreflightError, too: the host is unavailable."""
        either: list[Future[Any]] = [self._joined, self._stopped]
        concurrent.futures.wait(either, return_when=concurrent.futures.FIRST_COMPLETED)
        with self._lock:
            if self._stopped.done():
                raise InterruptedError(f"it was stopped {self._stopped.result()}")
            self._joined.result()
            self._handle = self._make()
        return self._handle.start()

    def run(self, rendezvous: Rendezvous) -> Outcome:
        assert self._handle is not None
        return self._handle.run(rendezvous)

    def set_rank(self, rank: int) -> None:
        assert self._handle is not None
        self._handle.set_rank(rank)

    def stop(self, reason: str, *, at_once: bool = False) -> None:
        with self._lock:
            if self._handle is None:
                if not self._stopped.done():
                    self._stopped.set_result(reason)
                return
        self._handle.stop(reason, at_once=at_once)

    def discard(self) -> None:
        if self._handle is not None:
            self._handle.discard()


def map_in_threads(function: Callable[[_Item], _Found], items: Sequence[_Item]) -> list[_Found]:
    """Return the result for each item, computed in a separate thread each; in the order of the items."""
    if not items:
        return []
    pool = ThreadPoolExecutor(len(items))
    try:
        return list(pool.map(function, items))
    finally:
        pool.shutdown(wait=False)  # when this thread is interrupted: what the others wait for is about to be closed


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback
