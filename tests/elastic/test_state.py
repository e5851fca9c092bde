"""States and the loop around a training, in one process: what is kept, what goes back, what is raised."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from spark_estimator.collectives.launcher_link import silent_ranks
from spark_estimator.elastic import HostUpdateResult, ObjectState, State, run_fn
from spark_estimator.elastic.run import SAME_FAILURES, rejoin
from spark_estimator.errors import (
    HorovodInternalError,
    HostsUpdatedInterrupt,
    MismatchError,
    NotElasticError,
    PeerLostError,
)


def alone(**values: Any) -> Any:
    """A state of rank 0."""
    return ObjectState(lambda value: value, lambda: 0, **values)


def test_restore_goes_back_to_the_last_save_again_and_again() -> None:
    state = alone(epoch=0, losses=[1])
    state.epoch, state.losses = 5, [1, 2]
    state.commit()
    for _ in range(2):
        state.epoch = 6
        state.losses.append(3)
        state.restore()
        assert (state.epoch, state.losses) == (5, [1, 2])


def test_before_any_save_restore_goes_back_to_the_start() -> None:
    losses = [1]
    state = alone(losses=losses)
    losses.append(2)
    state.restore()
    assert state.losses == [1]


def test_sync_takes_over_the_present_values_and_saves_them() -> None:
    received = {"epoch": 7}
    state: Any = ObjectState(lambda _value: received, lambda: 1, epoch=0)
    state.sync()
    state.epoch = 8
    state.restore()
    assert state.epoch == 7
    sent: list[Any] = []
    state = ObjectState(lambda value: sent.append(value) or value, lambda: 0, epoch=0)
    state.epoch = 3  # not committed: an interrupt keeps it
    state.sync()
    assert sent == [{"epoch": 3}] and state.epoch == 3


@pytest.mark.parametrize("name", ["commit", "_saved_state", "sync"])
def test_a_name_that_the_state_needs_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        alone(**{name: 1})


def test_changes_interrupt_at_the_next_commit_once() -> None:
    state = alone(epoch=0)
    state.commit()
    state.on_hosts_updated(1.0, HostUpdateResult.added)
    state.epoch = 4
    with pytest.raises(HostsUpdatedInterrupt) as caught:
        state.commit()
    assert not caught.value.skip_sync
    state.restore()
    assert state.epoch == 4, "what is committed is saved first"
    state.commit()
    state.on_hosts_updated(2.0, HostUpdateResult.removed)
    with pytest.raises(HostsUpdatedInterrupt) as caught:
        state.check_host_updates()
    assert caught.value.skip_sync
    state.on_hosts_updated(3.0, HostUpdateResult.removed)
    state.on_hosts_updated(3.0, HostUpdateResult.added)
    with pytest.raises(HostsUpdatedInterrupt) as caught:
        state.check_host_updates()
    assert not caught.value.skip_sync


def test_rank_0_s_word_on_changes_counts() -> None:
    state = ObjectState(lambda _value: int(HostUpdateResult.added), lambda: 1)
    with pytest.raises(HostsUpdatedInterrupt):
        state.check_host_updates()
    state = ObjectState(lambda _value: 0, lambda: 1)
    state.on_hosts_updated(1.0, HostUpdateResult.added)
    state.check_host_updates()


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

    def train(given: State, word: str, *, other: int) -> str:
        assert given is state and (word, other) == ("w", 1)
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


def test_in_a_job_that_is_not_elastic_the_failure_itself_is_raised() -> None:
    def train(_state: State) -> None:
        raise PeerLostError("rank 1 is lost")

    with pytest.raises(PeerLostError, match="rank 1 is lost") as caught:
        run_fn(train, rejoin)(Noting())
    assert isinstance(caught.value.__cause__, NotElasticError) and "--min-np" in str(caught.value.__cause__)


def test_who_was_found_silent_is_read_from_the_error() -> None:
    frozen = (
        "allreduce 'x' failed: rank 1 on vm (pid 5903) is lost: it has given no sign of life for 6.0 s (its process "
        "is frozen, or its machine or the network to it is gone) (told by rank 2)"
    )
    assert silent_ranks(frozen) == (1,)
    assert silent_ranks("rank 1 on vm (pid 5) is lost: its connection broke") == ()
    absent = (
        "init() on rank 0 (host vm, pid 1, address 127.0.0.1:1): rank 1 (host vm, started as pid 2, address "
        "127.0.0.1:2), rank 3 (host vm, started as pid 4, address 127.0.0.1:3) did not connect within 30 seconds. "
        "Look at what became of it"
    )
    assert silent_ranks(absent) == (1, 3)


def test_the_engine_and_init_still_speak_so() -> None:
    """The sentences above are made elsewhere; this holds them to it."""
    from pathlib import Path

    from spark_estimator.collectives.connection import RankGroup, absent_error
    from spark_estimator.collectives.rendezvous import local_rendezvous
    from spark_estimator.env import Settings

    pairs = local_rendezvous(3)
    for _, endpoint in pairs:
        endpoint.close()
    told = absent_error(pairs[1][0], RankGroup.job(3), [0, 2], "did not connect", Settings())
    assert silent_ranks(str(told)) == (0, 2)
    engine = Path(__file__).parents[2] / "native/engine/engine_peers.cc"
    assert '" is lost: it has given no sign of life for "' in engine.read_text()
