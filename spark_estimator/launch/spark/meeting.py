"""Exchanges the addresses of a job's supervisors: through Spark's barrier stage, or only at the driver."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Protocol

from pyspark import BarrierTaskContext

from spark_estimator.errors import AuthenticationError
from spark_estimator.launch.job import failures
from spark_estimator.launch.job.failures import FailureReport, to_marked_text
from spark_estimator.launch.job.spec import ChannelAddress, JobSpec, TaskFacts
from spark_estimator.launch.spark.task_relay import TaskRelay
from spark_estimator.observe.channel import SupervisorChannel, connect_socket
from spark_estimator.security.authentication import RefusedError
from spark_estimator.security.encryption import Session

# A supervisor that has no connection to the driver by then exchanges addresses through Spark: a firewall that drops
# what it does not like is waited for no longer.
_CONNECTS_WITHIN = timedelta(seconds=1.5)
# How often a task asks whether another attempt of it still runs.
_ASKS_EVERY = timedelta(seconds=1)


class SetupError(RuntimeError):
    """A task has no worker to report on; the text carries the report to the driver. `report`: why not."""

    def __init__(self, kind: str, message: str) -> None:
        self.report = FailureReport(-1, socket.gethostname(), 0, kind, message, when=time.monotonic())
        super().__init__(to_marked_text(self.report))


class NotNeededError(Exception):
    """The job has no use for this attempt of a task: it is to end without rows, and without an error."""


class RankMeeting(Protocol):
    """The supervisors of one job, as one of them sees them. Its methods are called in the order of their definition."""

    def find_address(self) -> str:
        """Return the address of this host at which the others reach its rank. Raises SetupError, NotNeededError."""

    def connect(self, on_stop: Callable[[str], None]) -> None:
        """Connect to the driver, whose orders to stop are passed on with their reasons."""

    def gather_facts(self, own_facts: TaskFacts) -> list[TaskFacts]:
        """Return the facts of all supervisors, by partition, once all have arrived.

        Raises:
            SetupError, NotNeededError
        """

    def close(self) -> None:
        """End the exchange: on return the driver has this rank's connection, if it can be reached at all."""


class BarrierMeeting:
    """In a barrier stage: at the driver if it can be reached, else through Spark's own exchange."""

    def __init__(self, context: BarrierTaskContext, relay: TaskRelay) -> None:
        self._context = context
        self._relay = relay
        self._connecting = threading.Thread()

    def find_address(self) -> str:
        """Return the address by which Spark knows the executor."""
        partition = self._context.partitionId()
        return self._context.getTaskInfos()[partition].address.rpartition(":")[0].strip("[]")

    def connect(self, on_stop: Callable[[str], None]) -> None:
        """Implement `RankMeeting.connect`. It may still be trying on return."""
        arguments = (self._context.partitionId(), on_stop)
        self._connecting = threading.Thread(target=self._relay.connect, args=arguments, daemon=True)
        self._connecting.start()
        self._connecting.join(_CONNECTS_WITHIN.total_seconds())

    def gather_facts(self, own_facts: TaskFacts) -> list[TaskFacts]:
        try:
            everyone = self._relay.gather_facts(own_facts)
        except ConnectionError as error:
            raise SetupError(failures.STOPPED, f"was stopped: {error}") from error
        if everyone is not None:
            return everyone
        return [TaskFacts.from_json(text) for text in self._context.allGather(own_facts.to_json())]

    def close(self) -> None:
        self._connecting.join()


class DriverMeeting:
    """In a stage whose tasks start one by one: at the driver, which has to be reachable.

    Spark may run a task more than once. The driver admits one attempt, and another one only if the first is lost before
    all have met; then it has run nothing. A refused attempt asks again until Spark ends it, or the job is over: if it
    returned, Spark would count that as the task's success.
    """

    def __init__(self, job: JobSpec, partition: int, relay: TaskRelay) -> None:
        self._job = job
        self._partition = partition
        self._relay = relay
        self._lock = threading.Lock()
        self._stop_reason: str | None = None
        self._on_stop: Callable[[str], None] | None = None

    def find_address(self) -> str:
        """Return the address from which the driver is reached. On return the relay can report failures."""
        sock, session = self._dial()
        address = str(sock.getsockname()[0])
        self._relay.attach(SupervisorChannel(sock, self._stop, session))
        return address

    def connect(self, on_stop: Callable[[str], None]) -> None:
        """Implement `RankMeeting.connect`; it is connected already, and may have been stopped."""
        with self._lock:
            self._on_stop = on_stop
            reason = self._stop_reason
        if reason is not None:
            on_stop(reason)

    def gather_facts(self, own_facts: TaskFacts) -> list[TaskFacts]:
        """Implement `RankMeeting.gather_facts`. Waits as long as it takes until the last facts arrive."""
        everyone = None
        with suppress(ConnectionError):
            everyone = self._relay.gather_facts(own_facts)
        if everyone is not None:
            return everyone
        if self._relay.stopped:
            raise NotNeededError("the driver ended the job before all ranks were there")
        # Its task fails, and Spark starts it again.
        raise SetupError(failures.NOT_STARTED, "lost its connection to the driver before all ranks were there")

    def close(self) -> None:
        pass

    def _stop(self, reason: str) -> None:
        with self._lock:
            self._stop_reason = reason
            on_stop = self._on_stop
        if on_stop is not None:
            on_stop(reason)

    def _dial(self) -> tuple[socket.socket, Session | None]:
        address = self._job.channel
        assert address is not None
        refused = False
        while True:
            try:
                return connect_socket(
                    (address.host, address.port),
                    address.token,
                    self._job.job_id,
                    self._partition,
                    encrypted=self._job.encrypted,
                )
            except RefusedError:
                refused = True
            except (OSError, AuthenticationError) as error:
                if not refused:
                    text = describe_unreachable(address, error, "a job without a barrier stage")
                    raise SetupError(failures.NOT_STARTED, text) from error
                if isinstance(error, ConnectionRefusedError):  # nothing listens there any more
                    raise NotNeededError("the job is over") from error
            time.sleep(_ASKS_EVERY.total_seconds())


def describe_unreachable(address: ChannelAddress, error: Exception, job: str) -> str:
    """Return the message for a task that cannot connect to the driver; `job`: which kind needs it."""
    return (
        f"cannot reach the driver at {address.host}:{address.port} ({error}), which {job} needs: allow the executors "
        "to connect to the driver's host, or set spark.driver.host to an address that they can reach."
    )
