"""The planner of rounds: the ranks of the next one, in their order, and the end of a job.

Pure, on a simulated clock.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
from spark_estimator.elastic.rounds import LATE, SILENT_GRACE, RoundPlanner


class Job:
    """A planner, with a clock, and everything that it has decided."""

    def __init__(self, size: int = 3, min_size: int = 2, **terms: Any) -> None:
        self.planner = RoundPlanner(Terms(size, min_size, **terms))
        self.now = 100.0

    def decide(self) -> list[Decision]:
        decisions = self.planner.decide(self.now)
        for decision in decisions:
            if isinstance(decision, Start):
                for _ in range(decision.count):
                    self.planner.note_start(max(self.planner._processes) + 1, standby=decision.standby)
        return [decision for decision in decisions if not isinstance(decision, Dissolve)]

    def lost(self, process: int) -> list[Decision]:
        self.planner.note_end(process, self.now, f"process {process} was killed")
        return self.decide()

    def ended_well(self, process: int) -> list[Decision]:
        self.planner.note_end(process, self.now, None)
        return self.decide()

    def ready(self, process: int, **what: Any) -> list[Decision]:
        self.planner.note_ready(process, self.now, **what)
        return self.decide()


def test_where_ranks_are_kept_a_new_process_has_the_lost_one_s() -> None:
    job = Job(3, 3, replace=True)
    assert job.lost(0) == [Start(1)]
    job.ready(1, keeps_ranks=True)
    job.ready(2, keeps_ranks=True)
    assert job.ready(3) == [Begin((3, 1, 2))], "rank 0 is new: the state comes from another one"
    # Smaller, then larger again.
    job = Job(4, 2)
    job.lost(1)
    job.ready(0, keeps_ranks=True)
    job.ready(3, keeps_ranks=True)
    assert job.ready(2) == [Begin((0, 3, 2))]


def patient(size: int = 3, **terms: Any) -> Job:
    return Job(size, 1, replace=True, patience=timedelta(seconds=30), **terms)


def test_a_patient_job_waits_for_the_replacement_and_then_begins_without_it() -> None:
    job = patient()
    assert job.lost(1) == [Start(1)]
    job.ready(0, keeps_ranks=True)
    assert job.ready(2, keeps_ranks=True) == []
    job.now += 29
    assert job.decide() == []
    job.now += 1
    assert job.decide() == [Begin((0, 2))]
    # The round of two is whole: it does not wait, and grows when the newcomer is there.
    job.now += 1000
    assert job.decide() == []
    assert job.ready(3) == [Announce((0, 2))]
    job.ready(0)
    assert job.ready(2) == [Begin((0, 2, 3))]


def test_a_patient_job_waits_for_no_round_that_its_limit_forbids() -> None:
    job = patient(reset_limit=0)
    assert job.lost(1) == [], "no process is started"
    assert job.ready(0, keeps_ranks=True) == [], "rank 2 is still at work"
    assert job.ready(2, keeps_ranks=True) == [Fail("it reached reset_limit=0")]


def test_a_patient_job_has_the_replacement_in_its_place_if_it_comes_in_time() -> None:
    job = patient()
    job.lost(1)
    job.ready(0, keeps_ranks=True)
    job.ready(2)
    job.now += 20
    assert job.ready(3) == [Begin((0, 3, 2))]


def warn(job: Job, *processes: int) -> list[Decision]:
    job.planner.mark_unwanted(processes, job.now, warned=processes)
    return job.decide()


def test_each_of_two_that_have_to_leave_stays_until_a_newcomer_takes_its_rank() -> None:
    job = patient()
    assert warn(job, 1, 2) == [Start(2)]
    assert job.ready(3) == [Announce((0, 1, 2))]
    for process in (0, 1):
        assert job.ready(process, keeps_ranks=True) == []
    assert job.ready(2) == [Release((2,)), Begin((0, 1, 3))]
    assert job.ready(4) == [Announce((0, 1, 3))]
    for process in (0, 1):
        job.ready(process)
    assert job.ready(3) == [Release((1,)), Begin((0, 4, 3))]


def test_one_that_has_to_leave_stays_if_the_newcomer_dies_and_is_never_ended() -> None:
    job = patient(2, timeout=timedelta(seconds=60))
    assert warn(job, 1) == [Start(1)]
    assert job.ready(2) == [Announce((0, 1))]
    assert job.lost(2) == []
    job.ready(0, keeps_ranks=True)
    assert job.ready(1) == [Begin((0, 1))]
    assert job.decide() == [Start(1)]
    job.now += 1000
    assert warn(job, 1) == []


def test_a_patient_job_grows_at_once_though_another_is_missing() -> None:
    job = patient()
    job.lost(1)
    job.lost(2)
    job.now += 30
    assert job.ready(0, keeps_ranks=True) == [Begin((0,))]
    assert job.ready(3) == [Announce((0,))]
    assert job.ready(0) == [Begin((0, 3))]


def test_a_round_of_fewer_that_fails_without_a_loss_begins_again_at_once() -> None:
    job = patient()
    job.lost(1)
    job.ready(0)
    job.ready(2)
    job.now += 30
    assert job.decide() == [Begin((0, 2))]
    job.ready(0)
    assert job.ready(2) == [Begin((0, 2))]


def test_with_one_reset_a_patient_job_still_starts_a_replacement() -> None:
    job = patient(reset_limit=1)
    assert job.lost(1) == [Start(1)]
    job.ready(0, keeps_ranks=True)
    job.ready(2)
    assert job.ready(3) == [Begin((0, 3, 2))]


def test_all_ranks_of_a_patient_job_have_to_end_well() -> None:
    job = patient(2)
    job.ended_well(1)
    assert job.lost(0) == [Fail("1 of its ranks succeeded, and at least 2 are needed")]
    job = patient(3)
    job.lost(2)
    job.ready(0)
    job.ready(1)
    job.now += 30
    job.decide()
    job.ended_well(0)
    assert job.ended_well(1) == [Finish()]


def test_a_patient_job_that_fewer_ranks_cannot_continue_ends() -> None:
    job = patient(2)
    job.lost(0)
    assert isinstance(job.lost(1)[-1], Fail)


def test_survivors_keep_their_order_and_the_lowest_becomes_0() -> None:
    job = Job()
    assert job.lost(0) == []
    assert job.ready(2) == []
    assert job.ready(1) == [Begin((1, 2))]
    assert job.planner.round == 2


def test_a_round_waits_for_the_slowest_and_for_nobody_that_has_ended() -> None:
    job = Job(4)
    assert job.ready(3) == []
    assert job.ready(1) == []
    assert job.lost(0) == []
    assert job.lost(2) == [Begin((1, 3))]


def test_who_died_while_it_waited_is_not_in_the_round() -> None:
    job = Job(4)
    job.lost(0)
    job.ready(1)
    assert job.lost(1) == []
    job.ready(2)
    assert job.ready(3) == [Begin((2, 3))]


def test_members_that_still_connect_are_told_once_that_their_round_is_over() -> None:
    job = Job()
    job.planner.note_ready(1, job.now)
    assert job.planner.decide(job.now) == [Dissolve((0, 2))]
    assert job.planner.decide(job.now) == []


def test_too_few_end_the_job_at_once_and_say_how_many_are_needed() -> None:
    job = Job()
    job.lost(0)
    assert job.lost(1) == [Fail("1 rank is left, and at least 2 are needed")]
    assert job.planner.loss_reports == ["process 0 was killed", "process 1 was killed"]
    assert job.decide() == [], "the end is decided once"


def test_all_end_well() -> None:
    job = Job()
    assert [job.ended_well(0), job.ended_well(1)] == [[], []]
    assert job.ended_well(2) == [Finish()]


def test_one_may_be_lost_at_the_very_end() -> None:
    job = Job()
    job.ended_well(0)
    job.lost(1)
    assert job.ended_well(2) == [Finish()]


def test_too_few_that_ended_well_are_a_failure() -> None:
    job = Job()
    job.ended_well(0)
    assert job.lost(1) == []
    assert isinstance(job.lost(2)[0], Fail)


def test_who_is_left_alone_by_those_that_ended_well_is_told() -> None:
    job = Job(2, 2)
    job.ended_well(1)
    assert job.ready(0) == [Fail("1 rank is left, and at least 2 are needed (1 had succeeded before)")]


def test_a_silent_member_is_killed_after_a_grace_and_cannot_come_back() -> None:
    job = Job()
    assert job.ready(0, silent=(1,)) == []
    assert job.ready(2, silent=(1,)) == []
    job.now += SILENT_GRACE.total_seconds()
    assert job.decide() == [Kill(1, "because the other ranks lost contact with it")]
    assert job.decide() == [], "once"
    assert job.lost(1) == [Begin((0, 2))]


def test_one_that_was_only_slow_is_not_killed() -> None:
    job = Job()
    job.ready(0, silent=(1,))
    job.ready(2)
    job.now += 1
    assert job.ready(1) == [Begin((0, 1, 2))]


def test_silent_ranks_are_those_of_the_round_that_was_left() -> None:
    job = Job(4)
    job.lost(0)
    for process in (1, 2, 3):
        job.ready(process)
    job.ready(1, silent=(1,))  # process 2
    job.now += 10
    assert [decision.process for decision in job.decide() if isinstance(decision, Kill)] == [2]


def test_who_does_not_come_is_killed_after_the_time_out_and_named() -> None:
    job = Job(timeout=timedelta(seconds=60))
    job.ready(0)
    job.ready(1)
    job.now += 59
    assert job.decide() == []
    job.now += 1
    assert job.decide() == [Kill(2, "because it didn't join round 2 within 60 seconds")]


def test_the_limit_of_resets() -> None:
    job = Job(4, 1, reset_limit=1)
    job.lost(3)
    for process in (0, 1):
        job.ready(process)
    assert job.ready(2) == [Begin((0, 1, 2))]
    job.lost(2)
    job.ready(0)
    assert job.ready(1) == [Fail("it reached reset_limit=1")]


def test_rounds_without_progress_end_the_job_unless_a_limit_is_set() -> None:
    def rounds(commits_in: int, **terms: Any) -> list[Decision]:
        job = Job(2, 1, **terms)
        decisions: list[Decision] = []
        for number in range(25):
            job.ready(0)
            decisions += job.ready(1, commits=number == commits_in)
        return decisions

    assert rounds(3)[-1] == Fail("10 rounds in a row have ended without a commit") and len(rounds(3)) == 4 + 10
    assert len(rounds(-1)) == 10
    assert len(rounds(-1, reset_limit=30)) == 25


def test_a_newcomer_is_announced_when_it_is_ready_and_comes_last() -> None:
    job = Job(replace=True)
    assert job.lost(0) == [Start(1)]
    job.ready(1)
    assert job.ready(2) == [Begin((1, 2))], "nobody waits for it"
    assert job.ready(3) == [Announce((1, 2))]
    assert job.decide() == []
    job.ready(2)
    assert job.ready(1) == [Begin((1, 2, 3))]


def test_processes_on_standby_take_the_places_of_lost_ranks() -> None:
    job = Job(2, 2, replace=True, reset_limit=2, standby=1)
    assert job.decide() == [Start(1, standby=True)]
    assert job.ready(2) == [], "no rank is missing: the members stay in their round"
    assert job.lost(1) == [Start(1, standby=True)]
    job.planner.note_ready(0, job.now, holds_state=True, keeps_ranks=True)
    assert job.decide() == [Begin((0, 2))]
    assert job.ready(3) == [] and job.decide() == []
    assert job.lost(0) == [], "another start would be of no use: the limit is reached by this loss"
    assert job.ready(2, holds_state=True, keeps_ranks=True) == [Begin((3, 2))]
    assert job.ended_well(2) == [] and job.ended_well(3) == [Finish()]


def test_of_several_on_standby_only_those_that_are_missing_join() -> None:
    job = Job(3, 2, replace=True, standby=2)
    assert job.decide() == [Start(2, standby=True)]
    assert job.ready(3) == [] and job.ready(4) == []
    assert job.lost(1) == [Start(1, standby=True), Announce((0, 2))]
    assert job.ready(0, holds_state=True) == []
    assert job.ready(2, holds_state=True) == [Begin((0, 2, 3))]


def test_a_process_on_standby_that_dies_is_replaced_after_the_next_loss() -> None:
    job = Job(2, 2, replace=True, standby=1)
    assert job.decide() == [Start(1, standby=True)]
    assert job.lost(2) == [], "it could die again and again"
    assert job.lost(0) == [Start(1)], "but now one is needed"
    assert job.ready(1, holds_state=True, keeps_ranks=True) == []
    assert job.ready(2) == [Begin((2, 1))]
    assert job.decide() == [Start(1, standby=True)]


def test_standby_has_no_slot_where_there_is_no_room() -> None:
    job = Job(2, 2, replace=True, standby=1)
    job.planner.room = 2
    assert job.decide() == []
    job.planner.room = 3
    assert job.decide() == [Start(1, standby=True)]
    job.planner.room = 2
    job.planner.mark_unwanted([2], job.now)
    assert job.decide() == [Release((2,))]


def test_a_newcomer_that_was_in_time_is_in_the_very_next_round() -> None:
    job = Job(2, 2, replace=True)
    assert job.lost(0) == [Start(1)]
    assert job.ready(1) == [], "too few without it"
    assert job.ready(2) == [Begin((1, 2))]


def test_without_the_newcomer_there_are_too_few() -> None:
    job = Job(2, 2, replace=True, timeout=timedelta(seconds=9))
    job.lost(0)
    job.ready(1)
    assert isinstance(job.lost(2)[0], Fail), "it died"
    job = Job(2, 2, replace=True, timeout=timedelta(seconds=9))
    job.lost(0)
    job.ready(1)
    job.now += 9
    (failed,) = job.decide()
    assert isinstance(failed, Fail) and "1 new processes didn't join round 2 within 9 seconds" in failed.why


def test_newcomers_that_die_one_after_another_are_not_started_without_end() -> None:
    job = Job(replace=True)
    assert job.lost(0) == [Start(1)]
    assert job.lost(3) == []


def test_a_limit_that_leaves_no_room_for_a_newcomer_starts_none() -> None:
    assert Job(replace=True, reset_limit=1).lost(0) == []
    assert Job(replace=True, reset_limit=2).lost(0) == [Start(1)]
    assert Job(2, 2, replace=True, reset_limit=1).lost(0) == [Start(1)], "loss and coming are one reset"
    job = Job(replace=True, reset_limit=2)
    job.lost(0)
    job.ready(1)
    job.ready(2)
    job.ready(1)
    assert job.ready(2) == [Begin((1, 2))], "the second reset, for another reason"
    assert job.ready(3) == [], "it is not announced: there is none left for it"


def test_no_more_newcomers_are_started_than_there_is_room_for() -> None:
    job = Job(4, 1, replace=True)
    job.planner.room = 3  # a host with one slot, and two processes, is removed
    assert job.lost(3) == []
    assert job.lost(2) == [Start(1)]
    assert job.ready(0) == [] and job.ready(1) == [Begin((0, 1))]
    job = Job(2, 2, replace=True)
    job.planner.room = 1
    (failed,) = job.lost(1)
    assert isinstance(failed, Fail) and "at least 2 are needed" in failed.why


def test_who_holds_no_state_never_becomes_rank_0_before_one_who_does() -> None:
    job = Job(2, 1, replace=True)
    job.lost(0)
    job.ready(1)
    job.ready(2)
    assert job.ready(1) == [Begin((1, 2))]
    # Rank 0 dies while the newcomer takes the state over.
    job.lost(1)
    (failed,) = job.ready(2)
    assert isinstance(failed, Fail) and "no process that has its state is left" in failed.why


def test_once_it_has_the_state_a_newcomer_is_as_good_as_any() -> None:
    job = Job(2, 1, replace=True)
    job.lost(0)
    job.ready(1)
    job.ready(2)
    job.ready(1)
    job.lost(1)
    assert job.ready(2, holds_state=True) == [Begin((2,))]


def test_a_job_grows_as_far_as_there_is_room_and_it_may() -> None:
    job = Job(2, 1, replace=True, max_size=4)
    job.planner.room = 2
    assert job.decide() == []
    job.planner.room = 9
    assert job.decide() == [Start(2)]
    assert job.ready(2) == [Announce((0, 1))]
    job.ready(3)
    job.ready(1)
    assert job.ready(0) == [Begin((0, 1, 2, 3))]
    assert job.decide() == []


def test_one_whose_slot_is_gone_leaves_at_the_next_commit_and_is_not_missed() -> None:
    job = Job(3, 2)
    job.planner.mark_unwanted([1], job.now)
    assert job.decide() == [Announce((0, 1, 2))]
    assert job.ready(2) == [] == job.ready(0)
    assert job.ready(1) == [Release((1,)), Begin((0, 2))]
    assert job.lost(1) == [] and job.planner.loss_reports == []


def test_one_whose_slot_comes_back_in_time_stays() -> None:
    job = Job(3, 2)
    job.planner.mark_unwanted([1], job.now)
    assert job.decide() == [Announce((0, 1, 2))]
    job.planner.mark_unwanted([], job.now)
    for process in (0, 1):
        job.ready(process)
    assert job.ready(2) == [Begin((0, 1, 2))]


def test_those_whose_slots_are_gone_stay_at_work_until_there_are_enough_others() -> None:
    job = Job(2, 2, replace=True, timeout=timedelta(seconds=60))
    job.planner.room, job.planner.room_may_grow = 1, True
    job.planner.mark_unwanted([0], job.now)
    assert job.decide() == []
    job.planner.room = 2
    assert job.decide() == [Start(1)]
    assert job.ready(2) == [Announce((0, 1))]
    job.ready(0)
    assert job.ready(1) == [Release((0,)), Begin((1, 2))]


def test_slots_that_come_back_make_no_more_ranks_than_there_may_be() -> None:
    job = Job(2, 1, replace=True)
    job.planner.mark_unwanted([1], job.now)
    assert job.decide() == [Start(1), Announce((0, 1))]
    job.planner.mark_unwanted([], job.now)
    assert job.decide() == [Release((2,))], "it has come last"
    job = Job(2, 2, replace=True)
    job.planner.mark_unwanted([0], job.now)
    job.decide()
    job.ready(2)
    job.planner.mark_unwanted([], job.now)
    assert job.decide() == [Release((2,))]
    for process in (0, 1):
        decisions = job.ready(process)
    assert decisions == [Begin((0, 1))]


def test_members_that_stay_at_work_after_a_loss_are_late() -> None:
    job = Job(3, 1)
    job.lost(2)
    job.now += LATE.total_seconds() - 1
    assert job.planner.list_late(job.now) == []
    job.now += 1
    assert job.planner.list_late(job.now) == [0, 1] and not job.planner.is_gathering, (
        "no rank waits, so there is no limit"
    )
    job.ready(1)
    assert job.planner.list_late(job.now) == [0] and job.planner.is_gathering
    assert job.ready(0) == [Begin((0, 1))]
    job.now += LATE.total_seconds()
    assert job.planner.list_late(job.now) == []


def test_all_move_to_another_host_and_the_state_goes_with_them() -> None:
    job = Job(1, 1, replace=True)
    job.planner.mark_unwanted([0], job.now)
    assert job.decide() == [Start(1)], "nobody else is there yet"
    assert job.ready(1) == [Announce((0,))]
    assert job.ready(0) == [Begin((0, 1))], "who has the state stays until the other has it, too"
    assert job.decide() == [Announce((0, 1))]
    job.ready(0)
    assert job.ready(1, holds_state=True) == [Release((0,)), Begin((1,))]


def test_one_with_the_state_is_enough_to_hand_it_on() -> None:
    job = Job(3, 1, replace=True)
    job.planner.mark_unwanted([0, 1, 2], job.now)
    assert job.decide() == [Start(3)]
    for newcomer in (3, 4, 5):
        job.ready(newcomer)
    assert job.ready(2) == [] == job.ready(1)
    assert job.ready(0) == [Release((1, 2)), Begin((0, 3, 4, 5))]


def test_whose_slot_is_gone_for_too_long_is_ended_all_the_same() -> None:
    job = Job(2, 2, timeout=timedelta(seconds=60))
    job.planner.room_may_grow = True
    job.planner.mark_unwanted([1], job.now)
    job.now += 60
    assert job.decide() == [Kill(1, "because its slot was removed 60 seconds ago")]
    assert job.decide() == []
    assert job.lost(1) == [] == job.ready(0), "hosts may come"
    assert job.planner.waits_for_room.endswith("at least 2 are needed: waiting for hosts for up to 60 seconds")
    job.now += 60
    (failed,) = job.decide()
    assert isinstance(failed, Fail) and failed.why.endswith("no new slots appeared within 60 seconds")


def test_a_newcomer_whose_slot_is_gone_is_ended_at_once() -> None:
    job = Job(2, 1, replace=True, max_size=3)
    assert job.decide() == [Start(1)]
    job.planner.room = 2
    job.planner.mark_unwanted([2], job.now)
    assert job.decide() == [Release((2,))]


def test_after_a_newcomer_that_failed_another_comes_where_there_is_other_room() -> None:
    job = Job(2, 1, replace=True, max_size=3)
    job.planner.room = 4
    assert job.decide() == [Start(1)]
    assert job.lost(2) == [], "it would fail as well"
    job.planner.room = 3  # the host that could not be had is out
    assert job.decide() == [Start(1)]


def test_when_members_have_ended_well_nobody_new_comes() -> None:
    job = Job(replace=True)
    job.ended_well(0)
    assert job.lost(1) == []


#: Seconds that pass, a report, and the process that it is about.
_REPORTS = st.lists(
    st.tuples(st.integers(0, 20), st.sampled_from(["ready", "lost", "well", "removed"]), st.integers(0, 5))
)


@given(st.integers(1, 4), st.booleans(), st.sampled_from([None, timedelta(seconds=30)]), st.booleans(), _REPORTS)
@settings(deadline=None, derandomize=True, max_examples=300)
def test_each_order_of_reports_has_a_transition_and_each_round_the_state(
    size: int, replace: bool, patience: timedelta | None, may_grow: bool, reports: list[tuple[int, str, int]]
) -> None:
    job = Job(size, 1, replace=replace, patience=patience, standby=1, timeout=timedelta(seconds=60))
    job.planner.room_may_grow = may_grow
    living = set(range(size))
    holders = set(living)
    for seconds, report, index in reports:
        job.now += seconds
        process = sorted(living)[index % len(living)] if living else 0
        if report == "removed":
            job.planner.mark_unwanted([process], job.now)
            decisions = job.decide()
        elif report == "ready":
            decisions = job.ready(process, holds_state=process in holders)
        else:
            decisions = job.lost(process) if report == "lost" else job.ended_well(process)
            living.discard(process)
        for decision in decisions:
            if isinstance(decision, Begin):
                assert holders & set(decision.processes) and living >= set(decision.processes)
                assert decision.processes[0] in holders
                holders |= set(decision.processes)
            elif isinstance(decision, Release):
                living -= set(decision.processes)
            elif isinstance(decision, Start):
                first = max(job.planner._processes) + 1 - decision.count
                living |= set(range(first, first + decision.count))
        if any(isinstance(decision, (Fail, Finish)) for decision in decisions):
            assert job.decide() == []
            break


@pytest.mark.parametrize(
    ("terms", "says"),
    [
        ({"size": 2, "min_size": 3}, "min_size=3"),
        ({"size": 2, "min_size": 0}, "min_size=0"),
        ({"size": 2, "min_size": 1, "max_size": 1}, "max_size=1 must be at least size=2"),
        ({"size": 2, "min_size": 1, "reset_limit": -1}, "reset_limit=-1"),
        ({"size": 2, "min_size": 1, "timeout": timedelta(0)}, "timeout="),
    ],
)
def test_terms_that_make_no_sense_are_refused(terms: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Terms(**terms)
