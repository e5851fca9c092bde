"""The task of a job's stage on Spark: it runs the supervisor of one worker."""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pyarrow
from pyspark import BarrierTaskContext, SparkFiles, TaskContext

from spark_estimator.collectives.rendezvous import Endpoint, host_id
from spark_estimator.env import SPARK_FILES_VARIABLE
from spark_estimator.launch.job import failures
from spark_estimator.launch.job.environment import decide_task_threads, make_worker_environment
from spark_estimator.launch.job.failures import to_marked_text
from spark_estimator.launch.job.gpus import ORDER, VISIBLE, Pinning, TaskGpus, divide_hosts, find_task_gpus
from spark_estimator.launch.job.outcome import Outcome
from spark_estimator.launch.job.results import ResultRow, make_rows
from spark_estimator.launch.job.spec import JobSpec, TaskFacts, make_rendezvous, make_worker_spec, pin_worker_gpus
from spark_estimator.launch.job.versions import describe_differences, explain_refusal, read_own_versions
from spark_estimator.launch.spark.meeting import BarrierMeeting, DriverMeeting, NotNeededError, RankMeeting, SetupError
from spark_estimator.launch.spark.row_writer import Feeding
from spark_estimator.launch.spark.task_relay import TaskRelay
from spark_estimator.launch.spark.task_secrecy import Parcels
from spark_estimator.launch.worker import orphans
from spark_estimator.launch.worker.child_process import keep_standard_descriptors
from spark_estimator.launch.worker.supervisor import Supervisor

_ARROW_TYPES = (pyarrow.int32(), pyarrow.int32(), pyarrow.string(), pyarrow.int32(), pyarrow.binary())
# Without a driver channel the first task that fails ends the stage: a task that only lost a peer waits, so that the
# task with the cause fails first, also on a busy machine.
_SECONDARY_WAITS = timedelta(seconds=4)


def make_batches(
    outcome: Outcome, partition: int, unsent: Mapping[str, Any] | None = None
) -> Iterator[pyarrow.RecordBatch]:
    """Yield the rows in which a task returns how its worker ended; `unsent` as in `make_rows`."""
    for row in make_rows(outcome, partition, unsent):
        columns = [[value] for value in row]
        yield pyarrow.RecordBatch.from_arrays(
            [pyarrow.array(column, kind) for column, kind in zip(columns, _ARROW_TYPES, strict=True)],
            names=ResultRow._fields,
        )


def make_unstarted_outcome(error: SetupError) -> Outcome:
    """Make the outcome of a task that has got no worker."""
    report = error.report
    return Outcome(report.rank, report.host, report.pid, 1, report)


def make_files_variable() -> dict[str, str]:
    """Return the variable by which a worker's `SparkFiles` find the files that Spark has brought to this task."""
    return {SPARK_FILES_VARIABLE: SparkFiles.getRootDirectory()}


