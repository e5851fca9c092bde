"""The states of a supervised worker, and the one table of its transitions."""

from __future__ import annotations

import enum


class WorkerState(enum.Enum):
    """The state of a worker, as its supervisor knows it.

    NEW -> STARTING -> RUNNING -> ENDED is a worker that succeeds, or that dies without a report. FAILED and STOPPED are
    entered at most once; the first of them is the worker's failure.
    """

    #: There is no process yet.
    NEW = enum.auto()
    #: The process waits for its spec, or prepares to run it.
    STARTING = enum.auto()
    #: User code has begun.
    RUNNING = enum.auto()
    #: The worker has reported a failure, or broken its result pipe. It may run its exit handlers for a moment.
    FAILED = enum.auto()
    #: The supervisor was asked to stop it, and has sent it a signal.
    STOPPED = enum.auto()
    #: The process, and everything that it started, has ended. Also a worker that was never started.
    ENDED = enum.auto()


class WorkerEvent(enum.Enum):
    """The events of a worker."""

    #: Its process was started.
    START = enum.auto()
    #: It reported that user code begins.
    BEGIN = enum.auto()
    #: It reported a failure, or its result pipe can't be read.
    FAIL = enum.auto()
    #: `Supervisor.stop` was called.
    STOP = enum.auto()
    #: It was reaped or discarded.
    END = enum.auto()


#: (state, event) -> next state. A pair that is missing is a bug here, or a worker that breaks the protocol.
TRANSITIONS = {
    (WorkerState.NEW, WorkerEvent.START): WorkerState.STARTING,
    (WorkerState.NEW, WorkerEvent.END): WorkerState.ENDED,
    (WorkerState.STARTING, WorkerEvent.BEGIN): WorkerState.RUNNING,
    (WorkerState.STARTING, WorkerEvent.FAIL): WorkerState.FAILED,
    (WorkerState.STARTING, WorkerEvent.STOP): WorkerState.STOPPED,
    (WorkerState.STARTING, WorkerEvent.END): WorkerState.ENDED,
    (WorkerState.RUNNING, WorkerEvent.FAIL): WorkerState.FAILED,
    (WorkerState.RUNNING, WorkerEvent.STOP): WorkerState.STOPPED,
    (WorkerState.RUNNING, WorkerEvent.END): WorkerState.ENDED,
    # The first failure is kept; a stop only ends the worker sooner.
    (WorkerState.FAILED, WorkerEvent.BEGIN): WorkerState.FAILED,
    (WorkerState.FAILED, WorkerEvent.FAIL): WorkerState.FAILED,
    (WorkerState.FAILED, WorkerEvent.STOP): WorkerState.FAILED,
    (WorkerState.FAILED, WorkerEvent.END): WorkerState.ENDED,
    # A worker's reports until the signal reaches it are no longer its failure.
    (WorkerState.STOPPED, WorkerEvent.BEGIN): WorkerState.STOPPED,
    (WorkerState.STOPPED, WorkerEvent.FAIL): WorkerState.STOPPED,
    (WorkerState.STOPPED, WorkerEvent.STOP): WorkerState.STOPPED,
    (WorkerState.STOPPED, WorkerEvent.END): WorkerState.ENDED,
    (WorkerState.ENDED, WorkerEvent.END): WorkerState.ENDED,
}
