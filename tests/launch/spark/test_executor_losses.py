"""Spark's reasons for the loss of an executor become a sentence with the remedy, also those of a real loss."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("torch")

from spark_estimator.errors import remove_links
from spark_estimator.launch.job import failures
from spark_estimator.launch.job.monitor import JobMonitor
from spark_estimator.launch.spark import errors as spark_errors
from spark_estimator.launch.spark.executor_losses import describe_loss, find_lost_executor
from spark_estimator.launch.spark.rank_events import RankEvents
from spark_estimator.observe import frames
from tests.launch import clusters

JAVA = "org.apache.spark.SparkException: Job aborted due to stage failure: {}\n\tat java.lang.Thread.run(Thread.java)"
BARRIER = (
    "Could not recover from a failed barrier ResultStage. Most recent failure reason: Stage failed because barrier "
    "task ResultTask(4, 1) finished unsuccessfully.\nExecutorLostFailure (executor 0 exited caused by one of the "
    "running tasks) Reason: {}"
)
YARN = (
    "Container killed by YARN for exceeding physical memory limits. 2.2 GB of 2 GB physical memory used. Consider "
    "boosting spark.executor.memoryOverhead."
)
KUBERNETES = """
The executor with id 1 exited with exit code 137(SIGKILL, possible container OOM).
{}

The API gave the following container statuses:


