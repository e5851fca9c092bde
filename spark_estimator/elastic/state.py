"""The state that a training keeps when a rank is lost: saved and restored in memory, copied from rank 0."""

from __future__ import annotations

import copy
import enum
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from spark_estimator.collectives import launcher_link
from spark_estimator.errors import HostsUpdatedInterrupt


class HostUpdateResult(enum.IntFlag):
    """The kind of change of the available hosts. Horovod's names."""

    no_update = 0
    removed = 1
    added = 2
    mixed = removed | added


class State:
    """The base of all states; `ObjectState` is one, and users may derive their own.

    Args:
        bcast_object: ``bcast_object(obj)`` gives rank 0's `obj` on every rank.
        get_rank: gives this process's rank.
    """

    def __init__(self, bcast_object: Callable[[Any], Any], get_rank: Callable[[], int]) -> None:
        self._bcast_object = bcast_object
        self._rank = get_rank
        self._update = HostUpdateResult.no_update
        self._reset_callbacks: list[Callable[[], object]] = []
        self._commits = 0

    def register_reset_callbacks(self, callbacks: Sequence[Callable[[], object]]) -> None:
        """Have these called in each later round, when ``size()`` and ``rank()`` are new, before the state is synced.

        A process that has just joined does not call them: they must run no collectives.
        """
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Begin a new round on a process that was in the one before."""
        self._update = HostUpdateResult.no_update
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Note that other ranks are about to form the job; the next `check_host_updates` acts on rank 0's note.

        Args:
            timestamp: when, in seconds; of no consequence here.
            update_res: a `HostUpdateResult`.
        """
        self._update |= HostUpdateResult(update_res)

    def commit(self) -> None:
        """Save the state, then look for changes. All ranks call it at the same step.

        It costs a copy of the state and a message: call it as often as the work in between is worth more than that.

        Raises:
            HostsUpdatedInterrupt: see `check_host_updates`.
        """
        self.save()
        self._commits += 1
        link = launcher_link.link()
        if link is not None:
            link.commits += 1
        self.check_host_updates()

    def keep_steps(self) -> None:
        """Prepare the state for ``mode="step"``.

        Raises:
            TypeError: states of this class return to the last commit.
        """
        raise TypeError(f'{type(self).__name__} does not support mode="step": use TorchState, or commit often.')

    def check_host_updates(self) -> None:
        """Let waiting ranks join and others leave. All ranks call it at the same step.

        Raises:
            HostsUpdatedInterrupt: on all ranks, if the job's ranks are about to change.
        """
        link = launcher_link.link()
        if link is not None and link.take_announcement():
            self.on_hosts_updated(time.time(), HostUpdateResult.added)
        # Ranks receive the notice at different times: rank 0's knowledge counts, so that all leave the round at the
        # same step.
        update = HostUpdateResult(self._bcast_object(int(self._update)))
        if update != HostUpdateResult.no_update:
            self._update = HostUpdateResult.no_update
            raise HostsUpdatedInterrupt(skip_sync=update == HostUpdateResult.removed)

    def save(self) -> None:
        """Keep a copy of the state in this process's memory."""
        raise NotImplementedError

    def restore(self) -> None:
        """Restore the copy."""
        raise NotImplementedError

    def sync(self) -> None:
        """Take over rank 0's state, as it is now, and save it. Collective."""
        raise NotImplementedError

    def reset(self) -> None:
        """Prepare a new round, before the callbacks; for subclasses."""


class ObjectState(State):
    """Plain Python objects, as attributes with the names of the keyword arguments.

    Args:
        bcast_object, get_rank: as for `State`.
        kwargs: the attributes, with their first values. They must be small enough to be pickled and copied at each
            commit.

    Raises:
        ValueError: a name is used by the state itself.
    """

    if TYPE_CHECKING:  # the attributes are the user's

        def __getattr__(self, name: str) -> Any: ...
        def __setattr__(self, name: str, value: Any) -> None: ...

    def __init__(self, bcast_object: Callable[[Any], Any], get_rank: Callable[[], int], **kwargs: Any) -> None:
        for name in kwargs:
            if name.startswith("_") or hasattr(type(self), name):
                raise ValueError(
                    f"a state can't have an attribute {name!r}: {type(self).__name__} already has that name."
                )
        super().__init__(bcast_object, get_rank)
        self._names = list(kwargs)
        for name, value in kwargs.items():
            setattr(self, name, value)
        self._saved_state: dict[str, Any] = copy.deepcopy(kwargs)

    def save(self) -> None:
        """Copy all attributes deeply."""
        self._saved_state = copy.deepcopy({name: getattr(self, name) for name in self._names})

    def restore(self) -> None:
        """Set all attributes to copies of what was saved last."""
        for name, value in copy.deepcopy(self._saved_state).items():
            setattr(self, name, value)

    def sync(self) -> None:
        """Take over rank 0's attributes and save them. Collective."""
        received = self._bcast_object({name: getattr(self, name) for name in self._names})
        for name, value in received.items():
            setattr(self, name, value)
        self.save()
