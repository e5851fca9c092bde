"""The process of one worker, with its pipes and everything that it starts."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from io import FileIO
from typing import IO

from spark_estimator.collectives import torch_variables
from spark_estimator.compat.importer import find_autoload_path
from spark_estimator.env import JOB_VARIABLE, PROGRESS_FD_VARIABLE, RENDEZVOUS_FD_VARIABLE
from spark_estimator.launch.job.environment import remove_choices
from spark_estimator.launch.job.spec import JobSpec
from spark_estimator.launch.worker import child_process, orphans
from spark_estimator.observe.progress import identify_pipe

# -c puts the current folder first on the path; a file of the user's there must not shadow a module that we need.
_PROGRAM = """import sys
sys.path[:1] == [''] and sys.path.pop(0)
from spark_estimator.launch.worker.worker import main
main()"""
_WRITE_BYTES = 1 << 16


class WorkerProcess:
    """Started by the constructor; waits for its spec then. The calling thread must live as long as the process.

    Args:
        job: what is run.
        inherited: descriptors that the worker inherits.

    Attributes:
        result: where the worker writes its frames.
        progress: where it writes how far it is; None: the job doesn't ask.

    Raises:
        OSError: the process can't be started.
    """

    def __init__(self, job: JobSpec, inherited: Sequence[int]) -> None:
        if not sys.executable:
            raise OSError("can't start workers: this Python doesn't know its own path (sys.executable is empty).")
        read, write = os.pipe()
        environment = dict(_make_environment(job))
        self._mark = orphans.mark(environment)
        self.progress: FileIO | None = None
        worker_ends = [write]
        if job.progress:
            progress_read, progress_write = os.pipe()
            self.progress = open(progress_read, "rb", buffering=0)  # noqa: SIM115  # closed in `close`
            environment[PROGRESS_FD_VARIABLE] = identify_pipe(progress_write)
            worker_ends.append(progress_write)
        command = [sys.executable, "-u", "-c", _PROGRAM, "--parent", str(os.getpid()), "--result-fd", str(write)]
        if job.preload:
            command += ["--preload", ",".join(job.preload)]
        try:
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment,
                pass_fds=[*worker_ends, *inherited],
                start_new_session=True,
            )
        except BaseException:
            os.close(read)
            if self.progress is not None:
                self.progress.close()
            raise
        finally:
            for descriptor in worker_ends:
                os.close(descriptor)
        self.result = open(read, "rb", buffering=0)  # noqa: SIM115  # closed in `close`
        for stream in (self.result, self.stdin, self.stdout, self.stderr):
            os.set_blocking(stream.fileno(), False)
        self._input: list[memoryview] = []

    @property
    def pid(self) -> int:
        """Return its number, also after its end."""
        return self._child.pid

    @property
    def stdin(self) -> IO[bytes]:
        """Return its standard input; not blocking, as the others."""
        assert self._child.stdin is not None
        return self._child.stdin

    @property
    def stdout(self) -> IO[bytes]:
        """Return the stream of what it prints."""
        assert self._child.stdout is not None
        return self._child.stdout

    @property
    def stderr(self) -> IO[bytes]:
        """Return the stream of what it prints there."""
        assert self._child.stderr is not None
        return self._child.stderr

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
        orphans.end_marked(self._mark)

    def reap(self) -> tuple[int, int]:
        """Reap it; see `child_process.reap`."""
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
