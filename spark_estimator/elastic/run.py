"""Calls a training function once in each round of the job, until it returns."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from spark_estimator.collectives import context, launcher_link, rendezvous
from spark_estimator.collectives.other_launchers import join as other_launchers
from spark_estimator.elastic.state import State
from spark_estimator.errors import (
    HorovodInternalError,
    HostsUpdatedInterrupt,
    NotElasticError,
    PeerLostError,
    ShutDownError,
)
from spark_estimator.log import logger

ValueT = TypeVar("ValueT")

#: A failure without a lost rank is an error of the program if it occurs this often after the same commit.
SAME_FAILURES = 3

_log = logger(__name__)


def run_fn(func: Callable[..., ValueT], reset: Callable[[], object], mode: str = "commit") -> Callable[..., ValueT]:
    """Makes ``func(state, *args, **kwargs)`` continue in the next round, whenever a round ends.

    A collective fails: restores the last commit. The job is about to be made of other ranks: it stays as it is. Then
    `reset` is called, `State.on_reset`, `State.sync`, and `func` once more.

    Args:
        func: the training. Its first argument is a `State`, from which it takes up its work.
        reset: leaves the round and joins the next one, as `rejoin` does; it may raise HorovodInternalError when that
            round ends before it has begun.
        mode: "commit": a loss costs the work since the last commit. "step": it costs the step in progress, and a new
            process takes the rank of the lost one; the state has to support that, as ``TorchState`` does.

    Returns:
        A function that is called like `func` and returns what that returns.

    Raises:
        HorovodInternalError: a failure that repeats itself (see `SAME_FAILURES`).
        PeerLostError: with `rejoin` in a job of a fixed size, which can't replace a rank; its cause is NotElasticError.
        ValueError: another mode.
    """
    if mode not in ("commit", "step"):
        raise ValueError(f"mode must be 'commit' or 'step'; got {mode!r}.")

    @functools.wraps(func)
    def wrapper(state: State, *args: Any, **kwargs: Any) -> ValueT:
        why: HorovodInternalError | HostsUpdatedInterrupt | None = None
        skip_sync = False
        failures: list[tuple[str, int]] = []
        if mode == "step":
            state.keep_steps()
            _keep_ranks()
        while True:
            try:
                if why is not None:
                    _note_reason(why)
                    reset()
                    state.on_reset()
                if not skip_sync:
                    state.sync()
                    _note_that_the_state_is_here()
                return func(state, *args, **kwargs)
            except HorovodInternalError as error:
                if reset is rejoin:
                    _raise_if_final(error)
                if not isinstance(error, (PeerLostError, ShutDownError)):
                    failures.append((str(error), getattr(state, "_commits", 0)))
                    if failures[-SAME_FAILURES:] == [failures[-1]] * SAME_FAILURES:
                        raise
                _log.warning("restoring the last %s: %s", mode, error)
                state.restore()
                why, skip_sync = error, False
            except HostsUpdatedInterrupt as interrupt:
                _log.info("%s", interrupt)
                why, skip_sync = interrupt, interrupt.skip_sync

    return wrapper


def rejoin() -> None:
    """Leaves the round and joins the next one: in an elastic job when the launcher has gathered it, else when all ranks
    have left this one.

    Raises:
        JobFailedError: the launcher has ended.
        HorovodInternalError: the new round has ended before it had begun.
    """
    link, former = launcher_link.link(), rendezvous.current()
    context.shutdown()
    if link is not None and former is not None:
        link.next_round(former)
    ranks = other_launchers.joined_ranks()
    if ranks is None:
        context.init()
    else:
        context.init(ranks)


def _raise_if_final(error: HorovodInternalError) -> None:
    """Raises the loss of a rank in a job of a fixed size: no other process can take its place."""
    if isinstance(error, PeerLostError) and launcher_link.link() is None:
        raise error from NotElasticError(
            "this job has a fixed number of ranks and can't continue without one: start it with `horovodrun -np N "
            "--min-np M` or with `spark_estimator.spark.run_elastic`, where M is the smallest number of ranks to "
            "continue with."
        )


def _keep_ranks() -> None:
    """Asks the launcher to assign the ranks of lost processes to new ones."""
    link = launcher_link.link()
    if link is not None:
        link.keeps_ranks = True


def _note_reason(error: Exception) -> None:
    """Stores what ended this round, for this process's next request to the launcher."""
    link = launcher_link.link()
    if link is not None:
        link.leaves_because(error)


def _note_that_the_state_is_here() -> None:
    link = launcher_link.link()
    if link is not None:
        link.holds_state = True
