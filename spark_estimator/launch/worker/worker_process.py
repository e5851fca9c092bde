"""The process of one worker, with its pipes and everything that it starts."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from io import FileIO

from spark_estimator.collectives import torch_variables
from spark_estimator.compat.importer import find_autoload_path
from spark_estimator.env import (
    JOB_VARIABLE,
    PROCESS_VARIABLE,
    PROGRESS_FD_VARIABLE,
    RENDEZVOUS_FD_VARIABLE,
    Settings,
)
from spark_estimator.launch.job.environment import remove_choices
from spark_estimator.launch.job.spec import JobSpec
from spark_estimator.launch.worker import child_process, orphans, warm_start
from spark_estimator.launch.worker.child_process import AdoptedChild, Child
from spark_estimator.launch.worker.fork_server import ForkRequest
from spark_estimator.observe.progress import identify_pipe

# -c puts the current folder first on the path; a file of the user's there must not shadow a module that we need.
_PROGRAM = """import sys
sys.path[:1] == [''] and sys.path.pop(0)
from spark_estimator.launch.worker.worker import main
main()"""
_WRITE_BYTES = 1 << 16
_OF_EACH_WORKER = (JOB_VARIABLE, PROCESS_VARIABLE, PROGRESS_FD_VARIABLE)


class WorkerProcess:
    """Started by the constructor; waits for its spec then. The calling thread must live as long as the process.

    Args:
        job: what is run.
        inherited: descriptors that the worker inherits.

    Attributes:
        stdin, stdout, stderr: of the worker; they do not block.
        result: where the worker writes its frames.
        progress: where it writes how far it is; None: the job doesn't ask.
        mark: in its environment, and in that of what it starts.

    Raises:
        OSError: the process can't be started.
    """

    def __init__(self, job: JobSpec, inherited: Sequence[int]) -> None:
        if not sys.executable:
            raise OSError("can't start workers: this Python doesn't know its own path (sys.executable is empty).")
        environment = dict(_make_environment(job))
        self.mark = orphans.mark(environment)
        self._server: warm_start.ForkServer | None = None
        self._idle = _read_warm_time(environment)
        with contextlib.ExitStack() as worker_ends, contextlib.ExitStack() as own_ends:

            def open_pipe(*, to_worker: bool = False) -> tuple[FileIO, int]:
                ends = os.pipe()
                theirs, ours = ends if to_worker else ends[::-1]
                worker_ends.callback(os.close, theirs)
                return own_ends.enter_context(open(ours, "wb" if to_worker else "rb", buffering=0)), theirs

            self.stdin, stdin = open_pipe(to_worker=True)
            self.stdout, stdout = open_pipe()
            self.stderr, stderr = open_pipe()
            self.result, result = open_pipe()
            self.progress: FileIO | None = None
            worker_descriptors = [result, *inherited]
            if job.progress:
                self.progress, progress = open_pipe()
                environment[PROGRESS_FD_VARIABLE] = identify_pipe(progress)
                worker_descriptors.append(progress)
            self._child = self._start(job, environment, (stdin, stdout, stderr), worker_descriptors)
            own_ends.pop_all()
        for stream in (self.result, self.stdin, self.stdout, self.stderr):
            os.set_blocking(stream.fileno(), False)
        self._input: list[memoryview] = []

    def _start(
        self, job: JobSpec, environment: dict[str, str], standard: tuple[int, int, int], inherited: Sequence[int]
    ) -> Child:
        """Fork the worker from a server where that is the same, else start it as a new process."""
        result = inherited[0]
        if self._idle and not job.command:
            variables = {name: environment[name] for name in _OF_EACH_WORKER if name in environment}
            request = ForkRequest(os.getpid(), result, (0, 1, 2, *inherited), variables)
            common = {name: value for name, value in environment.items() if name != PROGRESS_FD_VARIABLE}
            forked = warm_start.fork_worker(common, job.preload, request, [*standard, *inherited])
            if forked is not None:
                pid, self._server = forked
                return AdoptedChild(pid)
        command = [sys.executable, "-u", "-c", _PROGRAM, "--parent", str(os.getpid()), "--result-fd", str(result)]
        if job.preload:
            command += ["--preload", ",".join(job.preload)]
        stdin, stdout, stderr = standard
        return subprocess.Popen(
            command,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env=environment,
            pass_fds=inherited,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """Return its number, also after its end."""
        return self._child.pid

    @property
    def has_ended(self) -> bool:
        """Return whether the process has ended; it need not be reaped yet."""
        return child_process.has_ended(self.pid)

    def set_input(self, pieces: Sequence[bytes]) -> None:
        """Set the bytes that `feed` writes."""
        self._input = [memoryview(piece) for piece in pieces if piece]

    def feed(self) -> bool:
        """Write some of the input to the worker's stdin. Return whether there is more."""
        try:
            self._input[0] = self._input[0][os.write(self.stdin.fileno(), self._input[0][:_WRITE_BYTES]) :]
        except BlockingIOError:
            return True
        except OSError:
            self._input.clear()  # the worker is ending; its exit status is reported
        while self._input and not self._input[0]:
            self._input.pop(0)
        return bool(self._input)

    def end_input(self) -> None:
        """Close the worker's stdin."""
        with contextlib.suppress(OSError):
            self.stdin.close()

    def signal(self, number: int) -> None:
        """Send a signal to the worker's process group."""
        child_process.signal_group(self._child, number)

    def kill(self) -> None:
        """Kill the worker and everything that it has started, in its group or not. Idempotent."""
        self.signal(signal.SIGKILL)
        orphans.end_marked(self.mark)

    def reap(self) -> tuple[int, int]:
        """Reap it; see `child_process.reap`."""
        if self._server is not None:
            self._server.release(self._idle)
            self._server = None
        return child_process.reap(self._child)

    def close(self) -> None:
        """Close this end of all pipes. Idempotent."""
        for stream in (self.result, self.progress, self.stdin, self.stdout, self.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def discard(self) -> None:
        """Kill and reap it, unless that has been done. Idempotent."""
        if self._child.returncode is None:
            self.kill()
            self.reap()
        self.close()


def _read_warm_time(environment: Mapping[str, str]) -> timedelta:
    """Return how long a server stays; zero: there shall be none."""
    try:
        return timedelta(seconds=Settings.read(environment).warm_seconds)
    except ValueError:  # init() names the variable
        return timedelta(0)


def _make_environment(job: JobSpec) -> Mapping[str, str]:
    environment = {**job.environment_if_unset, **remove_choices(os.environ)}
    # Of a job that this process itself is a rank of.
    for variable in (RENDEZVOUS_FD_VARIABLE, PROGRESS_FD_VARIABLE, *torch_variables.NAMES):
        environment.pop(variable, None)
    environment |= job.environment
    environment[JOB_VARIABLE] = job.job_id
    # The worker needs our package, and what is preloaded, before it has its spec; the spec then sets its path exactly.
    environment["PYTHONPATH"] = os.pathsep.join(entry for entry in [find_autoload_path(), *sys.path] if entry)
    return environment
