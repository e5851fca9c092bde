"""The Spark task of one process of an elastic job: it runs a host agent of one rank.

The task connects to the driver, which then orders when its worker starts, becomes a rank and ends (``agent.link``).
The task itself, sent by Spark, contains what the worker runs and in which environment: no order on the connection
changes them. A value is returned through Spark, since nothing that will be unpickled may come from a socket. The driver
sends only a share of a round's key.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta

import pyarrow
from pyspark import TaskContext

from spark_estimator.collectives import launcher_link
from spark_estimator.collectives.rendezvous import Rendezvous
from spark_estimator.env import Settings
from spark_estimator.errors import AuthenticationError
from spark_estimator.launch.agent import link as frames
from spark_estimator.launch.agent.link import AgentLink
from spark_estimator.launch.agent.worker_agent import Program, WorkerAgent, pack_outcome
from spark_estimator.launch.job import failures
from spark_estimator.launch.job.environment import decide_task_threads, make_worker_environment
from spark_estimator.launch.job.gpus import ORDER, find_task_gpus, pin_gpus
from spark_estimator.launch.job.outcome import Outcome
from spark_estimator.launch.job.spec import JobSpec, derive_job_key
from spark_estimator.launch.job.versions import explain_refusal, read_own_versions
from spark_estimator.launch.spark.meeting import SetupError, describe_unreachable
from spark_estimator.launch.spark.stage_task import make_batches, make_files_variable, make_unstarted_outcome
from spark_estimator.launch.spark.task_secrecy import Parcels
from spark_estimator.launch.worker import orphans
from spark_estimator.observe.channel import connect_socket
from spark_estimator.security.authentication import RefusedError
from spark_estimator.security.encrypted_stream import open_tunnel


@dataclass(frozen=True)
class ElasticTask:
    """The function that Spark calls in the one task of such a job.

    Attributes:
        job: what is run, without its payload; it has a channel.
        number: identifies the task when it connects to the driver.
        parcels: the payload.
    """

    job: JobSpec
    number: int
    parcels: Parcels

    def __call__(self, batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        """Supervise one worker and yield its result rows; none when the driver has no use for this task."""
        for _ in batches:
            pass
        with orphans.end_orphans_on_signal():
            outcome = self._supervise()
        if outcome is not None:
            yield from make_batches(outcome, self.number)

    def _supervise(self) -> Outcome | None:
        job, address = self.job, self.job.channel
        assert address is not None
        refused = explain_refusal(job.versions, read_own_versions())
        if refused:
            return make_unstarted_outcome(SetupError(failures.ENVIRONMENT, refused))
        try:
            sock, session = connect_socket(
                (address.host, address.port), address.token, job.job_id, self.number, encrypted=job.encrypted
            )
        except RefusedError:
            return None  # Spark has started the task again, and the driver has given up its first start
        except (OSError, AuthenticationError) as error:
            return make_unstarted_outcome(
                SetupError(failures.NOT_STARTED, describe_unreachable(address, error, "an elastic job"))
            )
        context = TaskContext.get()
        cpus = 1 if context is None else context.cpus()
        around = {**job.environment_if_unset, **os.environ}
        environment = make_worker_environment(around, job.environment, decide_task_threads(cpus), spark=True)
        environment |= pin_own_gpus(context, {**around, **environment}) | make_files_variable()
        settings = Settings.read(environment)
        heartbeat, silence = (timedelta(seconds=s) for s in (settings.heartbeat_seconds, settings.silence_seconds))
        own_address = sock.getsockname()[0]
        sock = open_tunnel(sock, session, "the connection to the driver")
        with sock:
            link = AgentLink(sock.fileno(), os.dup(sock.fileno()), heartbeat, silence)
            job = replace(job, environment=environment, payload=self.parcels.payload.read())
            agent = TaskAgent(link, job, own_address, address.token)
            agent.run()
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        return agent.outcome


def pin_own_gpus(context: TaskContext | None, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables by which a worker sees only its task's GPUs of Spark, if any, the first as ``cuda:0``.

    Other ranks of the host come and go, so that device `local_rank` cannot be a rank's own, as in jobs of a fixed size.
    """
    gpus = None if context is None else context.resources().get("gpu")
    if gpus is None or not gpus.addresses:
        return {}
    variables = dict(pin_gpus([find_task_gpus(gpus.addresses, environ)], 0, None).variables)
    return {name: value for name, value in variables.items() if name != ORDER or name not in environ}


class TaskAgent(WorkerAgent):
    """The agent in a Spark task, with one worker.

    Args:
        link: with the driver.
        job: with the environment that the worker gets.
        address: of this host, at which the ranks of others find the worker: that from which the driver was reached.
        token: of the driver channel.

    Attributes:
        outcome: how the worker has ended; None before, and when there was none.
    """

    def __init__(self, link: AgentLink, job: JobSpec, address: str, token: bytes) -> None:
        super().__init__(link, Program(job, job.payload, socket.gethostname(), address))
        self.outcome: Outcome | None = None
        self._token = token
        self._pending = bytearray()

    def hand_over(self, number: int, outcome: Outcome) -> None:
        """Report to the driver how the worker has ended, and keep its value for Spark."""
        self.outcome = outcome
        self.link.send_json(frames.OUTCOME, process=number, **pack_outcome(outcome), bytes=None)

    def complete(self, rendezvous: Rendezvous) -> Rendezvous:
        """Derive the round's key from the share that the driver has sent, and the token that was sent with the task.

        So neither a process that has listened to the connection knows the key, nor one that can read a task's
        description.
        """
        return replace(rendezvous, key=derive_job_key([rendezvous.key], self._token, rendezvous.job_id))

    def translate_relayed(self, received: bytes) -> bytes:
        """Return the bytes that the driver sends to the worker between two rounds, with the keys completed."""
        self._pending += received
        translated = b""
        while (message := launcher_link.take(self._pending)) is not None:
            if message.get("kind") == launcher_link.ROUND:
                coming = self.complete(Rendezvous.from_json(str(message["rendezvous"])))
                message = {**message, "rendezvous": coming.to_json()}
            translated += launcher_link.pack(message)
        return translated
