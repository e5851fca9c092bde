"""Learns that this rank's machine is about to be taken back: from a signal, from a command, or from the launcher.

``SPARK_ESTIMATOR_PREEMPTION_SIGNAL`` and ``SPARK_ESTIMATOR_PREEMPTION_COMMAND`` choose the first two; ``init()`` begins
to watch. Nothing happens here but a note: a job acts on it between two steps, where all ranks are at the same one
(``checkpoint.schedule``, ``elastic``), and its launcher then moves the rank (``launch.elastic.placement``).
"""

from __future__ import annotations

import atexit
import functools
import os
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from spark_estimator.env import Settings
from spark_estimator.log import get_logger
from spark_estimator.observe.driver_log import printable
from spark_estimator.posix import SIGKILL, register_at_fork

#: How often the command is run, and how long it may take, in seconds.
ASK_SECONDS = 5.0

_log = get_logger(__name__)


class PreemptionWatch:
    """What this process knows.

    Attributes:
        reason: why it is about to lose its machine, in words; '' while it knows nothing of it. It stays.
        is_told: the other ranks know.
    """

    def __init__(self) -> None:
        self.reason = ""
        self.is_told = False
        self._began = False
        self._caught: signal.Signals | None = None

    def begin(self, settings: Settings) -> None:
        """Begin to watch, once. A signal is watched if this is the main thread, which alone can do that."""
        if self._began:
            return
        self._began = True
        if settings.preemption_signal and threading.current_thread() is threading.main_thread():
            self._caught = signal.Signals[settings.preemption_signal]
            signal.signal(self._caught, functools.partial(self._handle, signal.getsignal(self._caught)))
            # Python gives up its handlers at its end, which may take seconds; an agent repeats the signal till then.
            atexit.register(signal.signal, self._caught, signal.SIG_IGN)
        if settings.preemption_command:
            command = shlex.split(settings.preemption_command)
            threading.Thread(target=self._ask, args=(command,), name="spark_estimator preemption", daemon=True).start()

    def note(self, reason: str) -> None:
        """Note a warning; the first one stays."""
        self.reason = self.reason or reason

    def ignore(self, settings: Settings) -> None:
        """Have this process, which is no rank, and what it starts, ignore the signal. In the main thread."""
        if settings.preemption_signal:
            signal.signal(signal.Signals[settings.preemption_signal], signal.SIG_IGN)

    def forget(self) -> None:
        """Have a forked child, which is no rank, ignore the signal; SIGTERM, by which loaders end workers, ends it."""
        if self._caught is not None:
            signal.signal(self._caught, signal.SIG_DFL if self._caught is signal.SIGTERM else signal.SIG_IGN)

    def _handle(self, former: Callable[..., Any] | int | None, number: int, frame: Any) -> None:
        if self.reason:  # an agent sends it again and again
            return
        self.note(f"it got {signal.Signals(number).name}")
        if callable(former):
            former(number, frame)

    def _ask(self, command: Sequence[str]) -> None:
        """Run the command until it succeeds. What it prints first is the reason."""
        while not self.reason:
            try:
                child = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
            except OSError as error:
                _log.warning("SPARK_ESTIMATOR_PREEMPTION_COMMAND can't be run, and is not run again: %s", error)
                return
            try:
                output = child.communicate(timeout=ASK_SECONDS)[0].decode(errors="replace")
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, SIGKILL)  # with what it has started
                child.communicate()
                continue
            if child.returncode == 0:
                self.note(f"{command[0]} printed: {printable(output.strip().partition(chr(10))[0][:200]) or 'nothing'}")
            time.sleep(ASK_SECONDS)


_watch = PreemptionWatch()


def watch() -> PreemptionWatch:
    """Return this process's watch."""
    return _watch


def preemption_warning() -> str | None:
    """Return why this rank is about to lose its machine, in words; None while nothing warns of it.

    Ask it in a training's own loop, to save what only this rank has. It is not a collective: others may get another
    answer. For where warnings come from, and what the package does, see the page on spot machines.
    """
    return _watch.reason or None


register_at_fork(after_in_child=_watch.forget)
