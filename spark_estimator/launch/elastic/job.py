"""One elastic job: its processes, their events, and the execution of what a `RoundPlanner` decides."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol

from spark_estimator.collectives.launcher_link import OVER, READY, UPDATED, WARNED, Ready
from spark_estimator.elastic.decisions import (
    Announce,
    Begin,
    Decision,
    Dissolve,
    Fail,
    Finish,
    Kill,
    Release,
    Start,
    Terms,
)
from spark_estimator.elastic.rounds import LATE, RoundPlanner
from spark_estimator.errors import JobFailedError, PreflightError
from spark_estimator.launch.elastic.placement import FAILURES, Placement
from spark_estimator.launch.elastic.process import MakeWorker, Process, Processes
from spark_estimator.launch.job.events import Begun, Ended, FrameReceived, Offered
from spark_estimator.launch.job.failures import LOST, STOPPED, FailureReport, find_first_failure, make_error
from spark_estimator.launch.job.hosts import Host
from spark_estimator.launch.job.interruption import raise_lost_interruption, remember_interruption
from spark_estimator.launch.job.monitor import EventDisplay
from spark_estimator.launch.job.outcome import Outcome
from spark_estimator.launch.job.rank_files import DriverFiles
from spark_estimator.observe.status_line import StatusLine
from spark_estimator.observe.stragglers import StragglerWatch
from spark_estimator.observe.training_records import TakeRecord

# How long to wait for the end of killed processes before the launcher continues without them.
_CLEAN_UP = timedelta(seconds=10)


class Discovery(Protocol):
    """A source of the hosts that a job may use, which change while it runs."""

    def start(self, offer: Callable[[Sequence[Host]], None], report: Callable[[str], None]) -> None:
        """Call `offer`, from any thread, with all hosts when they change; `report` tells why they are unknown."""

    def stop(self) -> None:
        """Offer nothing any more. Does not wait."""


def make_elastic_error(why: str, earlier: Sequence[FailureReport], last: Sequence[FailureReport]) -> BaseException:
    """Make the error of a job that can't continue, `why`: with ranks lost before the last round and since."""
    lost = [*earlier, *last]
    lines = [f"the elastic job can't continue: {why}."]
    lines += ["Lost so far:"] * bool(lost) + [f"  {report.where} {_shorten(report.message)}" for report in lost]
    cause = find_first_failure(lost)
    return JobFailedError("\n".join(lines)) if cause is None else make_error(cause, "\n".join(lines))


@dataclass(frozen=True)
class Following:
    """How the caller follows a job.

    Attributes:
        began: called with the number of each round after the first, from 2, when it begins.
        take_record: as in `JobOptions`.
        has_progress: the ranks report it; of a job whose number of ranks does not change, but for lost ones.
        status: shows how far the ranks are; None: nowhere.
        error: makes the error of a job that can't continue, of the arguments of `make_elastic_error`.
    """

    began: Callable[[int], None] = lambda number: None
    take_record: TakeRecord | None = None
    has_progress: bool = False
    status: StatusLine | None = None
    error: Callable[[str, Sequence[FailureReport], Sequence[FailureReport]], BaseException] = make_elastic_error


_PLAIN = Following()


@dataclass
class ProcessEnds:
    """How the processes of a job have ended.

    Attributes:
        finished: the last rank and the outcome of each that ended well.
        earlier, last: the ranks that were lost before the present round, and since.
        error: the first by which a process could not be started or supervised.
    """

    finished: list[tuple[int, Outcome]] = field(default_factory=list)
    earlier: list[FailureReport] = field(default_factory=list)
    last: list[FailureReport] = field(default_factory=list)
    error: BaseException | None = None

    def note(self, rank: int, event: Ended) -> str | None:
        """Note an end. Return which rank or host was lost, and why; None: it ended well."""
        if event.outcome is None:
            self.error = self.error or event.error
            is_host = isinstance(event.error, PreflightError)
            return (
                f"host {event.error}" if is_host else f"rank {rank} could not be started or supervised: {event.error!r}"
            )
        if event.outcome.failure is not None:
            self.last.append(event.outcome.failure)
            return f"{event.outcome.failure.where} {event.outcome.failure.message}"
        self.finished.append((rank, event.outcome))
        return None