\t container name: spark-kubernetes-executor
\t container state: terminated
\t exit code: 137
\t termination reason: {}
      """
EVICTED = (
    "The API gave the following brief reason: Evicted\n"
    "The API gave the following message: The node was low on resource: memory. Container x was using 3Gi. "
)


def test_a_lost_executor_is_told_by_its_partition_and_reason() -> None:
    text = JAVA.format(BARRIER.format("Command exited with code 137"))
    assert find_lost_executor(text) == (1, "Command exited with code 137")
    assert remove_links(str(spark_errors.make_spark_error(RuntimeError(text), "train()"))).startswith(
        "a Spark executor that had ranks of train() was killed by signal 9 (SIGKILL; Command exited with code 137). "
    )
    often = (
        "Task 1 in stage 3.0 failed 4 times, most recent failure: Lost task 1.3 in stage 3.0 (TID 7) (10.0.0.2 "
        "executor 2): ExecutorLostFailure (executor 2 exited caused by one of the running tasks) Reason: worker lost\n"
        "Driver stacktrace:"
    )
    assert find_lost_executor(JAVA.format(often)) == (1, "worker lost")
    late = "Lost task 0.0 in stage 3.0: ExecutorLostFailure (executor 2 exited unrelated to the running tasks)"
    assert find_lost_executor(JAVA.format(late)) == (None, "")
    assert find_lost_executor(JAVA.format("out of luck")) is None
    many_lines = find_lost_executor(JAVA.format(BARRIER.format(KUBERNETES.format("", "OOMKilled"))))
    assert many_lines is not None and many_lines[1].endswith("OOMKilled")


@pytest.mark.parametrize(
    ("reason", "says", "remedy"),
    [
        (
            YARN,
            "was killed by YARN for exceeding its container's physical memory limit (2.2 GB of 2 GB physical memory "
            "used). ",
            "raise spark.executor.memoryOverhead",
        ),
        (
            "Container killed by YARN for exceeding virtual memory limits. 5 GB of 4.2 GB virtual memory used. "
            "Consider boosting spark.executor.memoryOverhead or boosting yarn.nodemanager.vmem-pmem-ratio or disabling "
            "yarn.nodemanager.vmem-check-enabled because of YARN-4714.",
            "virtual memory limit (5 GB of 4.2 GB virtual memory used). ",
            "yarn.nodemanager.vmem-check-enabled=false",
        ),
        (
            KUBERNETES.format("", "OOMKilled"),
            "was killed by Kubernetes for exceeding its container's memory limit (The executor with id 1 exited with "
            "exit code 137(SIGKILL, possible container OOM)). ",
            "spark.executor.memoryOverhead",
        ),
        (
            KUBERNETES.format(EVICTED, "Error"),
            "was evicted by Kubernetes (The node was low on resource: memory. Container x was using 3Gi). ",
            "spark.executor.memoryOverhead",
        ),
        (KUBERNETES.format("", "Error"), "was killed by signal 9 (SIGKILL; ", "spark.executor.memoryOverhead"),
        ("Container container_1_2 on host: h was preempted.", "was preempted: ", "max_restarts"),
        (
            "Executor for container c exited because of a YARN event (e.g., preemption) and not because of an error in "
            "the running job.",
            "was ended from outside (Executor for container c ",
            "max_restarts",
        ),
        ("The executor with id 1 was deleted by a user or the framework.", "was ended from outside (", "max_restarts"),
        ("Executor decommission: worker decommissioned because of kill request", "was decommissioned (", "elastic"),
        (
            "Container marked as failed: c on host: h. Exit status: -100. Possible causes: Unknown executor exit code "
            "(-100). Diagnostics: Container released on a *lost* node.",
            "was lost with its node (Container marked as failed: c on host: h. ",
            "node",
        ),
        ("worker lost: Not receiving heartbeat for 60 seconds", "was lost with its node (worker lost: ", "node"),
        ("Executor heartbeat timed out after 125000 ms", "is frozen or cut off (Executor heartbeat ", "node"),
        (
            "Container from a bad node: c on host: h. Exit status: 143. Possible causes: . Diagnostics: [2026-11-29]"
            "Container killed on request. Exit code is 143\n[2026-11-29]Killed by external signal\n.",
            "was killed by signal 15 (SIGTERM; ",
            "max_restarts",
        ),
        (
            "Command exited with code 52",
            "has ended with exit code 52 (the JVM had no memory left). ",
            "executor.memory",
        ),
        ("Command exited with code 7", "has ended with exit code 7 (Command exited with code 7). ", "log"),
        ("another word of a later Spark.", "was lost (another word of a later Spark)", ""),
    ],
)
def test_the_reason_stands_first_and_the_remedy_after_it(reason: str, says: str, remedy: str) -> None:
    text = describe_loss(reason)
    assert says in text and remedy in text
    assert "\n" not in text and not text.endswith(".")
    assert "container name" not in text


@pytest.mark.parametrize(
    "reason", ["", "Remote RPC client disassociated. Likely due to containers exceeding thresholds"]
)
def test_what_says_no_more_than_that_it_is_gone_is_left_out(reason: str) -> None:
    assert describe_loss(reason) == ""


def test_the_reason_replaces_the_report_that_has_none() -> None:
    ranks, monitor = RankEvents(), JobMonitor(stop=lambda reason: None, size=3)
    for partition, rank in ((0, 2), (1, 0)):
        ranks.take(partition, {"kind": frames.PLACED, "rank": rank, "host": "h", "pid": 7})
        event = ranks.take(partition, {"kind": frames.GONE})
        monitor.note(event.report)  # type: ignore[union-attr]
    for report in ranks.report_executor_loss(JAVA.format(BARRIER.format(YARN))):
        monitor.note(report)
    cause = failures.find_first_failure(monitor.reports)
    assert cause is not None and (cause.rank, cause.kind) == (0, failures.LOST)
    assert cause.message.startswith("is out of contact: its Spark executor was killed by YARN for exceeding its ")
    assert {report.rank for report in monitor.reports} == {0, 2}
    assert ranks.report_executor_loss("an error without an executor") == []


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("kind", ["barrier", "dynamic allocation", "connect"])
def test_the_signal_of_a_killed_executor_is_told(kind: str, tmp_path: Path) -> None:
    settings = {"spark.ui.enabled": "false", "spark.executor.memory": "512m", "spark.driver.host": "127.0.0.1"}
    if kind == "dynamic allocation":
        settings |= {
            "spark.dynamicAllocation.enabled": "true",
            "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        }
        settings |= {"spark.dynamicAllocation.maxExecutors": "2", "spark.executor.cores": "1"}
    texts = lost_executors(tmp_path, kind, settings)
    assert texts
    for case, text in texts.items():
        signal = (
            "9 (SIGKILL; Command exited with code 137"
            if "KILL" in case
            else "15 (SIGTERM; Command exited with code 143"
        )
        assert f"is out of contact: its Spark executor was killed by signal {signal}" in text, (case, text)


def lost_executors(folder: Path, kind: str, settings: dict[str, str]) -> dict[str, str]:
    """Return the errors of jobs that lose an executor, by job and signal."""
    master = "local-cluster[2,1,512]"
    if kind == "connect":
        with clusters.connect_server(folder, master, settings) as address:
            return run_driver(folder, address, "fixed", "SIGKILL")
    words = [f"{name}={value}" for name, value in settings.items()]
    return run_driver(folder, master, "fixed,elastic", "SIGKILL" if kind == "barrier" else "SIGTERM", *words)


def run_driver(folder: Path, *arguments: str) -> dict[str, str]:
    with clusters.driver("lost_executors.py", *arguments, folder=folder) as driver:
        return {case: str(text) for case, text in driver.wait(300).items()}
