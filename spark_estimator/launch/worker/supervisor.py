"""Starts one worker, sends its spec, reads its output and reports until it ends, and leaves none of its processes
alive.
"""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import signal
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from spark_estimator.collectives.rendezvous import Endpoint
from spark_estimator.env import Settings
from spark_estimator.launch.job.outcome import Outcome, Relay
from spark_estimator.launch.job.rank_files import RankFiles
from spark_estimator.launch.job.spec import JobSpec, WorkerSpec
from spark_estimator.launch.log_relay.worker_output import STREAMS, WorkerIdentity, WorkerOutput
from spark_estimator.launch.worker import child_process
from spark_estimator.launch.worker.batching_selector import RestingSelector
from spark_estimator.launch.worker.child_process import FROZEN_INTERVAL, FrozenWatch, MemoryBaseline
from spark_estimator.launch.worker.requests import SupervisorRequests
from spark_estimator.launch.worker.state import TRANSITIONS, WorkerEvent, WorkerState
from spark_estimator.launch.worker.worker import make_input
from spark_estimator.launch.worker.worker_process import WorkerProcess
from spark_estimator.launch.worker.worker_report import WorkerReport
from spark_estimator.observe.progress import Progress
from spark_estimator.peer_json import parse_json
from spark_estimator.state_machine import StateMachine

_READ_BYTES = 1 << 16
# After a read of less than that from stdout or stderr, the next lines are left to gather.
_FEW_BYTES = 1 << 13

# How long a worker that has reported its failure may run its exit handlers.
_FAREWELL = timedelta(seconds=2)
# How long the process of a worker whose function has returned may take to end, before that is reported, and at most.
_SLOW_END = timedelta(seconds=10)
_LONGEST_END = timedelta(minutes=5)
# How long a worker may be stopped by a signal, in multiples of SPARK_ESTIMATOR_SILENCE_SECONDS.
_FROZEN_SILENCES = 1.5
# The longest time for which the pipes of a dead group are read: a process that left the group may hold them open.
_DRAIN = timedelta(seconds=0.5)


def _get_reading_order(ready: tuple[selectors.SelectorKey, int]) -> int:
    """Order stdout, stderr, others, results: what was printed before a failure is known when the failure is."""
    name = ready[0].data
    return STREAMS.index(name) if name in STREAMS else 3 if name == "result" else 2


def _read_silence_limit(job: JobSpec) -> timedelta:
    """Return how long a worker may be stopped by a signal; zero where heartbeats are turned off."""
    try:
        settings = Settings.read({**os.environ, **job.environment})
    except ValueError:  # init() names the variable
        settings = Settings()
    # Longer than the silence, as other ranks can report what they waited for.
    return timedelta(seconds=_FROZEN_SILENCES * settings.silence_seconds if settings.heartbeat_seconds else 0)


@dataclass(frozen=True)
class _Worker:
    """The parts of a started worker."""

    process: WorkerProcess
    output: WorkerOutput
    report: WorkerReport
    files: RankFiles


