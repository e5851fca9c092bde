"""Trains again from the last checkpoint when an elastic job has lost a rank, in processes that are there already.

For trainings that do not recover within a step: those of Lightning and Keras.

Promises
--------
- The loss of a rank costs what was done since the last checkpoint; without a store, the training begins again. The
  processes that are left stay, with their modules and rows. A process on standby, or a new one, takes the lost rank.
- On as many ranks as before, the history and the model are those of a training without a loss, bit for bit, as far as
  checkpoints hold what changes them.
- If no process replaces the lost rank in time, the others continue without it, at the learning rate of their number. An
  epoch within which the checkpoint was taken begins again, because its rows are distributed differently. A process that
  comes later joins after an epoch whose checkpoint is written.

Order of events in a round
--------------------------
1. The ranks tell each other how far they were (`LostPlace`).
2. Each process takes the model, callbacks and other objects as they were when the training began: it has a pickled copy
   of `TrainSpec.framework`, in host memory.
3. The training runs as if its job had been started again: it reads the checkpoint (`rank_run.begin`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import cloudpickle

from spark_estimator.collectives import context, launcher_link
from spark_estimator.collectives.objects import allgather_object, broadcast_object
from spark_estimator.data.rank.spool import Spool
from spark_estimator.elastic.run import JobRounds, rejoin
from spark_estimator.elastic.state import State
from spark_estimator.errors import HorovodInternalError, HostsUpdatedInterrupt
from spark_estimator.estimators.persistence.checkpoint import Saver
from spark_estimator.estimators.persistence.resumed_run import LostPlace
from spark_estimator.estimators.recovering_process import RecoveringProcess
from spark_estimator.estimators.rows.row_source import read_rank_rows
from spark_estimator.estimators.train_spec import TrainResult, TrainSpec


class _Stored(State):
    """The state of a training that is in a store: nothing of it is kept in memory."""

    def __init__(self) -> None:
        super().__init__(broadcast_object, context.rank)

    def save(self) -> None:
        """See `State.save`."""

    def restore(self) -> None:
        """See `State.restore`."""

    def sync(self) -> None:
        """See `State.sync`."""

    def keep_steps(self) -> None:
        """Do nothing: new processes take the ranks of lost ones."""


@dataclass(frozen=True)
class _Place:
    """How far a process is: epochs that have ended, and steps of the next."""

    epochs: int = 0
    steps: int = 0


class Round:
    """One start of a training on one process, in a job that may lose ranks or in another.

    Attributes:
        lost: where the training was when a rank was lost; None: none was.

    Args:
        process: None: the job has a fixed number of ranks.
    """

    def __init__(self, spec: TrainSpec, process: RecoveringProcess | None = None, state: State | None = None) -> None:
        self._spec = spec
        self._process = process
        self._state = state
        self._place = _Place()
        self.lost: LostPlace | None = None

    def read(self, spec: TrainSpec) -> tuple[Spool, Spool]:
        """Return what `read_rank_rows` does."""
        return read_rank_rows(spec) if self._process is None else self._process.read(spec)

    def reach(self, epochs: int, steps: int = 0) -> None:
        """Note how far the training is."""
        self._place = _Place(epochs, steps)

    def take_loss(self, earlier: Round | None) -> None:
        """Learn where the ranks were in a round that has ended with a loss. A collective.

        Args:
            earlier: that round of this process; None: it was in none, or no rank was lost.
        """
        places = allgather_object(None if earlier is None else earlier._place, name="places of ranks")
        progress = [place for place in places if place is not None]
        if progress:
            last = max(progress, key=lambda place: (place.epochs, place.steps))
            self.lost = LostPlace(last.epochs, last.steps)

    def let_join(self, saver: Saver) -> None:
        """Let a process join in the place of a lost one, or of one that has to leave, after an epoch. A collective.

        Raises:
            HostsUpdatedInterrupt: on all ranks: one is there.
        """
        if self._process is None or self._state is None or self._spec.checkpoint_path is None:
            return
        if self._spec.heeds_warnings or context.size() < self._process.count_most_ranks():
            saver.wait()  # the others wait for rank 0, which writes
            self._state.check_host_updates()


def train_in_rounds(spec: TrainSpec, train: Callable[[TrainSpec, Round], TrainResult | None]) -> TrainResult | None:
    """Call `train`, and once more after each loss of a rank in an elastic job. Return the result on rank 0.

    Args:
        train: begins the training or continues it from its checkpoint; must not change what `spec` has besides
            ``framework``.
    """
    if launcher_link.link() is None:
        return train(spec, Round(spec))
    framework = cloudpickle.dumps(spec.framework)
    state, process = _Stored(), RecoveringProcess(spec)
    rounds = JobRounds(state, rejoin, "checkpoint")
    broken: Round | None = None
    while True:
        present = Round(spec, process, state)
        try:
            rounds.begin()
            present.take_loss(broken)
            broken = present
            return train(replace(spec, framework=cloudpickle.loads(framework)), present)
        except (HorovodInternalError, HostsUpdatedInterrupt) as error:
            rounds.end(error)
            if isinstance(error, HostsUpdatedInterrupt):
                broken = None
