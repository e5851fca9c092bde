"""Asks a user's script for the available hosts, at the start of an elastic job and repeatedly while it runs.

The script is a command for the shell. It prints a line for each host, ``host:slots``, or ``host`` alone; what follows a
# is a comment, and a host with 0 slots is left out. A run that fails, or prints no host, is ignored: it would end the
# job, and such scripts fail more often than all hosts at once. Before the job begins it is an error; later the last
# good answer stays valid, and one line reports the failure.
"""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta

from spark_estimator.errors import PreflightError, remove_links
from spark_estimator.launch.job.hosts import Host, merge_hosts, parse_host_line
from spark_estimator.launch.worker.child_process import describe_end
from spark_estimator.observe.driver_log import printable

#: Between the end of one answer and the next question.
EVERY = timedelta(seconds=1)
#: A script that takes longer is killed, and its answer counts as failed.
LONGEST = timedelta(seconds=30)
_LEAST_SECONDS = 1.0
_MOST_BYTES = 1 << 20
_TAIL_LINES = 5
_SLICE_SECONDS = 0.05
_ZERO = re.compile(r"\s*\S+\s*(?::|\s+slots\s*=)\s*0+\s*")


class HostScript:
    """The script, a `command` for the shell; it has `longest` time. Hosts without a number have `default_slots`."""

    def __init__(self, command: str, default_slots: int = 1, longest: timedelta = LONGEST) -> None:
        self.command = command
        self._default_slots = default_slots
        self._longest = longest.total_seconds()
        self._lock = threading.Lock()
        self._running: subprocess.Popen[bytes] | None = None
        self._stopped = False

    def ask(self, at_most: timedelta = LONGEST) -> list[Host]:
        """Run it, for `at_most` so long. Return its hosts, at least one. Raises PreflightError: no answer."""
        try:
            status, out, err = self._run(min(self._longest, at_most.total_seconds()))
            if status != 0:
                raise ValueError(f"ended with {describe_end(status)}{_format_tail(err)}")
            return self._read(out.decode("utf-8", "replace"))
        except (OSError, ValueError) as error:
            raise PreflightError(f"the host discovery script {self.command!r} {printable(str(error))}.") from error

    def stop(self) -> None:
        """End the running script, if there is one, and start no more."""
        with self._lock:
            self._stopped = True
            if self._running is not None:
                _kill(self._running)

    def _read(self, text: str) -> list[Host]:
        hosts = []
        for number, line in enumerate(text.splitlines(), 1):
            host = line.partition("#")[0].strip()
            if not host or _ZERO.fullmatch(host):
                continue
            try:
                hosts.append(parse_host_line(host, self._default_slots))
            except ValueError:
                raise ValueError(
                    f"printed, in line {number}, {line[:200]!r}, which doesn't have the form host:slots"
                ) from None
        if not hosts:
            raise ValueError("printed no host with a slot")
        return merge_hosts(hosts, self.command)

    def _run(self, seconds: float) -> tuple[int, bytes, bytes]:
        """Return (exit status, what it printed, what it printed on stderr), after its end."""
        with self._lock:
            if self._stopped:
                raise InterruptedError("is no longer run")
            process = self._running = subprocess.Popen(
                ["/bin/sh", "-c", self.command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        try:
            with process, contextlib.closing(selectors.DefaultSelector()) as waiting:
                try:
                    return self._follow(process, waiting, seconds)
                except BaseException:
                    _kill(process)
                    raise
        finally:
            with self._lock:
                self._running = None

    def _follow(
        self, process: subprocess.Popen[bytes], waiting: selectors.BaseSelector, seconds: float
    ) -> tuple[int, bytes, bytes]:
        assert process.stdout and process.stderr
        output = {process.stdout.fileno(): bytearray(), process.stderr.fileno(): bytearray()}
        for descriptor in output:
            waiting.register(descriptor, selectors.EVENT_READ)
        deadline = time.monotonic() + seconds
        while True:
            ended = process.poll() is not None  # asked before the last look: what it started may hold the pipes
            ready = waiting.select(0 if ended else _SLICE_SECONDS)
            for key, _ in ready:
                received = os.read(key.fd, 1 << 16)
                output[key.fd] += received
                if not received:
                    waiting.unregister(key.fd)
                elif key.fd == process.stderr.fileno():
                    del output[key.fd][:-_MOST_BYTES]
                elif len(output[key.fd]) > _MOST_BYTES:
                    raise ValueError("prints endlessly")
            if ended and not ready:
                break
            if time.monotonic() >= deadline:
                last = _format_tail(output[process.stderr.fileno()])
                raise ValueError(f"did not end within {seconds:.3g} seconds, and was killed{last}")
        out, err = output.values()
        return process.returncode, bytes(out), bytes(err)


class HostWatch:
    """Runs a script repeatedly in a separate thread; a `Discovery`.

    Args:
        script: that has run once.
        hosts: its answer.
        every: see `EVERY`.

    Attributes:
        hosts: the last good answer.
    """

    def __init__(self, script: HostScript, hosts: Sequence[Host], every: timedelta = EVERY) -> None:
        self.hosts = list(hosts)
        self._script = script
        self._every = every.total_seconds()
        self._over = threading.Event()

    def start(self, offer: Callable[[Sequence[Host]], None], report: Callable[[str], None]) -> None:
        threading.Thread(target=self._watch, args=(offer, report), name="spark_estimator hosts", daemon=True).start()

    def stop(self) -> None:
        self._over.set()
        self._script.stop()

    def _watch(self, offer: Callable[[Sequence[Host]], None], report: Callable[[str], None]) -> None:
        fails = False
        while not self._over.wait(self._every):
            try:
                hosts = self._script.ask()
            except Exception as error:  # mostly PreflightError; after others, too, the hosts are asked for again
                if not fails and not self._over.is_set():
                    problem = remove_links(str(error)).rstrip(".")
                    report(f"{problem}: the hosts remain {_format_hosts(self.hosts)} until it succeeds again")
                fails = True
                continue
            fails = False
            if hosts != self.hosts:
                self.hosts = hosts
                offer(hosts)


def wait_for_first_hosts(
    script: HostScript, slots: int, patience: timedelta, report: Callable[[str], None], every: timedelta = EVERY
) -> list[Host]:
    """Return the script's first answer with `slots` slots; `report` tells people once of the wait.

    Raises PreflightError: the first answer failed, or there were too few slots for as long as `patience`.
    """
    deadline = time.monotonic() + patience.total_seconds()

    def get_remaining_time() -> timedelta:  # a moment for the script in any case
        return timedelta(seconds=max(deadline - time.monotonic(), _LEAST_SECONDS))

    hosts = script.ask(get_remaining_time())
    waits = False
    while (offered := sum(host.slots for host in hosts)) < slots:
        few = (
            f"the host discovery script {script.command!r} offers {offered} slots ({_format_hosts(hosts)}), and "
            f"{slots} ranks"
        )
        if time.monotonic() >= deadline:
            raise PreflightError(
                f"{few} were requested; no other hosts appeared within {patience.total_seconds():g} seconds."
            )
        if not waits:
            report(f"{few} are requested: waiting up to {patience.total_seconds():g} seconds")
        waits = True
        time.sleep(every.total_seconds())
        with contextlib.suppress(PreflightError):
            hosts = script.ask(get_remaining_time())
    return hosts


def _format_hosts(hosts: Sequence[Host]) -> str:
    return ", ".join(f"{host.name}:{host.slots}" for host in hosts)


def _format_tail(err: bytes | bytearray) -> str:
    lines = [line.strip() for line in bytes(err).decode("utf-8", "replace").splitlines() if line.strip()]
    return f"; its last output: {' | '.join(lines[-_TAIL_LINES:])}" if lines else ""


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
