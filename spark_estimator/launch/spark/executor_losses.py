"""Describes why Spark has lost an executor: reasons of YARN, Kubernetes and standalone masters, and what helps."""

from __future__ import annotations

import re
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from spark_estimator.observe.driver_log import printable
from spark_estimator.posix import SIGNALS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import SparkSession

#: How long a cluster manager may take to report why an executor has ended. YARN reports it with its next heartbeats;
#: a standalone master within five seconds.
REASON_PATIENCE = timedelta(seconds=10)
_ASK_EVERY = timedelta(seconds=0.2)
_MOST_CHARACTERS = 500
_MOST_TASKS = 1 << 20
_MEMORY = (
    "The rank's process is outside of the executor's JVM: raise spark.executor.memoryOverhead, or run fewer ranks on "
    "an executor"
)
_TAKEN_AWAY = "Restart after such a loss with max_restarts, or run an elastic job, which continues without the rank"
_NODE = "Look at the node's state. max_restarts starts all ranks again; an elastic job continues without the rank"
#: Exit codes of Spark's own executors (org.apache.spark.executor.ExecutorExitCode): what they mean, and what helps.
_EXIT_CODES = {
    50: ("an exception that nothing caught", "The executor's log has it"),
    52: ("the JVM had no memory left", "Raise spark.executor.memory"),
    53: ("no folder could be made on its disk", "Look at spark.local.dir and the disk"),
    56: ("its heartbeats did not reach the driver", "Look at the network, and at pauses of the JVM"),
}
_HELP_AFTER_SIGNAL = {
    "SIGKILL": "If no person sent it, the kernel or the container had no memory left. " + _MEMORY,
    "SIGTERM": "The cluster manager, or a person, has asked it to end. " + _TAKEN_AWAY,
}
_CODE = re.compile(r"(?:exited with code|exit code|exit status:|executor exit code) \(?(-?\d+)", re.IGNORECASE)
_OF_CONTAINERS = " The API gave the following container statuses"


def describe_loss(reason: str) -> str:
    """Return what has happened to an executor, to follow the word "executor", and a second sentence on what helps.

    Without a full stop at the end; "" if Spark's `reason` is only that the executor is gone.
    """
    text = printable(" ".join(reason.split())).rstrip(" .")
    if not text or re.match(r"Remote RPC client disassociated|Pending loss reason|Executor Process Lost", text):
        return ""
    for describe in (_describe_memory_limit, _describe_withdrawal, _describe_node_loss, _describe_exit):
        if sentences := describe(text):
            return ". ".join(filter(None, sentences))
    return f"was lost ({_shorten(text)})"


def _describe_memory_limit(text: str) -> tuple[str, str] | None:
    if match := re.search(
        r"killed by YARN for exceeding (\w+) memory limits\.?\s*(?:([^.]*?\d.*? memory used))?", text
    ):
        used = f" ({match[2]})" if match[2] else ""
        more = "; or set yarn.nodemanager.vmem-check-enabled=false on the NodeManagers" if match[1] == "virtual" else ""
        return f"was killed by YARN for exceeding its container's {match[1]} memory limit{used}", _MEMORY + more
    if "OOMKilled" in text:
        return f"was killed by Kubernetes for exceeding its container's memory limit ({_shorten(text)})", _MEMORY
    if match := re.search(r"brief reason: Evicted(?: The API gave the following message: (.*?))?(?= The API|$)", text):
        help_text = _MEMORY if "memory" in (match[1] or "") else "Ask for as much of it as the ranks use"
        return f"was evicted by Kubernetes ({(match[1] or 'no message').rstrip('. ')[:_MOST_CHARACTERS]})", help_text
    return None


def _describe_withdrawal(text: str) -> tuple[str, str] | None:
    if re.search(r"was preempted|Preempt(?:ed|ing)", text):
        return f"was preempted: the cluster gave its resources to others ({_shorten(text)})", _TAKEN_AWAY
    if re.search(r"decommission", text, re.IGNORECASE):
        return f"was decommissioned ({_shorten(text)})", _TAKEN_AWAY
    if re.search(r"deleted by a user or the framework|explicit termination request|YARN event|killed by driver", text):
        return f"was ended from outside ({_shorten(text)})", _TAKEN_AWAY
    return None


