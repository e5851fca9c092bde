"""The oracle against good and bad endings: each kind of bad one must be noticed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chaos.oracle import BOUND_SECONDS, Ending, Struck, violations
from chaos.plan import Fault, Kind, Launcher, Run

RIGHT = 7
HEALTHY = Ending(value=RIGHT, error="", seconds=0.5)


def run_of(*faults: Fault, launcher: Launcher = Launcher.LOCAL, size: int = 3) -> Run:
    return Run("seed", 0, launcher, size, False, True, (("allreduce",),) * 4, 17, 0, faults)


def judged(kind: Kind, rank: int, ending: Ending, launcher: Launcher = Launcher.LOCAL) -> list[str]:
    """The oracle's verdict on a run in which this has happened."""
    fault = Fault(kind, rank, 2, 0)
    pid = 0 if launcher is Launcher.LINKS else 4321
    return violations(run_of(fault, launcher=launcher), RIGHT, replace(ending, struck=(Struck(fault, rank, pid),)))


def test_right_numbers_are_fine() -> None:
    assert violations(run_of(), RIGHT, HEALTHY) == []


@pytest.mark.parametrize("value", [8, None, -1])
def test_wrong_numbers(value: int | None) -> None:
    assert violations(run_of(), RIGHT, replace(HEALTHY, value=value)) == [f"wrong numbers: {value} instead of 7"]


@pytest.mark.parametrize(("launcher", "fine"), [(Launcher.COMMAND, True), (Launcher.LOCAL, False)])
def test_a_command_of_one_rank_may_end_with_status_0_and_no_result(launcher: Launcher, fine: bool) -> None:
    fault = Fault(Kind.OS_EXIT, 0, 2, 0)
    ending = Ending(None, "", 0.5, (Struck(fault, 0, 4321),))
    assert (violations(run_of(fault, launcher=launcher, size=1), RIGHT, ending) == []) == fine


def test_wrong_numbers_that_a_rank_has_noticed() -> None:
    error = "rank 1 (host h, pid 4321) raised chaos.program.WrongNumbersError: min in step 2"
    (wrong,) = judged(Kind.KILL, 1, Ending(None, error, 1.0))
    assert wrong.startswith("wrong numbers: rank 1")


def test_a_job_that_does_not_end() -> None:
    assert violations(run_of(), RIGHT, Ending(None, "", None)) == ["the job did not end"]


def test_a_job_that_ends_late() -> None:
    error = "rank 1 (host h, pid 4321) was killed by signal 9"
    (wrong,) = judged(Kind.KILL, 1, Ending(None, error, BOUND_SECONDS + 1))
    assert "ended 26.0 s after the last fault" in wrong


def test_a_job_without_faults_may_take_its_time() -> None:
    assert violations(run_of(), RIGHT, replace(HEALTHY, seconds=BOUND_SECONDS + 1)) == []


def test_an_error_without_a_fault() -> None:
    (wrong,) = violations(run_of(), RIGHT, Ending(None, "rank 1 (host h) was killed by signal 9", 1.0))
    assert wrong.startswith("an error without a fault")


@pytest.mark.parametrize("kind", [Kind.PAUSE, Kind.GIL, Kind.STRANGERS, Kind.FULL_DISK, Kind.DELAY])
def test_an_error_after_what_must_do_no_harm(kind: Kind) -> None:
    (wrong,) = judged(kind, 1, Ending(None, "rank 1 (host h): no heartbeat", 1.0))
    assert wrong.startswith("an error without a fault")


def test_who_was_at_fault_must_be_named() -> None:
    named = Ending(
        None, "rank 1 (host h, pid 4321) was killed by signal 9\nThe other ranks of f:\n  rank 2 lost it", 1.0
    )
    assert judged(Kind.KILL, 1, named) == []
    (wrong,) = judged(Kind.KILL, 2, replace(named, error=named.error.replace("4321", "1234")))
    assert wrong.startswith("the error names [1] and not one of [2]")
    (wrong,) = judged(Kind.KILL, 1, replace(named, error="a worker could not be started"))
    assert "names no rank" in wrong


def test_an_error_of_another_rank_may_name_it() -> None:
    error = "rank 0 (host h, pid 1) raised PeerLostError: rank 1 on h: no heartbeat for 4 s"
    assert judged(Kind.FREEZE, 1, Ending(None, error, 5.0)) == []


def test_a_process_of_an_elastic_job_is_named_by_its_number() -> None:
    error = "the elastic job can't continue: process 4321 was not ready"
    assert judged(Kind.FREEZE, 1, Ending(None, error, 5.0), Launcher.ELASTIC) == []


@pytest.mark.parametrize(("text", "fine"), [("rank 0 lost rank 1", True), ("rank 2 lost it", False)])
def test_a_link_has_two_ends(text: str, fine: bool) -> None:
    assert (judged(Kind.CUT, 1, Ending(None, text, 5.0), Launcher.LINKS) == []) == fine


@pytest.mark.parametrize("kind", [Kind.RAISE, Kind.SYS_EXIT, Kind.RETURN, Kind.DESCRIPTORS, Kind.MEMORY])
def test_success_in_spite_of_what_ends_a_rank(kind: Kind) -> None:
    (wrong,) = judged(kind, 1, HEALTHY)
    assert wrong.startswith("success in spite of")


@pytest.mark.parametrize(("step", "fine"), [(2, False), (4, True)])
def test_a_command_may_end_with_status_0_after_its_last_step(step: int, fine: bool) -> None:
    fault = Fault(Kind.SYS_EXIT, 1, step, 0)
    run = run_of(fault, launcher=Launcher.COMMAND)
    assert (violations(run, RIGHT, replace(HEALTHY, struck=(Struck(fault, 1, 4321),))) == []) == fine


@pytest.mark.parametrize("kind", [Kind.RAISE, Kind.KILL])
def test_an_elastic_job_may_continue(kind: Kind) -> None:
    assert judged(kind, 1, HEALTHY, Launcher.ELASTIC) == []


@pytest.mark.parametrize(
    ("reported", "fine"), [("round 2 waits for rank 1 (host h, pid 4321), which", True), ("", False)]
)
def test_a_stuck_rank_that_no_other_misses_must_be_reported(reported: str, fine: bool) -> None:
    error = "rank 1 (host h, pid 4321) exited with status 1"
    ending = Ending(None, error, 18.0, unmissed=1, reported=reported)
    assert (judged(Kind.STUCK, 1, ending, Launcher.ELASTIC) == []) == fine


def test_what_a_timer_does_may_come_too_late() -> None:
    assert judged(Kind.KILL, 1, HEALTHY) == []


def test_what_is_left_behind() -> None:
    ending = replace(HEALTHY, left=("process 5: sleep",), checkpoint_problem="one is torn", next_job="did not end")
    assert violations(run_of(), RIGHT, ending) == [
        "left behind: process 5: sleep",
        "checkpoints: one is torn",
        "the next job: did not end",
    ]
