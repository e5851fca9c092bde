"""Keeps the process group of a DDP model's reducer until the reducer is destroyed, so that no rank hangs there."""

from __future__ import annotations

import functools
import weakref
from typing import Any

from torch._C._distributed_c10d import ProcessGroup, Reducer

_MARK = "_spark_estimator_keeps_groups"


def keep_groups_of_reducers() -> None:
    """Make each reducer's process group outlive it. Idempotent.

    A reducer is destroyed while its thread holds Python's global lock. If the reducer has the last reference to a
    group of gloo's, that group's destructor then waits for gloo's threads; and these wait for the lock where they
    release the tensors of a collective that has just ended. So a program that calls ``destroy_process_group()``
    soon after a collective can hang when it drops its model, with any launcher. With a reference from Python,
    which releases the lock, the group is destroyed after the reducer.
    """
    original = Reducer.__init__
    if hasattr(original, _MARK):
        return

    @functools.wraps(original)
    def initialize(self: Reducer, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        # A group written in Python can refer to the reducer, and its destructor waits for no thread.
        groups = [value for value in (*args, *kwargs.values()) if type(value) is ProcessGroup]
        if groups:
            weakref.finalize(self, groups.clear).atexit = False

    setattr(initialize, _MARK, True)
    Reducer.__init__ = initialize  # type: ignore[method-assign]
