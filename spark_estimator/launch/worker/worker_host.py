"""Handles of a job's workers, each under a supervisor: on this host (`LocalWorkerHandle`) or on another one.

A launcher starts the workers of all handles, collects the addresses at which they listen, and sends each its rank.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Protocol

from spark_estimator.collectives.rendezvous import Endpoint, PeerFacts, Rendezvous
from spark_estimator.launch.job.outcome import Outcome, Relay
from spark_estimator.launch.job.spec import JobSpec, make_worker_spec
from spark_estimator.launch.worker.child_process import keep_standard_descriptors
from spark_estimator.launch.worker.supervisor import Supervisor

LOOPBACK = "127.0.0.1"


class WorkerHandle(Protocol):
    """`start`, then `run` or `discard`, in one thread, which lives until then; the others from any."""

    @property
    def pid(self) -> int:
        """Return the worker's process on its host; 0 before `start`."""

    def start(self) -> PeerFacts | Outcome:
        """Start the worker, which then waits. Return where it will listen, without a rank, or how it has ended.

        Raises OSError: it cannot be started.
        """

    def run(self, rendezvous: Rendezvous) -> Outcome:
        """Send the worker its rank and peers, and return when it, and all that it started, has ended."""

    def set_rank(self, rank: int) -> None:
        """Give the worker a new rank."""

    def stop(self, reason: str, *, at_once: bool = False) -> None:
        """Have the worker ended; as in `Supervisor`."""

    def discard(self) -> None:
        """End a worker that `run` will not be called for."""


#: Makes the handles of a job's workers, in rank order; their events go to the relay.
WorkerHandles = Callable[[Relay], Sequence[WorkerHandle]]


class LocalWorkerHandle:
    """The handle of a worker on this host.

    Args:
        job, relay, gentle: as in `Supervisor`.
        address: of this host; where the worker listens.
        host: how the job calls this host; '' where it is the only one.
        link: a socket to the launcher that an elastic worker inherits.
    """

    def __init__(
        self,
        job: JobSpec,
        relay: Relay,
        *,
        gentle: timedelta = timedelta(0),
        address: str = LOOPBACK,
        host: str = "",
        link: socket.socket | None = None,
    ) -> None:
        keep_standard_descriptors()
        self._job = job
        self._host = host
        endpoint = Endpoint.open(address)
        self._facts = rename_host(endpoint.facts(0), host)
        self._local_fd = -1 if endpoint.local is None else endpoint.local.fileno()
        self._listen_fd = endpoint.tcp.fileno()
        self._link_fd = -1 if link is None else link.fileno()
        inherited = [] if link is None else [link]
        self._supervisor = Supervisor(job, endpoint, relay, gentle=gentle, inherited=inherited, host=host)

    @property
    def pid(self) -> int:
        return self._supervisor.pid

    def start(self) -> PeerFacts | Outcome:
        self._supervisor.start()
        return replace(self._facts, pid=self.pid)

    def run(self, rendezvous: Rendezvous) -> Outcome:
        own_rendezvous = replace(
            rendezvous, listen_fd=self._listen_fd, local_fd=self._local_fd, launcher_fd=self._link_fd
        )
        return self._supervisor.run(make_worker_spec(self._job, own_rendezvous), self._job.payload)

    def set_rank(self, rank: int) -> None:
        self._supervisor.set_rank(rank)

    def stop(self, reason: str, *, at_once: bool = False) -> None:
        self._supervisor.stop(reason, at_once=at_once)

    def discard(self) -> None:
        self._supervisor.discard()


def rename_host(facts: PeerFacts, host: str) -> PeerFacts:
    """Return `facts` with the user's name for that host, if any: a machine with two names is two hosts."""
    return replace(facts, host=host, host_id=f"{facts.host_id} as {host}") if host else facts
