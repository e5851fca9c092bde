"""What Spark runs in each task of a job's barrier stage: the supervisor of one worker."""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta

import pyarrow
from pyspark import BarrierTaskContext

from spark_estimator import __version__
from spark_estimator.collectives.rendezvous import Endpoint, host_id
from spark_estimator.launch import failures
from spark_estimator.launch.failures import FailureReport, to_marked_text
from spark_estimator.launch.feed import Feed, Feeding
from spark_estimator.launch.outcome import Outcome
from spark_estimator.launch.results import ResultRow, rows_of
from spark_estimator.launch.spec import JobSpec, TaskFacts, devices_of, owned_gpus, rendezvous_of, worker_spec
from spark_estimator.launch.supervisor import Supervisor
from spark_estimator.launch.task_relay import TaskRelay
from spark_estimator.launch.worker_environment import task_share, worker_environment

_ARROW_TYPES = (pyarrow.int32(), pyarrow.int32(), pyarrow.string(), pyarrow.int32(), pyarrow.binary())
# Without a driver channel the first task that fails ends the stage: one that only lost a peer lets the cause go first.
_SECONDARY_WAITS = timedelta(seconds=1.5)
# A supervisor that has no connection to the driver by then exchanges addresses through Spark: a firewall that drops
# what it does not like is waited for no longer.
_CONNECTS_WITHIN = timedelta(seconds=1.5)


@dataclass(frozen=True)
class BarrierTask:
    """What Spark calls in each task of the stage. It holds nothing but the job's description, and who takes rows."""

    job: JobSpec
    feed: Feed | None = None

    def __call__(self, batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        """Supervises one worker and yields its result rows."""
        if self.feed is None:
            for _ in batches:
                pass
        context = BarrierTaskContext.get()
        partition = context.partitionId()
        relay = TaskRelay(self.job)
        try:
            outcome = self._supervise(context, partition, relay, Feeding(self.feed, batches))
        finally:
            relay.close()
        for row in rows_of(outcome, partition):
            columns = [[value] for value in row]
            yield pyarrow.RecordBatch.from_arrays(
                [pyarrow.array(column, kind) for column, kind in zip(columns, _ARROW_TYPES, strict=True)],
                names=ResultRow._fields,
            )

    def _supervise(self, context: BarrierTaskContext, partition: int, relay: TaskRelay, feeding: Feeding) -> Outcome:
        if self.job.package_version != __version__:
            raise _setup_failure(
                failures.ENVIRONMENT,
                f"runs spark_estimator {__version__}, but the driver runs {self.job.package_version}: install the "
                "same version on both.",
            )
        address = context.getTaskInfos()[partition].address.rpartition(":")[0].strip("[]")
        try:
            endpoint = Endpoint.open(address)
        except (OSError, ValueError) as error:
            raise _setup_failure(
                failures.NOT_STARTED,
                f"could not start: Spark knows its executor as {address!r}, where its peers would have to connect, but "
                f"{error}. Give that host a name or address of its own that the others reach: set SPARK_LOCAL_IP "
                "there, or spark.driver.host for a local session.",
            ) from error
        around = {**self.job.environment_if_unset, **os.environ}
        environment = worker_environment(around, self.job.environment, task_share(context.cpus()), spark=True)
        job = replace(self.job, environment=environment)
        supervisor = Supervisor(job, endpoint, relay, inherited=feeding.worker_ends)
        try:
            supervisor.start()
            feeding.start()
            connecting = threading.Thread(target=relay.connect, args=(partition, supervisor.stop), daemon=True)
            connecting.start()
            connecting.join(_CONNECTS_WITHIN.total_seconds())
            everyone = self._exchange_facts(context, endpoint, supervisor.pid, relay)
            rendezvous = rendezvous_of(everyone, partition, self.job, endpoint)
            spec = worker_spec(self.job, rendezvous, devices_of(everyone, partition), feeding.variables)
            connecting.join()
            relay.placed(rendezvous.rank, supervisor.pid)
            outcome = supervisor.run(spec, self.job.payload)
        except BaseException:
            supervisor.discard()
            raise
        finally:
            feeding.end()
        failure = outcome.failure
        if failure is not None and failure.kind != failures.STOPPED and not relay.connected:
            # Nobody can be told to stop the others, so Spark has to: this task fails.
            if failure.secondary:
                time.sleep(_SECONDARY_WAITS.total_seconds())
            raise RuntimeError(to_marked_text(failure))
        return outcome

    def _exchange_facts(
        self, context: BarrierTaskContext, endpoint: Endpoint, pid: int, relay: TaskRelay
    ) -> list[TaskFacts]:
        """The facts of all supervisors, by partition."""
        gpus = context.resources().get("gpu")
        facts = TaskFacts(
            host=socket.gethostname(),
            host_id=host_id(),
            address=endpoint.address,
            port=endpoint.port,
            local_name=endpoint.local_name,
            pid=pid,
            gpus=owned_gpus(gpus.addresses, os.environ.get("CUDA_VISIBLE_DEVICES")) if gpus is not None else (),
            key_share=secrets.token_bytes(32),
        )
        try:
            everyone = relay.everyones_facts(facts)
        except ConnectionError as error:
            raise _setup_failure(failures.STOPPED, f"was stopped: {error}") from error
        if everyone is not None:
            return everyone
        return [TaskFacts.from_json(text) for text in context.allGather(facts.to_json())]


def _setup_failure(kind: str, message: str) -> RuntimeError:
    """What a task raises before it has a worker to report on."""
    return RuntimeError(to_marked_text(FailureReport(-1, socket.gethostname(), 0, kind, message, when=time.time())))