@dataclass(frozen=True)
class StageTask:
    """The function that Spark calls in each task of the stage.

    Attributes:
        job: what is run, without its payload.
        parcels: the payload, and what takes the task's rows.
        barrier: whether it is a barrier stage; else the job has a channel.
    """

    job: JobSpec
    parcels: Parcels
    barrier: bool = True

    def __call__(self, batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        """Supervise one worker and yield its result rows; none if the job does not need this task.

        Raises RuntimeError, with a report, if it cannot be reported otherwise: Spark then ends the job.
        """
        feed = self.parcels.load_feed()
        if feed is None:
            for _ in batches:
                pass
        context = BarrierTaskContext.get() if self.barrier else TaskContext.get()
        assert context is not None
        partition = context.partitionId()
        relay = TaskRelay(self.job)
        try:
            with orphans.end_orphans_on_signal():
                outcome = self._supervise(context, partition, relay, Feeding(feed, batches))
        except NotNeededError:
            return
        except SetupError as error:
            # In a plain stage Spark would run the task again.
            if self.barrier or not relay.connected:
                raise
            outcome = make_unstarted_outcome(error)
            relay.note_failure(error.report)
        finally:
            relay.close()
        yield from make_batches(outcome, partition, relay.to_manifest())

    def _supervise(self, context: TaskContext, partition: int, relay: TaskRelay, feeding: Feeding) -> Outcome:
        keep_standard_descriptors()
        meeting: RankMeeting
        if isinstance(context, BarrierTaskContext):
            meeting = BarrierMeeting(context, relay)
        else:
            meeting = DriverMeeting(self.job, partition, relay)
        endpoint = self._open_endpoint(meeting.find_address())
        around = {**self.job.environment_if_unset, **os.environ}
        environment = make_worker_environment(
            around, self.job.environment, decide_task_threads(context.cpus()), spark=True
        )
        job = replace(self.job, environment={**environment, **make_files_variable()})
        supervisor = Supervisor(job, endpoint, relay, inherited=feeding.worker_ends)
        try:
            supervisor.start()
            feeding.start({**around, **environment})
            meeting.connect(supervisor.stop)
            everyone = meeting.gather_facts(self._collect_facts(context, endpoint, supervisor.pid))
            hosts = divide_hosts([task.host_id for task in everyone], [task.gpus for task in everyone])
            everyone = [replace(task, host_id=host) for task, host in zip(everyone, hosts, strict=True)]
            rendezvous = make_rendezvous(everyone, partition, self.job, endpoint)
            pinned = self._pin_gpus(everyone, partition)
            spec = make_worker_spec(self.job, rendezvous, {**feeding.variables, **pinned.variables})
            meeting.close()
            relay.report_placement(rendezvous.rank, supervisor.pid)
            if rendezvous.rank == 0:  # one reports for all
                self._log_notices(everyone, pinned, relay)
            outcome = supervisor.run(spec, self.parcels.payload.read())
        except BaseException:
            supervisor.discard()
            raise
        finally:
            feeding.end()
        failure = outcome.failure
        if self.barrier and failure is not None and failure.kind != failures.STOPPED and not relay.connected:
            # No process can be asked to stop the others, so Spark has to: this task fails.
            if failure.secondary:
                time.sleep(_SECONDARY_WAITS.total_seconds())
            raise RuntimeError(to_marked_text(failure))
        return outcome

    def _open_endpoint(self, address: str) -> Endpoint:
        """Open the sockets of this task's rank."""
        refused = explain_refusal(self.job.versions, read_own_versions())
        if refused:
            raise SetupError(failures.ENVIRONMENT, refused)
        try:
            return Endpoint.open(address)
        except (OSError, ValueError) as error:
            raise SetupError(
                failures.NOT_STARTED,
                f"could not start: Spark knows its executor as {address!r}, to which its peers must connect, but "
                f"{error}. Set SPARK_LOCAL_IP on that host (spark.driver.host for a local session) to a name or "
                "address that the other hosts reach.",
            ) from error

    def _collect_facts(self, context: TaskContext, endpoint: Endpoint, pid: int) -> TaskFacts:
        """Collect this supervisor's facts, for the others."""
        gpus = context.resources().get("gpu")
        wants = self.job.gpus_per_rank is not None
        return TaskFacts(
            host=socket.gethostname(),
            host_id=host_id(),
            address=endpoint.address,
            port=endpoint.port,
            local_name=endpoint.local_name,
            pid=pid,
            gpus=find_task_gpus(gpus.addresses if gpus is not None else (), os.environ) if wants else TaskGpus(),
            key_share=secrets.token_bytes(32),
            versions=read_own_versions(),
        )

    def _pin_gpus(self, everyone: list[TaskFacts], partition: int) -> Pinning:
        """Return the GPUs of this task's worker; a user's own word for all of them counts where Spark gave none."""
        try:
            pinned = pin_worker_gpus(everyone, partition, self.job)
        except ValueError as error:
            raise SetupError(failures.NOT_STARTED, f"could not start: {error}") from error
        variables = {**self.job.environment_if_unset, **self.job.environment}
        if VISIBLE in variables and not any(task.gpus.names for task in everyone):
            return Pinning({})
        if ORDER in variables or ORDER in os.environ:
            return replace(pinned, variables={name: text for name, text in pinned.variables.items() if name != ORDER})
        return pinned

    def _log_notices(self, everyone: list[TaskFacts], pinned: Pinning, relay: TaskRelay) -> None:
        """Report notices on the job at the driver before the ranks begin."""
        differing = describe_differences(self.job.versions, [(task.host, task.versions) for task in everyone])
        for text in filter(None, (differing, pinned.notice)):
            relay.log(0, f"spark_estimator: {text}")
