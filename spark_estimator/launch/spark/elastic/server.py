"""One Spark job of one task, as the driver sees it; and the server to which such tasks connect."""

from __future__ import annotations

import os
import queue
import secrets
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta

from pyspark.sql import SparkSession

from spark_estimator.errors import AuthenticationError
from spark_estimator.launch.agent.link import AgentLink
from spark_estimator.launch.job.results import SCHEMA, ResultRow
from spark_estimator.launch.job.spec import ChannelAddress, JobSpec
from spark_estimator.launch.spark.elastic.task import ElasticTask
from spark_estimator.launch.spark.executor_losses import FailedTasks
from spark_estimator.launch.spark.job_tag import JobTag
from spark_estimator.launch.spark.rank_stage import make_rank_stage, profile_of
from spark_estimator.launch.spark.session import make_session_thread
from spark_estimator.launch.spark.start import TaskReports
from spark_estimator.launch.spark.task_secrecy import Parcels, suppress_logs
from spark_estimator.observe.channel import unpack_context
from spark_estimator.security import authentication
from spark_estimator.security.encrypted_stream import open_tunnel
from spark_estimator.security.encryption import Session
from spark_estimator.security.handshake_server import HandshakeServer


@dataclass(frozen=True)
class Connected:
    """The task runs, and has reached the driver."""

    link: AgentLink


@dataclass(frozen=True)
class Over:
    """The task's Spark job is over, with these rows, or with an error of Spark."""

    rows: list[ResultRow] = field(default_factory=list)
    error: BaseException | None = None


@dataclass(frozen=True)
class Stopped:
    """The job has asked for its end."""


class SparkTask:
    """A Spark job of one task. To be made in the thread whose job group and tags it shall have.

    Args:
        number: by which the task is known when it connects.
        job: what it runs, without its payload.
        parcels: the payload.
        tag: of all tasks of the elastic job.
        link_to: makes the link over a socket.

    Attributes:
        events: `Connected`, `Over` and `Stopped`, as they happen.
        over: how it has ended; None before.
        submitted: Spark was asked to run it.
        given_up: `give_up` was called: that it ends means nothing.
    """

    def __init__(
        self,
        spark: SparkSession,
        number: int,
        job: JobSpec,
        parcels: Parcels,
        tag: JobTag,
        link_to: Callable[[socket.socket], AgentLink],
    ) -> None:
        self.number = number
        self.events: queue.Queue[Connected | Over | Stopped] = queue.Queue()
        self.over: Over | None = None
        self.submitted = False
        self.given_up = False
        self._spark = spark
        self._job = job
        self._parcels = parcels
        self._common_tag = tag
        self._tag = JobTag(spark, f"{tag.text}-{number}")
        self._link_to = link_to
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._needed = threading.Event()
        # Started here, as it takes over the properties of the thread that starts it; it waits until it is wanted.
        self._thread = make_session_thread(spark, self._collect)
        self._thread.start()

    def submit(self) -> None:
        """Have Spark run the task, once there is a slot."""
        self.submitted = True
        self._needed.set()

    def attach(self, sock: socket.socket) -> None:
        """Note that the task has connected. Raises AuthenticationError: it is not expected, or has connected before."""
        with self._lock:
            if self.given_up or self._socket is not None:
                raise AuthenticationError(f"task {self.number} is no longer needed, or has connected before")
            self._socket = sock
        self.events.put(Connected(self._link_to(sock)))

    def wake(self) -> None:
        """End the wait of a thread that waits for an event."""
        self.events.put(Stopped())

    def hang_up(self) -> None:
        """End the connection: the task ends its worker, if there is one, and itself."""
        with self._lock:
            sock = self._socket
        if sock is not None:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def give_up(self, patience: timedelta = timedelta(0)) -> None:
        """End the task, after `patience`, and its Spark job. May block for as long as Spark takes to answer."""
        self.given_up = True
        self._needed.set()
        self.hang_up()
        if self.submitted and self.wait(patience) is None:
            self._tag.cancel()

    def wait(self, patience: timedelta) -> Over | None:
        """Wait for the end of the Spark job; None when it is not over by then."""
        if self.submitted:
            self._thread.join(patience.total_seconds())
        return self.over

    def wait_for_loss_reason(self, patience: timedelta) -> str:
        """Return why Spark has lost the task's executor; "" if it gives no reason within that time."""
        return FailedTasks(self._spark, self.find_stages).wait_for_reason(0, patience)

    def find_stages(self) -> set[int]:
        """Return the stages of the task, in a classic session."""
        return TaskReports(self._spark, self._tag.text).find_own_stages()

    def close(self) -> None:
        """Close the socket, once the link is no longer in use."""
        with self._lock:
            if self._socket is not None:
                self._socket.close()

    def _collect(self) -> None:
        over = Over(error=InterruptedError("it was cancelled before Spark had started it"))
        self._needed.wait()
        try:
            if self.given_up:
                return
            self._common_tag.add()
            self._tag.add(f"{self._job.function}, an elastic job's task {self.number}")
            task = ElasticTask(self._job, self.number, self._parcels)
            with suppress_logs():
                profile = profile_of(self._spark)
                frame = make_rank_stage(self._spark.range(0, 1, 1, 1), task, SCHEMA, barrier=False, profile=profile)
                rows = frame.collect()
            over = Over([ResultRow(*row) for row in rows])
        except BaseException as error:
            over = Over(error=error)
        finally:
            self.over = over
            self.events.put(over)
            self.hang_up()


class TaskServer:
    """The server to which the tasks of an elastic job connect; `job` has the channel with which they find it."""

    def __init__(self, address: str, job: JobSpec) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listener = socket.create_server((address, 0), family=family)
        token = secrets.token_bytes(authentication.KEY_BYTES)
        host, port = listener.getsockname()[:2]
        self.job = replace(job, channel=ChannelAddress(host, port, token))
        self._tasks: dict[int, SparkTask] = {}
        self._handshake_server = HandshakeServer(
            [listener], token, self._admit, approve=self._approve, name="elastic driver", encrypted=job.encrypted
        )

    def expect(self, task: SparkTask) -> None:
        """Allow this task to connect from now on."""
        self._tasks[task.number] = task

    def close(self) -> None:
        """Accept no more connections."""
        self._handshake_server.close()

    def _approve(self, context: bytes) -> None:
        job_id, number = unpack_context(context)
        task = self._tasks.get(number)
        if job_id != self.job.job_id.encode() or task is None or task.given_up:
            raise AuthenticationError(f"no task of that job and number is expected: {job_id!r}, {number}")

    def _admit(self, sock: socket.socket, context: bytes, origin: str, session: Session | None) -> None:
        number = unpack_context(context)[1]
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._tasks[number].attach(open_tunnel(sock, session, f"the connection of elastic task {number}"))


def open_link(sock: socket.socket, heartbeat: timedelta, silence: timedelta) -> AgentLink:
    """Open the driver's end of the connection to a task's agent."""
    sock.settimeout(None)
    return AgentLink(sock.fileno(), os.dup(sock.fileno()), heartbeat, silence)
