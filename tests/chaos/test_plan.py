from __future__ import annotations

import itertools

from chaos.plan import HARMLESS, LINKS, SILENT, Kind, Launcher, Run, plan

RUNS = [plan("a seed", number) for number in range(600)]


def test_a_run_depends_on_its_seed_and_number_only() -> None:
    assert plan("a seed", 17) == RUNS[17]
    assert plan("another seed", 17) != RUNS[17]


def test_a_run_travels_as_text() -> None:
    for run in RUNS[:50]:
        assert Run.from_json(run.to_json()) == run


def test_the_command_repeats_the_run() -> None:
    assert RUNS[17].command == "make chaos SEED='a seed' RUN=17"


def test_every_launcher_and_fault_occurs() -> None:
    assert {run.launcher for run in RUNS} == set(Launcher)
    assert {fault.kind for run in RUNS for fault in run.faults} == set(Kind)
    assert {len(run.faults) for run in RUNS} == {0, 1, 2, 3}


def test_faults_happen_at_every_moment_of_a_job() -> None:
    moments = {
        "before" if fault.step < 0 else "after" if fault.step == run.steps else "within"
        for run in RUNS
        for fault in run.faults
    }
    assert moments == {"before", "within", "after"}


def test_no_plan_asks_for_what_cannot_be_judged() -> None:
    for run, fault in itertools.chain.from_iterable(((run, fault) for fault in run.faults) for run in RUNS):
        assert 0 <= fault.rank < run.size
        if fault.kind in LINKS:
            assert run.launcher is Launcher.LINKS and fault.rank > 0, run
        if fault.kind is Kind.CORRUPT:
            assert run.encrypted, run  # else a bit of a tensor changes without any error
        if fault.kind is Kind.RETURN:
            assert not run.launcher.is_elastic, run


def test_a_rank_is_left_that_misses_the_silent_ones() -> None:
    for run in RUNS:
        assert len({fault.rank for fault in run.faults if fault.kind in SILENT}) < run.size


def test_some_runs_must_end_well() -> None:
    harmless = [run for run in RUNS if all(fault.kind in HARMLESS for fault in run.faults)]
    assert len(RUNS) / 8 < len(harmless) < len(RUNS) / 2
