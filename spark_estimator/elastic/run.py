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
from spark_estimator.log import get_logger
from spark_estimator.observe import spans

ValueT = TypeVar("ValueT")

#: A failure without a lost rank is an error of the program if it occurs this often after the same commit.
SAME_FAILURES = 3

_log = get_logger(__name__)


def run_fn(func: Callable[..., ValueT], reset: Callable[[], object], mode: str = "commit") -> Callable[..., ValueT]:
    """Make ``func(state, *args, **kwargs)`` continue in the next round, whenever a round ends.

    A collective fails: restores the last commit. The job is about to be made of other ranks: it stays as it is.
    Then `reset` is called, `State.on_reset`, `State.sync`, and `func` once more.

    Args:
        func: the training. Its first argument is a `State`, from which it takes up its work.
        reset: leaves the round and joins the next one, as `rejoin` does; it may raise HorovodInternalError when
            that round ends before it has begun.
        mode: "commit": a loss costs the work since the last commit. "step": it costs the step in progress, and a
            new process takes the rank of the lost one; the state has to support that, as ``TorchState`` does.

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
        rounds = JobRounds(state, reset, mode)
        while True:
            try:
                rounds.begin()
                return func(state, *args, **kwargs)
            except (HorovodInternalError, HostsUpdatedInterrupt) as error:
                rounds.end(error)

    return wrapper


class JobRounds:
    """The rounds of a training on one process, the first of which has been joined.

    Args:
        state: of the training.
        reset, mode: as for `run_fn`; also "checkpoint": a loss costs the work since a checkpoint in a store, and a new
            process takes the rank of the lost one.
    """

    def __init__(self, state: State, reset: Callable[[], object], mode: str) -> None:
        self._state = state
        self._reset = reset
        self._mode = mode
        self._end_reason: HorovodInternalError | HostsUpdatedInterrupt | None = None
        self._failures: list[tuple[str, int]] = []
        if mode != "commit":
            state.keep_steps()
            _keep_ranks()

    def begin(self) -> None:
        """Join the next round if one has ended; sync the state. A collective. Raises HorovodInternalError: it ends."""
        with spans.span(spans.RECOVERY):
            if self._end_reason is not None:
                _note_reason(self._end_reason)
                self._reset()
                self._state.on_reset()
            if not (isinstance(self._end_reason, HostsUpdatedInterrupt) and self._end_reason.skip_sync):
                self._state.sync()
                _note_state()
        self._end_reason = None  # its traceback keeps what the last round had in memory

    def end(self, error: HorovodInternalError | HostsUpdatedInterrupt) -> None:
        """End a round: restore the last commit, unless only the ranks change. Raises `error` if no round follows."""
        self._end_reason = error
        if isinstance(error, HostsUpdatedInterrupt):
            _log.info("%s", error)
            return
        if self._reset is rejoin:
            _raise_if_final(error)
        if not isinstance(error, (PeerLostError, ShutDownError)):
            self._failures.append((str(error), getattr(self._state, "_commits", 0)))
            if self._failures[-SAME_FAILURES:] == [self._failures[-1]] * SAME_FAILURES:
                raise error
        _log.warning("restoring the last %s: %s", self._mode, error)
        with spans.span(spans.RECOVERY):
            self._state.restore()


def rejoin() -> None:
    """Leave the round and join the next one.

    In an elastic job it begins when the launcher has gathered it, else when all ranks have left this one.

    Raises:
        JobFailedError: the launcher has ended.
        HorovodInternalError: the new round has ended before it had begun.
    """
    link, former = launcher_link.link(), rendezvous.find_current()
    context.shutdown()
    if link is not None and former is not None:
        link.await_next_round(former)
    ranks = other_launchers.find_joined_ranks()
    if ranks is None:
        context.init()
    else:
        context.init(ranks)


def _raise_if_final(error: HorovodInternalError) -> None:
    """Raise the loss of a rank in a job of a fixed size: no other process can take its place."""
    if isinstance(error, PeerLostError) and launcher_link.link() is None:
        raise error from NotElasticError(
            "this job has a fixed number of ranks and can't continue without one: start it with `horovodrun -np N "
            "--min-np M` or with `spark_estimator.spark.run_elastic`, where M is the smallest number of ranks to "
            "continue with."
        )


def _keep_ranks() -> None:
    """Ask the launcher to assign the ranks of lost processes to new ones."""
    link = launcher_link.link()
    if link is not None:
        link.keeps_ranks = True


def _note_reason(error: Exception) -> None:
    """Store what ended this round, for this process's next request to the launcher."""
    link = launcher_link.link()
    if link is not None:
        link.store_reason(error)


def _note_state() -> None:
    link = launcher_link.link()
    if link is not None:
        link.holds_state = True