class ElasticJob:
    """One job, from its first process to its last. `run` once.

    Args:
        placement: where its processes go.
        make: makes the handles of its workers.
        discovery: reports the hosts when they change; None: they never do.
        terms, show_line, report, gentle, poll, following: as in ``job_entry.run_elastic``.
        files: takes the ranks' files.
    """

    def __init__(
        self,
        terms: Terms,
        show_line: Callable[[int, str, str], None],
        report: Callable[[str], None],
        gentle: timedelta,
        placement: Placement,
        make: MakeWorker,
        discovery: Discovery | None = None,
        poll: Callable[[int], None] = lambda started: None,
        *,
        encrypted: bool = False,
        following: Following = _PLAIN,
        files: DriverFiles | None = None,
    ) -> None:
        self._following = following
        self._poll = poll
        self._placement = placement
        self._discovery = discovery
        self._terms = terms
        self._print = report
        self._gentle = gentle
        self._planner = RoundPlanner(terms, room=placement.room)
        self._display = EventDisplay(
            show_line,
            take_record=following.take_record,
            files=files,
            status=following.status,
        )
        self._processes = Processes(placement, make, self._display.events, encrypted=encrypted)
        self._ends = ProcessEnds()
        self._over = False
        self._late_round = 0  # the round whose late members have been reported

    def _report(self, text: str) -> None:
        if self._following.status is not None:
            self._following.status.hide()
        self._print(text)

    @remember_interruption()
    def run(self) -> list[Outcome]:
        """Run the job to its end, as ``job_entry.run_elastic``."""
        try:
            self._processes.start_first(self._terms.size, self._poll)
            if self._discovery is not None:
                self._discovery.start(lambda hosts: self._display.events.put(Offered(tuple(hosts))), self._report)
            while not self._over:
                self._take_one_event()
                raise_lost_interruption()
                self._poll(self._terms.size)
                self._update_placement(time.monotonic())
                waited_for = self._planner.waits_for_room
                for decision in self._planner.decide(time.monotonic()):
                    self._carry_out(decision)
                if self._planner.waits_for_room not in ("", waited_for):
                    self._report(self._planner.waits_for_room)
                self._report_late(time.monotonic())
        except BaseException:
            self._processes.stop("because the launcher was interrupted")
            self._wait_for_ends()
            raise
        finally:
            if self._discovery is not None:
                self._discovery.stop()
            if self._following.status is not None:
                self._following.status.close()
        return [outcome for _, outcome in sorted(self._ends.finished, key=lambda pair: pair[0])]

    # --- events --------------------------------------------------------------------------------------------------

    def _take_one_event(self) -> None:
        event = next(self._display.take_events())
        now = time.monotonic()
        if isinstance(event, FrameReceived):
            process = self._processes.get(event.process)
            if process is not None and event.frame.get("kind") == WARNED:
                self._note_warning(process, str(event.frame.get("reason")), now)
            if process is None or event.frame.get("kind") != READY:
                return
            try:
                process.ready = Ready.from_message(event.frame)
            except ValueError as error:
                process.worker.stop(f"because it sent invalid data: {error}", at_once=True)
                return
            ready = process.ready
            process.pid = ready.facts.pid
            self._planner.note_ready(
                event.process,
                now,
                holds_state=ready.holds_state,
                silent=ready.silent,
                commits=ready.commits,
                keeps_ranks=ready.keeps_ranks,
            )
        elif isinstance(event, Begun):
            for process in self._processes.values():
                if process.rank == event.rank >= 0:
                    process.pid = event.pid
        elif isinstance(event, Ended):
            self._note_end(event, now)
        elif isinstance(event, Offered):
            for change in self._placement.offer(event.hosts):
                self._report(f"host {change}")

    def _note_warning(self, process: Process, reason: str, now: float) -> None:
        """Have a process leave whose machine is about to be taken back, as soon as the others can continue."""
        process.is_warned = True
        may_move = self._placement.note_warning(process.number, now)
        plan = "its state moves when another process is ready" if may_move else "there is no other host to use"
        self._report(f"{process} is about to lose its machine ({reason}): {plan}")

    def _update_placement(self, now: float) -> None:
        """Have the planner know for how many processes there is room, and which have lost theirs."""
        while self._placement.warnings:
            number, reason = self._placement.warnings.popitem()
            if number in self._processes:
                self._processes.send([number], {"kind": WARNED, "reason": reason})
        for host in self._placement.readmit_hosts(now):
            self._report(f"host {host} may be used again")
        self._planner.room = self._placement.room
        self._planner.room_may_grow = self._discovery is not None or self._placement.some_may_return
        self._planner.mark_unwanted(self._placement.find_surplus(), now, warned=self._placement.find_warned())

    def _note_end(self, event: Ended, now: float) -> None:
        process = self._processes.pop(event.process)
        process.link.close()
        self._placement.leave(event.process)
        if process.is_released:
            return
        loss = self._ends.note(process.rank, event)
        if loss is not None and not self._over:
            self._report(loss if isinstance(event.error, PreflightError) else f"lost {loss}")
            self._blame(process.host, event, now)
        self._planner.note_end(event.process, now, loss)

    def _blame(self, host: str, event: Ended, now: float) -> None:
        """Exclude a host that is out of contact, or on which ranks fail again and again."""
        failure = None if event.outcome is None else event.outcome.failure
        if isinstance(event.error, PreflightError):
            if how_long := self._placement.note_unreachable(host, now):
                self._report(f"host {host} {how_long}")
        elif failure is not None and failure.kind == LOST:
            if how_long := self._placement.note_loss(host, now):
                self._report(f"host {host} is out of contact and {how_long}")
        elif (
            failure is not None
            and failure.kind != STOPPED
            and not failure.secondary
            and (how_long := self._placement.note_failure(host, now))
        ):
            self._report(f"{FAILURES} ranks or more have failed on host {host}: it {how_long}")

    # --- what is decided ------------------------------------------------------------------------------------------

    def _carry_out(self, decision: Decision) -> None:
        if isinstance(decision, Begin):
            self._begin(decision.processes)
        elif isinstance(decision, Announce):
            self._processes.send(decision.processes, {"kind": UPDATED})
        elif isinstance(decision, Dissolve):
            self._processes.send(decision.processes, {"kind": OVER})
        elif isinstance(decision, Start):
            self._start_newcomers(decision)
        elif isinstance(decision, Kill):
            self._processes[decision.process].worker.stop(decision.why, at_once=True)
        elif isinstance(decision, Release):
            self._release(decision.processes)
        elif isinstance(decision, Finish):
            self._end("because the job is done")
        else:
            self._fail(decision)

    def _start_newcomers(self, decision: Start) -> None:
        started = [self._processes.start_newcomer() for _ in range(decision.count)]
        for process in started:
            self._planner.note_start(process.number, standby=decision.standby)
        where = ", ".join(dict.fromkeys(process.host for process in started if process.host))
        what = "processes that wait for the loss of a rank" if decision.standby else "more"
        self._report(f"starting {decision.count} {what}" + (f" on {where}" if where else ""))

    def _release(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            process = self._processes[number]
            host = process.host if process.facts is None else process.facts.host
            reason = "its state has moved" if process.is_warned else "its slot was removed"
            self._report(f"process {process.worker.pid} on host {host} is stopped: {reason}")
            process.is_released = True
            self._placement.leave(number)
            process.worker.stop("because its slot was removed")

    def _report_late(self, now: float) -> None:
        """Name, once a round, the ranks that stay in it after others were lost: they call no collectives."""
        late = self._planner.list_late(now)
        if not late or self._over or self._late_round == self._planner.round:
            return
        self._late_round = self._planner.round
        ranks = ", ".join(str(self._processes[number]) for number in late)
        seconds = f"{self._terms.timeout.total_seconds():g} s"
        self._report(
            f"round {self._planner.round + 1} waits for {ranks}, which called no collective since other ranks were "
            f"lost or left, {LATE.total_seconds():g} s ago. "
            + (
                f"It is stopped {seconds} after the first rank began to wait."
                if self._planner.is_gathering
                else "No other rank waits for it, so the job has no limit for this."
            )
        )

    def _begin(self, numbers: Sequence[int]) -> None:
        """Send the processes of a new round their ranks in it."""
        self._following.began(self._planner.round)
        if self._following.status is not None:
            self._following.status.resize(len(numbers))
        if self._following.has_progress:
            self._display.stragglers = StragglerWatch(len(numbers))
        self._ends.earlier += self._ends.last
        self._ends.last = []
        peers = self._processes.list_peers(numbers)
        reasons = [
            ready.why for number in numbers if (ready := self._processes[number].ready) is not None and ready.why
        ]
        missing = 0 if self._terms.patience is None else self._terms.size - len(peers)
        self._report(
            f"round {self._planner.round} starts with {_format_ranks(len(peers))}, pids "
            f"{', '.join(str(peer.pid) for peer in peers)}"
            + (f"; without {_format_ranks(missing, 'lost ')}, not replaced in time" if missing else "")
            + (f"; round {self._planner.round - 1} ended with: {_shorten(reasons[0])}" if reasons else "")
        )
        self._processes.send_ranks(numbers, peers)

    def _fail(self, decision: Fail) -> None:
        """End the job, and raise an error with all of its failures."""
        error = self._following.error(decision.why, self._ends.earlier, self._ends.last)
        error.__cause__ = error.__cause__ or self._ends.error
        self._end("after that")
        raise error

    def _end(self, reason: str) -> None:
        self._over = True
        self._processes.stop(reason)
        if not self._wait_for_ends():
            pids = ", ".join(str(process.worker.pid) for process in self._processes.values())
            self._report(f"these processes could not be stopped: {pids}")

    def _wait_for_ends(self) -> bool:
        """Return when no process is left; False when some cannot be ended."""
        self._over = True
        deadline = time.monotonic() + (_CLEAN_UP + self._gentle).total_seconds()
        while self._processes and time.monotonic() < deadline:
            event = next(self._display.take_events())
            if isinstance(event, Ended):
                self._note_end(event, time.monotonic())
        return not self._processes


def _shorten(message: str) -> str:
    return message.split("\n", 1)[0][:500]


def _format_ranks(count: int, kind: str = "") -> str:
    return f"{count} {kind}rank{'s' * (count != 1)}"
