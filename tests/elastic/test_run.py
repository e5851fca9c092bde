"""The loop around an elastic training, in one process: restore, reset, sync, and the errors that it raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from spark_estimator.collectives import context
from spark_estimator.elastic import State, run_fn
from spark_estimator.elastic.run import SAME_FAILURES, rejoin
from spark_estimator.errors import (
    HorovodInternalError,
    HostsUpdatedInterrupt,
    MismatchError,
    NotElasticError,
    PeerLostError,
)


class Noting(State):
    """Notes what is called, in order."""

    def __init__(self) -> None:
        super().__init__(lambda value: value, lambda: 0)
        self.calls: list[str] = []

    def save(self) -> None:
        self.calls.append("save")

    def restore(self) -> None:
        self.calls.append("restore")

    def sync(self) -> None:
        self.calls.append("sync")

    def reset(self) -> None:
        self.calls.append("state.reset")


def run_with(*ends: Exception | str) -> tuple[Any, Noting]:
    """Runs a training that ends so, one round after another."""
    state = Noting()
    state.register_reset_callbacks([lambda: state.calls.append("callback")])
    coming = iter(ends)

    def train(received: State, word: str, *, other: int) -> str:
        assert received is state and (word, other) == ("w", 1)
        state.calls.append("train")
        end = next(coming)
        if isinstance(end, Exception):
            raise end
        return end

    wrapped: Callable[..., str] = run_fn(train, lambda: state.calls.append("reset"))
    assert wrapped.__name__ == "train"
    return wrapped(state, "w", other=1), state


def test_a_training_that_nothing_happens_to() -> None:
    value, state = run_with("done")
    assert value == "done" and state.calls == ["sync", "train"]


@pytest.mark.parametrize("error", [HorovodInternalError, PeerLostError])
def test_a_lost_rank_restores_before_the_reset_and_calls_back_before_the_sync(error: type[Exception]) -> None:
    value, state = run_with(error("lost"), "done")
    again = ["restore", "reset", "state.reset", "callback", "sync", "train"]
    assert value == "done" and state.calls == ["sync", "train", *again]


def test_an_interrupt_keeps_the_state() -> None:
    _, state = run_with(HostsUpdatedInterrupt(), "done")
    assert state.calls == ["sync", "train", "reset", "state.reset", "callback", "sync", "train"]
    _, state = run_with(HostsUpdatedInterrupt(skip_sync=True), HorovodInternalError("x"), "done")
    first, second = ["reset", "state.reset", "callback", "train"], ["restore", "reset", "state.reset", "callback"]
    assert state.calls == ["sync", "train", *first, *second, "sync", "train"]


def test_any_other_exception_is_the_program_s_own() -> None:
    with pytest.raises(KeyError):
        run_with(KeyError("x"))


def test_a_round_that_fails_before_it_has_begun_leads_to_another() -> None:
    state = Noting()
    ends = iter([PeerLostError("somebody did not come"), None])

    def reset() -> None:
        state.calls.append("reset")
        error = next(ends)
        if error is not None:
            raise error

    first = [PeerLostError("lost")]

    def train(_state: State) -> int:
        if first:
            raise first.pop()
        return 5

    assert run_fn(train, reset)(state) == 5
    assert state.calls == ["sync", "restore", "reset", "restore", "reset", "state.reset", "sync"]


def test_a_contradiction_that_repeats_itself_is_raised() -> None:
    with pytest.raises(MismatchError, match="shapes"):
        run_with(*[MismatchError("shapes differ")] * SAME_FAILURES)
    value, _ = run_with(*[PeerLostError("lost")] * 5, "done")
    assert value == "done", "ranks may be lost as often as the launcher allows"


def test_a_rank_lost_in_a_job_that_is_not_elastic_is_raised(caplog: pytest.LogCaptureFixture) -> None:
    state = Noting()

    def train(_state: State) -> None:
        raise PeerLostError("rank 1 is lost")

    with pytest.raises(PeerLostError, match="rank 1 is lost") as caught:
        run_fn(train, rejoin)(state)
    assert isinstance(caught.value.__cause__, NotElasticError) and "--min-np" in str(caught.value.__cause__)
    assert state.calls == ["sync"] and "restoring" not in caplog.text


def test_one_process_without_a_launcher_joins_again() -> None:
    state, failures = Noting(), [HorovodInternalError("first"), HorovodInternalError("second")]
    memberships = []

    def train(_state: State) -> int:
        memberships.append(context.engine())
        if failures:
            raise failures.pop()
        return context.size()

    context.init()
    try:
        assert run_fn(train, rejoin)(state) == 1
    finally:
        context.shutdown()
    assert len(set(map(id, memberships))) == 3
    assert state.calls == ["sync", *["restore", "state.reset", "sync"] * 2]


def test_a_failure_that_repeats_itself_ends_one_process() -> None:
    def train(_state: State) -> None:
        raise HorovodInternalError("always")

    context.init()
    try:
        with pytest.raises(HorovodInternalError, match="always"):
            run_fn(train, rejoin)(Noting())
    finally:
        context.shutdown()
