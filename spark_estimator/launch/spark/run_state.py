"""The states of one start of all ranks on Spark, as the driver sees it, and the one table of their transitions."""

from __future__ import annotations

import enum


class RunState(enum.Enum):
    """RUNNING -> CLOSED is a job that ends on its own."""

    #: The Spark job is submitted, runs, or has ended well.
    RUNNING = enum.auto()
    #: The driver ends the ranks: one of them has failed, the time is over, or the user interrupted it.
    STOPPING = enum.auto()
    #: Spark ended the job with an error: a task failed, an executor was lost, a user cancelled it.
    ENDED_BY_SPARK = enum.auto()
    #: The driver no longer listens to the ranks.
    CLOSED = enum.auto()
    #: The same, after STOPPING: that Spark calls the job cancelled means nothing then.
    CLOSED_AFTER_STOP = enum.auto()


class RunEvent(enum.Enum):
    """The events of such a run."""

    #: The launcher stops the ranks.
    STOP = enum.auto()
    #: Collecting the rows of the Spark job has raised.
    SPARK_ERROR = enum.auto()
    #: The launcher has stopped following the job.
    CLOSE = enum.auto()


#: (state, event) -> next state.
TRANSITIONS = {
    (RunState.RUNNING, RunEvent.STOP): RunState.STOPPING,
    (RunState.RUNNING, RunEvent.SPARK_ERROR): RunState.ENDED_BY_SPARK,
    (RunState.RUNNING, RunEvent.CLOSE): RunState.CLOSED,
    (RunState.STOPPING, RunEvent.STOP): RunState.STOPPING,
    (RunState.STOPPING, RunEvent.SPARK_ERROR): RunState.STOPPING,
    (RunState.STOPPING, RunEvent.CLOSE): RunState.CLOSED_AFTER_STOP,
    (RunState.ENDED_BY_SPARK, RunEvent.STOP): RunState.ENDED_BY_SPARK,
    (RunState.ENDED_BY_SPARK, RunEvent.CLOSE): RunState.CLOSED,
    # The thread that collects rows may outlive an interrupted job by a moment.
    (RunState.CLOSED, RunEvent.SPARK_ERROR): RunState.CLOSED,
    (RunState.CLOSED_AFTER_STOP, RunEvent.SPARK_ERROR): RunState.CLOSED_AFTER_STOP,
}
