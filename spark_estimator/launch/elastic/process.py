"""One process of an elastic job, from its start to its end, and the link on which it asks for its next round."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

from spark_estimator.collectives.launcher_link import FrameSocket, Ready
from spark_estimator.collectives.rendezvous import PeerFacts, Rendezvous
from spark_estimator.launch.job.monitor import Ended, EventRelay, FrameReceived, JobMonitor
from spark_estimator.launch.job.outcome import Outcome, Relay
from spark_estimator.launch.worker.worker_host import WorkerHandle
from spark_estimator.reader_thread import ReaderThread

#: Makes a worker of (host, process number, rank or -1, relay of its events, link to the launcher).
MakeWorker = Callable[[str, int, int, Relay, socket.socket], WorkerHandle]


class Process:
    """A process, and the threads that watch it.

    Args:
        number: by which the planner knows it.
        rank: which it will be; -1 for a newcomer.
        host: on which it runs.
        make: makes its worker.
        watch: receives its events.

    Attributes:
        facts: where it listens, once `started` is set; None when it could not be started.
        ready: its last request for the next round; None while it is in one.
        pid: of the rank itself, which may be a child of the process that was started for it; 0 while it is unknown.
    """

    def __init__(self, number: int, rank: int, host: str, make: MakeWorker, watch: JobMonitor) -> None:
        self.number = number
        self.rank = rank
        self.host = host
        self.facts: PeerFacts | None = None
        self.ready: Ready | None = None
        self.pid = 0
        self.started = threading.Event()
        self._events = watch.events
        self._rendezvous_set = threading.Event()
        self._rendezvous: Rendezvous | None = None
        ours, theirs = socket.socketpair()
        self.link = FrameSocket(ours)
        self.worker = make(host, number, rank, EventRelay(watch.events), theirs)
        # The thread that starts a worker stays until its end: the kernel takes a thread's end for its parent's.
        self.thread = threading.Thread(target=self._supervise, name=f"spark_estimator process {number}", daemon=True)
        self.thread.start()
        ReaderThread(self._listen, self._end_link, name=f"link {number}").start()

    def tell(self, rendezvous: Rendezvous | None) -> None:
        """Sends what it needs to join its first round, or to wait for one; None: the process is not needed."""
        self._rendezvous = rendezvous
        self._rendezvous_set.set()

    def become(self, rank: int) -> None:
        """It is another rank from now on."""
        self.rank, self.ready = rank, None
        self.worker.become(rank)

    def _supervise(self) -> None:
        outcome: Outcome | None = None
        failed: BaseException | None = None
        try:
            try:
                started = self.worker.start()
                if isinstance(started, PeerFacts):
                    self.facts = started
                else:
                    outcome = started
            finally:
                self.started.set()
            if outcome is None:
                self._rendezvous_set.wait()
                if self._rendezvous is None:
                    raise InterruptedError("the job ended before it started")
                outcome = self.worker.run(self._rendezvous)
        except BaseException as error:
            failed = error
            self.worker.discard()
        self._events.put(Ended(self.number, outcome, failed))

    def _listen(self) -> None:
        while (frame := self.link.receive(wait=True)) is not None:
            self._events.put(FrameReceived(self.number, frame))

    def _end_link(self, error: BaseException | None) -> None:
        # The end of a process closes its link. One that has not ended would wait for a round for ever.
        if not isinstance(error, (EOFError, OSError)):
            self.worker.stop(f"because its requests could not be read: {error!r}", at_once=True)
