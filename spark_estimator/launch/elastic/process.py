"""One process of an elastic job, from its start to its end, and the link on which it asks for its next round."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable

from spark_estimator.collectives.launcher_link import FrameSocket, Ready
from spark_estimator.collectives.rendezvous import PeerFacts, Rendezvous
from spark_estimator.launch.job.monitor import Ended, EventRelay, FrameReceived, JobMonitor
from spark_estimator.launch.job.outcome import Outcome, Relay
from spark_estimator.launch.worker.worker_host import WorkerHandle

#: Makes a place: on which host, for which process, which is which rank (-1: not known), told to whom, with which link.
MakePlace = Callable[[str, int, int, Relay, socket.socket], WorkerHandle]


class Process:
    """A process, and the threads that watch it.

    Args:
        number: by which the planner knows it.
        rank: which it will be; -1 for a newcomer.
        host: on which it runs.
        make: its place.
        watch: is told what becomes of it.

    Attributes:
        facts: where it listens, once `started` is set; None when it could not be started.
        ready: what it said when it asked for its next round; None while it is in one.
    """

    def __init__(self, number: int, rank: int, host: str, make: MakePlace, watch: JobMonitor) -> None:
        self.number = number
        self.rank = rank
        self.host = host
        self.facts: PeerFacts | None = None
        self.ready: Ready | None = None
        self.started = threading.Event()
        self._events = watch.events
        self._told = threading.Event()
        self._rendezvous: Rendezvous | None = None
        ours, theirs = socket.socketpair()
        self.link = FrameSocket(ours)
        self.place = make(host, number, rank, EventRelay(watch.events), theirs)
        # The thread that starts a worker stays until its end: the kernel takes a thread's end for its parent's.
        self.thread = threading.Thread(target=self._supervise, name=f"spark_estimator process {number}", daemon=True)
        self.thread.start()
        threading.Thread(target=self._listen, name=f"spark_estimator link {number}", daemon=True).start()

    def tell(self, rendezvous: Rendezvous | None) -> None:
        """Says by what it joins its first round, or waits to be let into one; None: it is not needed."""
        self._rendezvous = rendezvous
        self._told.set()

    def become(self, rank: int) -> None:
        """It is another rank from now on."""
        self.rank, self.ready = rank, None
        self.place.become(rank)

    def _supervise(self) -> None:
        outcome: Outcome | None = None
        failed: BaseException | None = None
        try:
            try:
                found = self.place.start()
                if isinstance(found, PeerFacts):
                    self.facts = found
                else:
                    outcome = found
            finally:
                self.started.set()
            if outcome is None:
                self._told.wait()
                if self._rendezvous is None:
                    raise InterruptedError("the job ended before it had begun")
                outcome = self.place.run(self._rendezvous)
        except BaseException as error:
            failed = error
            self.place.discard()
        self._events.put(Ended(self.number, outcome, failed))

    def _listen(self) -> None:
        with contextlib.suppress(EOFError, ValueError, OSError):
            while (frame := self.link.receive(wait=True)) is not None:
                self._events.put(FrameReceived(self.number, frame))
