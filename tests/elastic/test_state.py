"""States: commit, restore, sync, and the interrupt when the set of hosts changes."""

from __future__ import annotations

from typing import Any

import pytest

from spark_estimator.elastic import HostUpdateResult, ObjectState
from spark_estimator.errors import (
    HostsUpdatedInterrupt,
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
