"""Recovery of a `TorchEstimator`'s training within a step, in a job that replaces lost ranks (`launch...replacing`).

Promises
--------
- The loss of a rank costs the step in progress, or the validation in progress. A new process takes the lost rank; it
  reads that rank's rows from the files, and gets all else from its peers (`torch.elastic.steps`), not from a
  checkpoint.
- The history and the model are those of a training without a loss, bit for bit. (What a lossy compression has left
  out of gradients is not among what peers keep.)
- An epoch is logged once by the process that is rank 0 at its end. After a loss, callbacks get ``on_train_begin`` and
  ``on_epoch_begin`` again on all ranks, and ``on_epoch_end`` if the loss came before all ranks had returned from it.
  What callbacks keep in their own attributes is lost with a rank.

Order of events in a round
--------------------------
1. All ranks have the state: `TorchState.sync`.
2. All ranks even out their rows, which only new processes read again (`rank_run.begin`). In the first round, before the
   first commit, the run's checkpoint is read.
3. Epochs. There is a commit before the first step of an epoch, after each step, and after an epoch with its validation,
   its checkpoint and its callbacks.

Other trainings restart from the checkpoint: see `FrameworkTraining.recovers` and `TrainSpec.keeps_file_rows`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import nn

import spark_estimator.torch as hvd
from spark_estimator.estimators.persistence.checkpoint import TrainingProgress
from spark_estimator.estimators.rank_run import KnownRun, RankRun, ReadRows
from spark_estimator.estimators.recovering_process import RecoveringProcess
from spark_estimator.estimators.torch.trainer import Trainer
from spark_estimator.estimators.train_spec import TrainResult, TrainSpec
from spark_estimator.torch.elastic.state import TorchState


class RecoverableTraining(Protocol):
    """The training that recovers: `training.Training`."""

    trainer: Trainer
    progress: TrainingProgress

    def begin(self, known: KnownRun | None, read: ReadRows) -> RankRun:
        """Its input. A collective."""

    def leaving(self, beginning: RankRun) -> frozenset[int]:
        """`TorchParts.leaving_out`. A collective."""

    def run(
        self, beginning: RankRun, leaving: frozenset[int], steps: int, commits: Commits | None
    ) -> TrainResult | None:
        """Trains to the end. A collective."""


class _Constant:
    """Is replaced and never changed, so that a commit need not copy it."""

    def __deepcopy__(self, memo: dict[int, Any]) -> _Constant:
        return self


@dataclass(frozen=True)
class BegunRun(_Constant):
    """What all ranks know since the first round began.

    Attributes:
        run: its identity and seed.
        leaving: `TorchParts.leaving_out`.
    """

    run: KnownRun
    leaving: frozenset[int]


@dataclass(frozen=True)
class EndedEpochs(_Constant):
    """The epochs that have ended.

    Attributes:
        history, best: as in `TrainingProgress`.
        ended: a callback has ended the training.
    """

    history: tuple[dict[str, Any], ...] = ()
    best: Any = field(default=None, repr=False)
    ended: bool = False


class RankSums(nn.Module):
    """The sums of an epoch as a module's buffer: a peer keeps a rank's buffers, and gives them to its successor."""

    def __init__(self, sums: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("sums", sums)


class RecoverableState(TorchState):
    """The state of a training on a fixed number of ranks."""

    def check_host_updates(self) -> None:
        """No rank joins but in the place of a lost one."""


class Commits:
    """The commits of a training. With `run_fn`, each rank has the state of the last one.

    Attributes:
        ended: a callback has ended the training.
    """

    def __init__(self, state: RecoverableState, begun: BegunRun) -> None:
        self._state = state
        self._begun = begun
        self.ended = state.epochs.ended

    def resumed(self, progress: TrainingProgress) -> None:
        """The run has resumed from its checkpoint: the next commit has the epochs of that."""
        self._note(progress, ended=False)

    def step(self, done: int) -> None:
        """`done` batches of the epoch are done."""
        self._state.begun, self._state.steps = self._begun, done
        self._state.commit()

    def epoch(self, progress: TrainingProgress, *, ended: bool) -> None:
        """An epoch is over."""
        self._note(progress, ended=ended)
        self._state.steps = 0
        self._state.commit()

    def _note(self, progress: TrainingProgress, *, ended: bool) -> None:
        self._state.epochs = EndedEpochs(tuple(progress.history), progress.best, ended)


def recovered(training: RecoverableTraining, spec: TrainSpec) -> TrainResult | None:
    """Trains in an elastic job, on as many ranks as it has at the beginning. Returns the result on rank 0."""
    trainer = training.trainer
    state = RecoverableState(
        trainer.model,
        trainer.optimizer,
        sums=RankSums(trainer.sums.sums),
        scheduler=spec.framework.scheduler,
        epochs=EndedEpochs(),
        steps=0,
        begun=None,
    )
    process = RecoveringProcess(spec)

    @hvd.elastic.run(mode="step")
    def rounds(state: RecoverableState) -> TrainResult | None:
        begun: BegunRun | None = state.begun
        training.progress.history, training.progress.best = list(state.epochs.history), state.epochs.best
        within = trainer.here() if state.steps else None
        process.joins(state.epochs.history, first=begun is None)
        beginning = training.begin(None if begun is None else begun.run, process.read)
        if begun is None:
            begun = BegunRun(beginning.known, training.leaving(beginning))
        if within is not None:
            trainer.resume_within(within)
        return training.run(beginning, begun.leaving, state.steps, Commits(state, begun))

    result: TrainResult | None = rounds(state)
    return result
