"""One rank's faults: it inflicts them on itself, and notes each in the run's folder just before."""

from __future__ import annotations

import ctypes
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from chaos.plan import BY_PROGRAM, LINKS, Fault, Kind, Run

#: The text of the program's exception.
MISTAKE = "a mistake of the program"
#: The file that a stuck rank of an elastic job writes when nothing has ended it for `UNMISSED_SECONDS`: no other rank
#: is left that waits for it. It then ends itself.
UNMISSED = "unmissed"
UNMISSED_SECONDS = 20.0
_FOREVER_SECONDS = 600.0
_PAUSE_SECONDS = 1.0
_FREE_DESCRIPTORS = 2


class Faults:
    """The faults of a run, in one of its processes.

    Args:
        run: whose.
        folder: where a file ``fired.<number>`` notes that a fault has happened, with the rank and the process.
    """

    def __init__(self, run: Run, folder: Path) -> None:
        self._run = run
        self._folder = folder
        self._rank, self._size = -1, run.size

    def identify(self, rank: int, size: int) -> None:
        """From now on this process is rank `rank` of `size`."""
        self._rank, self._size = rank, size

    def before_init(self) -> None:
        """Inflicts the faults before ``init()``."""
        from spark_estimator.collectives import rendezvous
        from spark_estimator.env import Settings

        facts = rendezvous.find_current(Settings.read().rendezvous_fd)
        if facts is None or facts.awaited:  # a process that joins a running job has no rank yet
            return
        self._rank = facts.rank
        self.at(-1)

    def at(self, step: int) -> bool:
        """Inflicts the faults of this step. Returns whether the rank has to return early."""
        returns = False
        for number, fault in enumerate(self._run.faults):
            if fault.rank != self._rank or fault.step != step or self._has_fired(number):
                continue
            if fault.kind is Kind.STUCK and self._size == 1:  # the last rank of an elastic job: no other misses it
                continue
            if fault.kind in LINKS:  # the launcher's process waits for this
                (self._folder / f"due.{number}").touch()
            elif fault.kind in BY_PROGRAM:
                self._note(number)
                returns |= self._inflict(fault)
            else:
                threading.Thread(target=self._inflict_later, args=(number, fault), daemon=True).start()
        return returns

    def _has_fired(self, number: int) -> bool:
        return (self._folder / f"fired.{number}").exists()

    def _note(self, number: int) -> None:
        (self._folder / f"fired.{number}").write_text(f"{self._rank} {os.getpid()} {time.monotonic()}")

    def _inflict_later(self, number: int, fault: Fault) -> None:
        if fault.kind is not Kind.GIL:
            time.sleep(fault.milliseconds / 1000)
        self._note(number)
        self._inflict(fault)

    def _be_stuck(self) -> None:
        if self._run.launcher.is_elastic:
            time.sleep(UNMISSED_SECONDS)
            (self._folder / UNMISSED).write_text(str(self._rank))
            os._exit(1)
        time.sleep(_FOREVER_SECONDS)

    def _inflict(self, fault: Fault) -> bool:
        pid = os.getpid()
        if fault.kind is Kind.KILL:
            os.kill(pid, signal.SIGKILL)
        elif fault.kind is Kind.SEGFAULT:
            os.kill(pid, signal.SIGSEGV)
        elif fault.kind is Kind.ABORT:
            os.abort()
        elif fault.kind is Kind.OS_EXIT:
            os._exit(0)
        elif fault.kind is Kind.SYS_EXIT:
            sys.exit(0)
        elif fault.kind is Kind.RAISE:
            raise KeyError(MISTAKE)
        elif fault.kind is Kind.MEMORY:
            _without_memory()
        elif fault.kind is Kind.DESCRIPTORS:
            _without_descriptors()
        elif fault.kind is Kind.FREEZE:
            os.kill(pid, signal.SIGSTOP)
        elif fault.kind is Kind.PAUSE:
            subprocess.Popen(["sh", "-c", f"sleep {_PAUSE_SECONDS}; kill -CONT {pid}"])
            os.kill(pid, signal.SIGSTOP)
        elif fault.kind is Kind.STUCK:
            self._be_stuck()
        elif fault.kind is Kind.SLOW:
            time.sleep(fault.milliseconds / 1000)
        elif fault.kind is Kind.GIL:
            ctypes.PyDLL(None).usleep(fault.milliseconds * 1000)  # PyDLL keeps the interpreter's lock
        elif fault.kind is Kind.STRANGERS:
            self._be_strangers()
        elif fault.kind is Kind.FULL_DISK:
            _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, most))
        return fault.kind is Kind.RETURN

    def _be_strangers(self) -> None:
        """Connects to every rank's port without its key: garbage, silence, a TLS hello, an HTTP request."""
        from spark_estimator.collectives import rendezvous

        facts = rendezvous.find_current()
        if facts is None:
            return
        chance = random.Random(f"{self._run.seed}/{self._run.number}/strangers")
        openings = (chance.randbytes(4000), b"", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", b"GET / HTTP/1.1\r\n\r\n")
        connections: list[socket.socket] = []
        for peer in facts.peers:
            for opening in openings * 5:
                try:
                    stranger = socket.create_connection((peer.address, peer.port), 1)
                    connections.append(stranger)
                    stranger.sendall(opening)
                except OSError:  # the rank has ended, or refuses
                    continue
        time.sleep(0.5)
        for connection in connections:
            connection.close()


def _without_memory() -> None:
    """The rank's memory is limited to what it has, and it asks for more."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (16 << 20), most))
    bytearray(1 << 30)


def _without_descriptors() -> None:
    """Leaves the rank two descriptors."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, most))
    taken: list[int] = []
    try:
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        for descriptor in taken[-_FREE_DESCRIPTORS:]:
            os.close(descriptor)