def _describe_node_loss(text: str) -> tuple[str, str] | None:
    if re.search(r"\*lost\* node|NodeLost|node shutdown|[Ww]orker lost|worker.*got disassociated", text):
        return f"was lost with its node ({_shorten(text)})", _NODE
    if re.search(r"heartbeat timed out|no recent heartbeats", text, re.IGNORECASE):
        return f"is frozen or cut off ({_shorten(text)})", _NODE
    return None


def _describe_exit(text: str) -> tuple[str, str] | None:
    match = _CODE.search(text)
    if match is None:
        return None
    code = int(match[1])
    if code - 128 in SIGNALS:
        name = SIGNALS[code - 128]
        return f"was killed by signal {code - 128} ({name}; {_shorten(text)})", _HELP_AFTER_SIGNAL.get(name, "")
    meaning, help_text = _EXIT_CODES.get(code, ("", "Its log has more"))
    return f"has ended with exit code {code} ({meaning or _shorten(text)})", help_text


def _shorten(text: str) -> str:
    """Return Spark's words, without the states of containers, cut to a length that is readable inside a sentence."""
    text = text.partition(_OF_CONTAINERS)[0].rstrip(" .")
    return text if len(text) <= _MOST_CHARACTERS else text[:_MOST_CHARACTERS] + " ..."


def find_lost_executor(text: str) -> tuple[int | None, str] | None:
    """Return the partition whose executor was lost, if Spark's `text` names it, and Spark's reason; else None."""
    # Kubernetes' reasons have many lines, the first of which is empty.
    end = r"(?=\n\s+at |\n+(?:Driver|JVM) stacktrace:|\n+Caused by: |\Z)"
    match = re.search(rf"ExecutorLostFailure \([^\n]*?\)(?: Reason: (.*?))?{end}", text, re.DOTALL)
    if match is None:
        return None
    # Of a barrier stage; of another one, whose task has failed too often.
    pattern = r"task \w+\(\d+, (\d+)\) finished unsuccessfully|Task (\d+) in stage [\d.]+ failed"
    task = re.search(pattern, text[: match.start()])
    return int(task[1] or task[2]) if task else None, (match[1] or "").strip().rstrip(".")


class FailedTasks:
    """Asks a classic session how tasks of these stages have failed; `answers` is False over Spark Connect."""

    def __init__(self, spark: SparkSession, stages: Callable[[], Iterable[int]]) -> None:
        self._spark: Any = spark
        self._stages = stages
        self.answers = not type(spark).__module__.startswith("pyspark.sql.connect")

    def find_reason(self, partition: int) -> str | None:
        """Return why the executor of a task was lost; "" if Spark gives no reason; None: no failure is known yet."""
        if not self.answers:
            return None
        failed: dict[int, str] = {}  # attempt -> the error
        try:
            store = self._spark.sparkContext._jsc.sc().statusStore()
            for stage in self._stages():
                tasks = store.taskList(stage, store.lastStageAttempt(stage).attemptId(), _MOST_TASKS)
                for task in (tasks.apply(number) for number in range(tasks.size())):
                    if task.index() == partition and task.errorMessage().isDefined():
                        failed[task.attempt()] = str(task.errorMessage().get())
        except Exception:  # a stopped session, one that forbids Java, or a store that is a moment behind
            return None
        if not failed:
            return None
        lost = find_lost_executor(failed[max(failed)])
        return "" if lost is None else lost[1]

    def wait_for_reason(self, partition: int, patience: timedelta) -> str:
        """Return the reason once the task has failed; "" if Spark gives none within that time."""
        deadline = time.monotonic() + patience.total_seconds()
        while (reason := self.find_reason(partition)) is None and self.answers and time.monotonic() < deadline:
            time.sleep(_ASK_EVERY.total_seconds())
        return reason or ""