class Supervisor:
    """One worker's parent. `start`, then `run` or `discard` in one thread; `stop` and `set_rank` from any thread.

    Its states and their transitions are in ``worker.state``.

    Args:
        job: what is run.
        endpoint: the sockets that the worker inherits; closed here once it has started.
        relay: receives every event as it happens.
        gentle: how long a stopped worker may take to end after SIGTERM before it is killed; zero kills at once.
        inherited: more sockets that the worker inherits and that are closed here once it has started.
        host: how the job calls this host; '' for its own name.
    """

    def __init__(
        self,
        job: JobSpec,
        endpoint: Endpoint,
        relay: Relay,
        *,
        gentle: timedelta = timedelta(0),
        inherited: Sequence[socket.socket] = (),
        host: str = "",
    ) -> None:
        self._job = job
        self._endpoint = endpoint
        self._relay = relay
        self._gentle = gentle
        self._inherited = inherited
        self._identity = WorkerIdentity(-1, host or socket.gethostname())
        self._state = StateMachine(WorkerState.NEW, TRANSITIONS)
        self._requests = SupervisorRequests()
        self._worker: _Worker | None = None
        self._kill_at: float | None = None
        self._slow_at: float | None = None
        self._frozen = FrozenWatch(_read_silence_limit(job))

    @property
    def pid(self) -> int:
        """Return the worker's process; 0 before `start`."""
        return self._worker.process.pid if self._worker else 0

    def start(self) -> None:
        """Start the worker, which then waits for its spec. The calling thread must live as long as the worker.

        Raises:
            OSError: the process can't be started.
        """
        descriptors = [*self._endpoint.filenos(), *(sock.fileno() for sock in self._inherited)]
        memory_before = MemoryBaseline.take()
        process = WorkerProcess(self._job, descriptors)
        self._identity.pid = process.pid
        environ = {**self._job.environment_if_unset, **os.environ, **self._job.environment}
        output = WorkerOutput(process.stdout, process.stderr, self._identity, self._relay, environ)
        report = WorkerReport(self._job, self._identity, self._state, output, self._relay, memory_before)
        self._worker = _Worker(process, output, report, RankFiles(environ, process.mark))
        self._state.fire(WorkerEvent.START)

    def run(self, spec: WorkerSpec, payload: bytes) -> Outcome:
        """Send the worker its spec, and return when it, and everything that it started, has ended."""
        worker = self._worker
        assert worker is not None
        process = worker.process
        self._identity.rank = -1 if spec.rendezvous.awaited else spec.rendezvous.rank
        self._close_inherited()
        process.set_input(make_input(spec, payload))
        del payload
        with contextlib.ExitStack() as stack:
            stack.callback(self._requests.close)
            stack.callback(process.close)
            selector = stack.enter_context(RestingSelector())
            exit_descriptor = self._register(selector, process)
            if exit_descriptor >= 0:
                stack.callback(os.close, exit_descriptor)
            try:
                while not process.has_ended:
                    for key, _ in sorted(
                        selector.select(self._choose_timeout(exit_descriptor)), key=_get_reading_order
                    ):
                        self._handle(key, selector, worker)
                    self._kill_when_due(process)
                    self._report_slow_end(worker)
                    self._kill_if_frozen(worker)
                # Before the leader is reaped: until then no other group can have got its number.
                process.kill()
                self._drain(selector, worker)
            except BaseException:
                process.kill()
                raise
            finally:
                exit_code, peak_bytes = process.reap()
        worker.output.flush()
        worker.files.send(self._identity.rank, self._identity.host, self._relay)
        outcome = worker.report.conclude(exit_code, peak_bytes)
        self._state.fire(WorkerEvent.END)
        return outcome

    def set_rank(self, rank: int) -> None:
        """Give the worker another rank, under which its lines and its end are reported from now on.

        On return what it has printed before is passed on under the old one.
        """
        if not self._requests.rename(rank):  # it has ended, or `run` was not called yet
            self._identity.rank = rank

    def stop(self, reason: str, *, at_once: bool = False) -> None:
        """Have the worker's group killed; `run` then returns. Idempotent, and harmless when the worker has ended.

        Args:
            reason: follows "was stopped" in messages.
            at_once: without the time that `gentle` would leave it.
        """
        self._requests.stop(reason, at_once=at_once)

    def warn(self, number: int) -> None:
        """Send the rank a signal, once user code has begun: the rank's own process, and nothing that it started."""
        if self._state.state is WorkerState.RUNNING:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._identity.pid, number)

    def discard(self) -> None:
        """End a worker that `run` will not be called for. Idempotent."""
        self._close_inherited()
        self._requests.close()
        if self._worker is not None:
            self._worker.process.discard()
        self._state.fire(WorkerEvent.END)

    def _close_inherited(self) -> None:
        self._endpoint.close()
        for sock in self._inherited:
            sock.close()

    def _register(self, selector: RestingSelector, process: WorkerProcess) -> int:
        """Register what `run` waits for. Return a descriptor to be closed, readable at the process's end; or -1."""
        for stream, name in (
            (process.progress, "progress"),
            (self._requests, "request"),
            (process.result, "result"),
            (process.stdout, "stdout"),
            (process.stderr, "stderr"),
        ):
            if stream is not None:
                selector.register(stream, selectors.EVENT_READ, name)
        selector.register(process.stdin, selectors.EVENT_WRITE, "stdin")
        descriptor = child_process.open_exit_descriptor(process.pid)
        if descriptor >= 0:
            selector.register(descriptor, selectors.EVENT_READ, "exit")
        return descriptor

    def _choose_timeout(self, exit_descriptor: int) -> float | None:
        """Return how long to wait for something to happen, in seconds; None: without limit."""
        watched = FROZEN_INTERVAL.total_seconds() if self._frozen.limit else None
        timeout = watched if exit_descriptor >= 0 else 0.05
        due = min((instant for instant in (self._kill_at, self._slow_at) if instant is not None), default=None)
        if due is None:
            return timeout
        return min(max(due - time.monotonic(), 0.0), timeout or 60.0)

    def _handle(self, key: selectors.SelectorKey, selector: RestingSelector, worker: _Worker) -> None:
        """Act on what is ready."""
        if key.data == "stdin":
            if not worker.process.feed():
                selector.unregister(worker.process.stdin)
                worker.process.end_input()
        elif key.data == "request":
            self._handle_requests(worker)
        elif key.data == "progress":
            self._pass_on_progress(selector, worker.process)
        elif key.data == "result":
            self._read_result(selector, worker)
        elif key.data in STREAMS:
            self._read_lines(key, selector, worker.output)

    def _read_lines(self, key: selectors.SelectorKey, selector: RestingSelector, output: WorkerOutput) -> None:
        with contextlib.suppress(BlockingIOError):
            count = output.read(key.data)
            if not count:
                selector.unregister(key.fileobj)
            elif count < _FEW_BYTES:  # both, or lines of one stream would overtake delayed lines of the other
                selector.rest(*STREAMS)

    def _read_result(self, selector: RestingSelector, worker: _Worker) -> None:
        with contextlib.suppress(BlockingIOError):
            received = os.read(worker.process.result.fileno(), _READ_BYTES)
            if not received:
                selector.unregister(worker.process.result)
                return
            before, had_returned = self._state.state, worker.report.has_returned
            worker.report.feed(received)
            if worker.report.has_returned and not had_returned:
                self._slow_at = time.monotonic() + _SLOW_END.total_seconds()
            if self._state.state is WorkerState.FAILED and before is not WorkerState.FAILED:
                self._kill_at = time.monotonic() + _FAREWELL.total_seconds()

    def _handle_requests(self, worker: _Worker) -> None:
        """Do what other threads have asked for."""
        request = self._requests.take()
        if request.rank is not None:
            worker.output.catch_up()
            self._identity.rank = request.rank
            self._requests.confirm_rank()
        if not request.stop_reason:
            return
        # Ranks that wait for a frozen one fail before this supervisor's limit, and the job ends. It can't see SIGTERM.
        stopped_for = timedelta() if request.at_once else self._frozen.stopped_for(self._identity.pid)
        if stopped_for:
            worker.report.stop_frozen(stopped_for)
        else:
            worker.report.stop(request.stop_reason)
        if self._gentle and not request.at_once and not stopped_for:
            worker.process.signal(signal.SIGTERM)
            self._kill_at = time.monotonic() + self._gentle.total_seconds()
        else:
            worker.process.signal(signal.SIGKILL)

    def _kill_when_due(self, process: WorkerProcess) -> None:
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            self._kill_at = None
            process.signal(signal.SIGKILL)

    def _report_slow_end(self, worker: _Worker) -> None:
        if self._slow_at is not None and time.monotonic() >= self._slow_at:
            self._slow_at = None
            if not worker.process.has_ended:
                remaining = _LONGEST_END - _SLOW_END
                worker.report.report_slow_end(_SLOW_END, remaining)
                self._kill_at = min(self._kill_at or math.inf, time.monotonic() + remaining.total_seconds())

    def _kill_if_frozen(self, worker: _Worker) -> None:
        if self._frozen.is_frozen(self._identity.pid):
            worker.report.note_frozen(self._frozen.limit)
            worker.process.signal(signal.SIGKILL)

    def _pass_on_progress(self, selector: RestingSelector, process: WorkerProcess) -> None:
        """Pass on the worker's last progress report. An invalid one is ignored."""
        assert process.progress is not None
        received = os.read(process.progress.fileno(), _READ_BYTES)
        if not received:
            selector.unregister(process.progress)
            return
        with contextlib.suppress(ValueError):
            progress = Progress.from_dict(parse_json(received.splitlines()[-1]))
            self._relay.note_progress(self._identity.rank, progress)

    def _drain(self, selector: RestingSelector, worker: _Worker) -> None:
        """Read what the dead group has left in its pipes."""
        selector.resume()
        for key in list(selector.get_map().values()):
            if key.data not in (*STREAMS, "result"):
                selector.unregister(key.fileobj)
        deadline = time.monotonic() + _DRAIN.total_seconds()
        while selector.get_map() and (remaining := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(remaining):
                self._handle(key, selector, worker)
