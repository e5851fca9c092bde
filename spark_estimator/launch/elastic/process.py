"""The processes of an elastic job, each from its start to its end, and the links on which they ask for their rounds."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from spark_estimator.collectives.launcher_link import ROUND, FrameSocket, Ready
from spark_estimator.collectives.rendezvous import PeerFacts, Rendezvous, make_job_id, make_key
from spark_estimator.launch.elastic.placement import Placement
from spark_estimator.launch.job.events import Ended, EventQueue, EventRelay, FrameReceived
from spark_estimator.launch.job.interruption import raise_lost_interruption
from spark_estimator.launch.job.outcome import Outcome, Relay
from spark_estimator.launch.worker.worker_host import WorkerHandle
from spark_estimator.reader_thread import ReaderThread

#: Makes a worker of (host, process number, rank or -1, relay of its events, link to the launcher).
MakeWorker = Callable[[str, int, int, Relay, socket.socket], WorkerHandle]
_NO_RANK = -1
_SLICE_SECONDS = 0.1


class Process:
    """A process, and the threads that watch it.

    Args:
        number: by which the planner knows it.
        rank: which it will be; -1 for a newcomer.
        host: on which it runs.
        make: makes its worker.
        events: receives its events.

    Attributes:
        facts: where it listens, once `started` is set; None when it could not be started.
        ready: its last request for the next round; None while it is in one.
        pid: of the rank itself, which may be a child of the process that was started for it; 0 while it is unknown.
        is_warned: its machine is about to be taken back.
        is_released: whether it was asked to end, since its slot was removed.
    """

    def __init__(self, number: int, rank: int, host: str, make: MakeWorker, events: EventQueue) -> None:
        self.number = number
        self.rank = rank
        self.host = host
        self.facts: PeerFacts | None = None
        self.ready: Ready | None = None
        self.pid = 0
        self.is_warned = False
        self.is_released = False
        self.started = threading.Event()
        self._events = events
        self._rendezvous_set = threading.Event()
        self._rendezvous: Rendezvous | None = None
        ours, theirs = socket.socketpair()
        self.link = FrameSocket(ours)
        self.worker = make(host, number, rank, EventRelay(events), theirs)
        # The thread that starts a worker stays until its end: the kernel takes a thread's end for its parent's.
        self.thread = threading.Thread(target=self._supervise, name=f"spark_estimator process {number}", daemon=True)
        self.thread.start()
        ReaderThread(self._listen, self._end_link, name=f"link {number}").start()

    def tell(self, rendezvous: Rendezvous | None) -> None:
        """Send what it needs to join its first round, or to wait for one; None: the process is not needed."""
        self._rendezvous = rendezvous
        self._rendezvous_set.set()

    def set_rank(self, rank: int) -> None:
        """Note that it is another rank from now on."""
        self.rank, self.ready = rank, None
        self.worker.set_rank(rank)

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

    def __str__(self) -> str:
        host = self.host if self.facts is None else self.facts.host
        return f"rank {self.rank} (host {host}, pid {self.pid or self.worker.pid})"


class Processes(dict[int, Process]):
    """The processes of a job that have not ended, by number; the arguments as those of `Process`."""

    def __init__(self, placement: Placement, make: MakeWorker, events: EventQueue, *, encrypted: bool) -> None:
        self._placement = placement
        self._make = make
        self._events = events
        self._encrypted = encrypted
        self._started = 0

    def start_first(self, size: int, look: Callable[[int], None]) -> None:
        """Start all processes of the first round, and tell `look` their number now and then; then send the ranks."""
        processes = [self._start(rank) for rank in range(size)]
        try:
            for number, process in enumerate(processes):
                while not process.started.wait(_SLICE_SECONDS):
                    raise_lost_interruption()
                    look(number)
        finally:
            peers = [replace(process.facts, rank=process.rank) for process in processes if process.facts is not None]
            job_id, key, encrypted = make_job_id(), make_key(), self._encrypted
            for process in processes:
                whole = len(peers) == size
                process.tell(
                    Rendezvous(job_id, key, process.rank, tuple(peers), -1, encrypted=encrypted) if whole else None
                )

    def start_newcomer(self) -> Process:
        """Start a process that waits for a rank."""
        process = self._start(_NO_RANK)
        threading.Thread(target=self._send_waiting, args=(process,), daemon=True).start()
        return process

    def list_peers(self, numbers: Sequence[int]) -> tuple[PeerFacts, ...]:
        """Return where processes that wait for a round listen now, as its ranks, with the host names of the job."""
        members = [(process.facts, process.ready) for process in (self[number] for number in numbers)]
        return tuple(
            replace(ready.facts, rank=rank, host=first.host, host_id=first.host_id)
            for rank, (first, ready) in enumerate(members)
            if first is not None and ready is not None
        )

    def send_ranks(self, numbers: Sequence[int], peers: tuple[PeerFacts, ...]) -> None:
        """Send processes their ranks in a new round; `peers` are those of `list_peers`."""
        job_id, key = make_job_id(), make_key()
        for rank, number in enumerate(numbers):
            self[number].set_rank(rank)
            coming = Rendezvous(job_id, key, rank, peers, -1, -1, encrypted=self._encrypted)
            self.send([number], {"kind": ROUND, "rendezvous": coming.to_json()})

    def send(self, numbers: Sequence[int], frame: Mapping[str, Any]) -> None:
        """Send processes a frame."""
        for number in numbers:
            try:
                self[number].link.send(frame)
            except TimeoutError:
                self[number].worker.stop("because it doesn't answer its launcher", at_once=True)
            except OSError:
                pass  # it has died: an event reports its end soon

    def stop(self, reason: str) -> None:
        """Have all processes end."""
        for process in self.values():
            process.worker.stop(reason)

    def _start(self, rank: int) -> Process:
        number, self._started = self._started, self._started + 1
        self[number] = Process(number, rank, self._placement.take(number), self._make, self._events)
        return self[number]

    def _send_waiting(self, process: Process) -> None:
        """Make a newcomer, once it has started, wait for its rank."""
        process.started.wait()
        if process.facts is not None:
            alone = (replace(process.facts, rank=0),)
            process.tell(Rendezvous(make_job_id(), make_key(), 0, alone, -1, awaited=True, encrypted=self._encrypted))
