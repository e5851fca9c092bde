"""Runs an elastic job as processes, of this host or of several: does what ``elastic.rounds.RoundPlanner`` decides.

What the words mean, and what is promised, stands in ``elastic/__init__.py``.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from spark_estimator.collectives.launcher_link import OVER, READY, ROUND, UPDATED, Ready
from spark_estimator.collectives.rendezvous import PeerFacts, Rendezvous, host_id, new_job_id, new_key
from spark_estimator.elastic.rounds import (
    Announce,
    Begin,
    Decision,
    Dissolve,
    Fail,
    Finish,
    Kill,
    RoundPlanner,
    Start,
    Terms,
)
from spark_estimator.errors import JobFailedError
from spark_estimator.launch.elastic_process import MakePlace, Process
from spark_estimator.launch.failures import LOST, FailureReport, error_of, first_failure
from spark_estimator.launch.hosts import Host
from spark_estimator.launch.launcher import Ended, Told, Watch
from spark_estimator.launch.outcome import Outcome, Relay
from spark_estimator.launch.pickling import dump_function, load_values, name_of
from spark_estimator.launch.place import Place, PlaceHere
from spark_estimator.launch.seats import Seats
from spark_estimator.launch.spec import JobSpec, checked_environment, driver_sys_path, modules_to_preload
from spark_estimator.launch.worker_environment import host_share, worker_environment
from spark_estimator.observe.driver_log import print_line

ELASTIC_VARIABLE = "HOROVOD_ELASTIC"

# Processes that were killed are gone within so long, or the launcher goes on without them.
_CLEAN_UP = timedelta(seconds=10)
_NO_RANK = -1


def print_on_stderr(text: str) -> None:
    """Says what becomes of a job to whoever has started it."""
    print(f"spark_estimator: {text}", file=sys.stderr, flush=True)


def run_elastic_local(
    function: Callable[..., Any],
    terms: Terms,
    *,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    show_line: Callable[[int, str, str], None] = print_line,
) -> list[Any]:
    """As ``local.run_local``, in a job that goes on when it loses ranks; `function` uses ``elastic.run``.

    Returns:
        The values of those that returned, in the order of their last ranks.

    Raises:
        PicklingError: the function or an argument cannot travel.
        WorkerFailedError: fewer ranks are left than are needed, or another of the terms is broken; the text tells of
            all that were lost.
        ResultError: a value cannot be had.
        ValueError: a setting for the workers has a value that cannot be used.
    """
    payload = dump_function(function, args, kwargs or {})
    job = JobSpec(
        job_id=new_job_id(),
        size=terms.size,
        function=name_of(function),
        payload=payload,
        environment=worker_environment(os.environ, checked_environment(environment), host_share(terms.size)),
        preload=modules_to_preload(payload),
        all_results=True,
        driver_host_id=host_id(),
        driver_sys_path=driver_sys_path(),
    )
    outcomes = run_elastic(job, terms, show_line=show_line)
    return load_values([outcome.pickled for outcome in outcomes], job.function)


def run_elastic(
    job: JobSpec,
    terms: Terms,
    *,
    show_line: Callable[[int, str, str], None] = print_line,
    say: Callable[[str], None] = print_on_stderr,
    gentle: timedelta = timedelta(0),
    hosts: Sequence[Host] | None = None,
    make: MakePlace | None = None,
) -> list[Outcome]:
    """Runs an elastic job to its end.

    Args:
        job: what is run; ``job.size`` is ``terms.size``.
        show_line: prints a line; the rank is the present one, -1 for a process that has none yet.
        say: prints what becomes of the job: who was lost, of how many ranks the next round is.
        gentle: as in `Supervisor`; of processes of this host.
        hosts: on which processes may run; None: on this one alone.
        make: makes their places; None: here.

    Returns:
        The outcomes of those that ended well, by their last rank.

    Raises:
        JobFailedError: the job could not go on.
    """
    job = elastic(job)

    def here(_host: str, _number: int, _rank: int, relay: Relay, link: socket.socket) -> Place:
        return PlaceHere(job, relay, gentle=gentle, link=link)

    seats = Seats(hosts or [Host("", terms.size)])
    return _ElasticJob(terms, show_line, say, gentle, seats, make or here).run()


def elastic(job: JobSpec) -> JobSpec:
    """`job`, with what tells its ranks that it is elastic."""
    return replace(job, environment={**job.environment, ELASTIC_VARIABLE: "1"})


class _ElasticJob:
    def __init__(
        self,
        terms: Terms,
        show_line: Callable[[int, str, str], None],
        say: Callable[[str], None],
        gentle: timedelta,
        seats: Seats,
        make: MakePlace,
    ) -> None:
        self._seats = seats
        self._make = make
        self._terms = terms
        self._say = say
        self._gentle = gentle
        self._planner = RoundPlanner(terms, room=seats.room)
        self._watch = Watch(stop=self._stop, show_line=show_line)
        self._processes: dict[int, Process] = {}  # those that live
        self._numbers = terms.size
        self._well: list[tuple[int, Outcome]] = []
        self._lost: list[FailureReport] = []
        self._errors: list[BaseException] = []
        self._over = False

    def run(self) -> list[Outcome]:
        try:
            self._start_all()
            while not self._over:
                self._take_one_event()
                for decision in self._planner.decide(time.monotonic()):
                    self._do(decision)
        except BaseException:
            self._stop("because the launcher was interrupted")
            self._await_ends()
            raise
        return [outcome for _, outcome in sorted(self._well, key=lambda pair: pair[0])]

    # --- starting -------------------------------------------------------------------------------------------------

    def _start_all(self) -> None:
        """Starts the first round. All are started before any is told who the others are, processes included."""
        for number in range(self._terms.size):
            self._start(number, number)
        processes = list(self._processes.values())
        try:
            for process in processes:
                process.started.wait()
        finally:
            peers = [replace(process.facts, rank=process.rank) for process in processes if process.facts is not None]
            job_id, key = new_job_id(), new_key()
            for process in processes:
                whole = len(peers) == len(processes)
                process.tell(Rendezvous(job_id, key, process.rank, tuple(peers), -1) if whole else None)

    def _start_newcomer(self) -> None:
        number, self._numbers = self._numbers, self._numbers + 1
        self._start(number, _NO_RANK)
        self._planner.started(number)
        threading.Thread(target=self._let_wait, args=(self._processes[number],), daemon=True).start()

    @staticmethod
    def _let_wait(process: Process) -> None:
        """Tells a newcomer, once it is there, that it will be told its rank later."""
        process.started.wait()
        if process.facts is not None:
            alone = (replace(process.facts, rank=0),)
            process.tell(Rendezvous(new_job_id(), new_key(), 0, alone, -1, awaited=True))

    def _start(self, number: int, rank: int) -> None:
        self._processes[number] = Process(number, rank, self._seats.take(number), self._make, self._watch)

    # --- what is told ---------------------------------------------------------------------------------------------

    def _take_one_event(self) -> None:
        event = next(self._watch.shown())
        now = time.monotonic()
        if isinstance(event, Told):
            process = self._processes.get(event.process)
            if process is None or event.frame.get("kind") != READY:
                return
            try:
                process.ready = Ready.from_message(event.frame)
            except ValueError as error:
                process.place.stop(f"because it does not speak as it should: {error}", at_once=True)
                return
            ready = process.ready
            self._planner.ready(
                event.process, now, holds_state=ready.holds_state, silent=ready.silent, commits=ready.commits
            )
        elif isinstance(event, Ended):
            self._note_end(event, now)

    def _note_end(self, event: Ended, now: float) -> None:
        process = self._processes.pop(event.process)
        process.link.close()
        self._seats.leave(event.process)
        outcome = event.outcome
        lost = outcome is not None and outcome.failure is not None and outcome.failure.kind == LOST
        if lost and self._seats.lose(process.host) and not self._over:
            self._say(f"host {process.host} is out of contact and will not be used again")
        self._planner.room = self._seats.room
        if outcome is None:
            assert event.error is not None
            self._errors.append(event.error)
            story = f"rank {process.rank} could not be started or watched: {event.error!r}"
        elif outcome.failure is not None:
            self._lost.append(outcome.failure)
            story = f"{outcome.failure.where} {outcome.failure.message}"
        else:
            self._well.append((process.rank, outcome))
            self._planner.ended(event.process, now, None)
            return
        if not self._over:
            self._say(f"lost {story}")
        self._planner.ended(event.process, now, story)

    # --- what is decided ------------------------------------------------------------------------------------------

    def _do(self, decision: Decision) -> None:
        if isinstance(decision, Begin):
            self._begin(decision.processes)
        elif isinstance(decision, Announce):
            for number in decision.processes:
                self._tell(number, {"kind": UPDATED})
        elif isinstance(decision, Dissolve):
            for number in decision.processes:
                self._tell(number, {"kind": OVER})
        elif isinstance(decision, Start):
            for _ in range(decision.count):
                self._start_newcomer()
            self._say(f"starting {decision.count} in place of those that were lost")
        elif isinstance(decision, Kill):
            self._processes[decision.process].place.stop(decision.why, at_once=True)
        elif isinstance(decision, Finish):
            self._end("because the job is done")
        else:
            self._fail(decision)

    def _begin(self, numbers: Sequence[int]) -> None:
        """Tells the processes of a new round who they are in it."""
        job_id, key = new_job_id(), new_key()
        waiting = [self._processes[number].ready for number in numbers]
        peers = tuple(
            _known_as(self._processes[number], ready.facts, rank)
            for rank, (number, ready) in enumerate(zip(numbers, waiting, strict=True))
            if ready is not None
        )
        whys = [ready.why for ready in waiting if ready is not None and ready.why]
        self._say(
            f"round {self._planner.round} begins with {len(peers)} ranks, processes "
            f"{', '.join(str(peer.pid) for peer in peers)}" + (f"; the last one ended so: {whys[0]}" if whys else "")
        )
        for rank, number in enumerate(numbers):
            self._processes[number].become(rank)
            coming = Rendezvous(job_id, key, rank, peers, -1, -1)
            self._tell(number, {"kind": ROUND, "rendezvous": coming.to_json()})

    def _tell(self, number: int, frame: Mapping[str, Any]) -> None:
        try:
            self._processes[number].link.send(frame)
        except TimeoutError:
            self._processes[number].place.stop("because it does not listen to its launcher", at_once=True)
        except OSError:
            pass  # it has died: its end is on its way

    def _fail(self, decision: Fail) -> None:
        """Ends the job, and raises what tells its whole story."""
        lost = list(self._lost)
        self._end("after that")
        lines = [f"the elastic job cannot go on: {decision.why}."]
        lines += ["Lost so far:"] * bool(lost) + [f"  {report.where} {_shortened(report.message)}" for report in lost]
        cause = first_failure(lost)
        if cause is None:
            raise JobFailedError("\n".join(lines)) from (self._errors[0] if self._errors else None)
        raise error_of(cause, "\n".join(lines))

    # --- ends -----------------------------------------------------------------------------------------------------

    def _stop(self, reason: str) -> None:
        for process in self._processes.values():
            process.place.stop(reason)

    def _end(self, reason: str) -> None:
        self._over = True
        self._stop(reason)
        if not self._await_ends():
            left = ", ".join(str(process.place.pid) for process in self._processes.values())
            self._say(f"these processes could not be ended: {left}")

    def _await_ends(self) -> bool:
        """Returns when no process is left; False when some cannot be ended."""
        self._over = True
        deadline = time.monotonic() + (_CLEAN_UP + self._gentle).total_seconds()
        while self._processes and time.monotonic() < deadline:
            event = next(self._watch.shown())
            if isinstance(event, Ended):
                self._note_end(event, time.monotonic())
        return not self._processes


def _known_as(process: Process, told: PeerFacts, rank: int) -> PeerFacts:
    """Where a process says that it listens now, under the name by which the job knows its host."""
    first = process.facts
    assert first is not None
    return replace(told, rank=rank, host=first.host, host_id=first.host_id)


def _shortened(message: str) -> str:
    return message.split("\n", 1)[0][:500]
