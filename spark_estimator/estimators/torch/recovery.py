"""Recovery of a `TorchEstimator`'s training within a step, in a job that replaces lost ranks (`launch...replacing`).

Promises
--------
- The loss of a rank costs the step in progress, or the validation in progress. A new process takes the lost rank; it
  reads that rank's rows from the files, and gets all else from its peers (`torch.elastic.steps`), not from a
  checkpoint.
- The history and the model are those of a training without a loss, bit for bit. (What a lossy compression has left
  out of gradients is not among what peers keep.)
- If no process replaces the lost rank in time, the others continue without it. They divide the rows of the epoch that
  no rank has trained on: none is lost and none is repeated. A batch of all ranks is smaller, and so is the learning
  rate, which is multiplied by the new number of ranks and divided by the old one. The epoch's averages count the rows
  of the lost rank. When a process joins later, the rest of the epoch is divided again. Numbers are no longer those of a
  training without a loss.
- With ``sync="local_sgd"`` and ``"diloco"`` the step is that of all ranks, at an exchange: after a loss all return to
  the last one, and repeat their own steps since then. Each rank's optimizer state is a part of what its peer keeps.
- An epoch is logged once by the process that is rank 0 at its end. After a loss, callbacks get ``on_train_begin`` and
  ``on_epoch_begin`` again on all ranks, and ``on_epoch_end`` if the loss came before all ranks had returned from it.
  What callbacks keep in their own attributes is lost with a rank.

Order of events in a round
--------------------------
1. All ranks have the state: `TorchState.sync`.
2. All ranks even out their rows, which processes read again whose rank or number of ranks is new (`rank_run.begin`). In
   the first round, before the first commit, the run's checkpoint is read.
3. Epochs. There is a commit before the first step of an epoch, after each step (or exchange), and after an epoch with
   its validation, its checkpoint and its callbacks. In the rest of an epoch that was divided again there are no
   checkpoints.

Other trainings restart from the checkpoint: see `FrameworkTraining.recovers`.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy
import torch

import spark_estimator.torch as hvd
from spark_estimator.estimators.epoch_division import Division
from spark_estimator.estimators.rank_run import KnownRun, RankRun, ReadRows
from spark_estimator.estimators.recovering_process import RecoveringProcess
from spark_estimator.estimators.torch.checkpoint import TorchForm, pack
from spark_estimator.estimators.torch.epoch_means import EpochMeans
from spark_estimator.estimators.torch.steps.recipe import Stepper
from spark_estimator.estimators.torch.trainer import Trainer
from spark_estimator.estimators.train_spec import TrainResult, TrainSpec
from spark_estimator.estimators.training_progress import TrainingProgress
from spark_estimator.torch.elastic import steps as parts_of_steps
from spark_estimator.torch.elastic.state import TorchState
from spark_estimator.torch.optimizer.separate_steps import SeparateSteps


class RecoverableTraining(Protocol):
    """The training that recovers: `training.Training`."""

    trainer: Trainer
    progress: TrainingProgress

    def begin(self, known: KnownRun | None, read: ReadRows) -> RankRun:
        """Return the training's input. A collective."""

    def find_left_out(self, rank_run: RankRun) -> frozenset[int]:
        """Return `TorchParts.leaving_out`. A collective."""

    def run(
        self,
        rank_run: RankRun,
        leaving: frozenset[int],
        steps: int,
        commits: Commits | None,
        legs: tuple[Mapping[str, Any], ...],
    ) -> TrainResult | None:
        """Train to the end. A collective."""


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
        size: its ranks at the beginning.
    """

    run: KnownRun
    leaving: frozenset[int]
    size: int


@dataclass(frozen=True)
class EndedEpochs(_Constant):
    """The epochs that have ended.

    Attributes:
        history, best, within: as in `TrainingProgress`.
        ended: a callback has ended the training.
    """

    history: tuple[dict[str, Any], ...] = ()
    best: Any = field(default=None, repr=False)
    within: tuple[dict[str, Any], ...] = ()
    ended: bool = False


class SumsOfRank:
    """The sums of an epoch: a peer keeps those of a rank for its successor, or for itself if there is none.

    See `torch.elastic.steps.HeritableContent`.
    """

    def __init__(self, means: EpochMeans) -> None:
        self._means = means

    def pack_result(self) -> bytes:
        means = self._means
        return pack(means.get_state()) if means.counted else means.sums.numpy().tobytes()

    def take(self, content: bytes) -> None:
        sums, counted = self._unpack(content)
        self._means.sums.copy_(sums)
        self._means.counted.restore(counted)

    def inherit(self, content: bytes) -> None:
        sums, counted = self._unpack(content)
        self._means.sums += sums
        self._means.counted.merge(counted)

    def _unpack(self, content: bytes) -> tuple[torch.Tensor, Any]:
        if not self._means.counted:
            return torch.from_numpy(numpy.frombuffer(content, numpy.float64).copy()), []
        state = TorchForm().unpack(content)
        return state["sums"], state["counted"]


class PartsOfRank(SumsOfRank):
    """The sums, and the state of an optimizer whose ranks step alone and of what makes its steps."""

    def __init__(self, trainer: Trainer) -> None:
        super().__init__(trainer.sums)
        self._trainer = trainer

    def pack_result(self) -> bytes:
        inner, stepper = self._trainer.optimizer.state_dict()["state"], self._trainer.stepper.state_dict()
        return parts_of_steps.pack([super().pack_result(), pack({"optimizer": inner, "stepper": stepper})])

    def take(self, content: bytes) -> None:
        sums, packed = parts_of_steps.unpack(content)
        super().take(sums)
        state = torch.load(io.BytesIO(packed), weights_only=True)
        self._trainer.optimizer.load_state_dict({**self._trainer.optimizer.state_dict(), "state": state["optimizer"]})
        self._trainer.stepper.load_state_dict(state["stepper"])

    def inherit(self, content: bytes) -> None:
        super().inherit(parts_of_steps.unpack(content)[0])


class RecoverableState(TorchState):
    """The state of a training on as many ranks as at its beginning, or on fewer.

    Args:
        sums: of this rank's rows.
        values: as of `TorchState`.
    """

    def __init__(self, sums: SumsOfRank, **values: Any) -> None:
        self._sums = sums
        super().__init__(**values)

    def rank_content(self) -> SumsOfRank:
        """Return the sums; see `TorchState`."""
        return self._sums


class Commits:
    """The commits of a training. With `run_fn`, each rank has the state of the last one.

    Attributes:
        ended: a callback has ended the training.
    """

    def __init__(self, state: RecoverableState, begun: BegunRun, division: Division, stepper: Stepper) -> None:
        self._state = state
        self._stepper = stepper
        self._begun = begun
        self._division = division
        self.ended = state.epochs.ended

    def note_resumed(self, progress: TrainingProgress) -> None:
        """Note that the run has resumed from its checkpoint: the next commit has the epochs of that."""
        self._note(progress, ended=False)

    def step(self, done: int) -> None:
        """Commit after `done` batches of the epoch, unless ranks have other parameters since an exchange."""
        if isinstance(self._state.optimizer, SeparateSteps) and not self._state.optimizer.is_common:
            return
        self._state.begun, self._state.steps, self._state.division = self._begun, done, self._division
        self._commit()

    def validate(self, progress: TrainingProgress) -> None:
        """Commit a validation within an epoch."""
        self._note(progress, ended=False)
        self._commit()

    def end_epoch(self, progress: TrainingProgress, *, ended: bool) -> None:
        """Commit the end of an epoch."""
        self._note(progress, ended=ended)
        self._division = Division((), self._division.present)
        self._state.steps, self._state.division = 0, self._division
        self._commit()

    def _commit(self) -> None:
        self._state.stepper = self._stepper.state_dict()
        self._state.commit()

    def _note(self, progress: TrainingProgress, *, ended: bool) -> None:
        self._state.epochs = EndedEpochs(tuple(progress.history), progress.best, tuple(progress.within), ended)


def train_with_recovery(training: RecoverableTraining, spec: TrainSpec) -> TrainResult | None:
    """Train in an elastic job. Return the result on rank 0."""
    trainer = training.trainer
    steps_locally = isinstance(trainer.optimizer, SeparateSteps)
    state = RecoverableState(
        PartsOfRank(trainer) if steps_locally else SumsOfRank(trainer.sums),
        model=trainer.model,
        optimizer=trainer.optimizer,
        stepper={},
        epochs=EndedEpochs(),
        steps=0,
        begun=None,
        division=None,
        rate_factor=1,
    )
    process = RecoveringProcess(spec)

    @hvd.elastic.run(mode="step")
    def run_round(state: RecoverableState) -> TrainResult | None:
        begun: BegunRun | None = state.begun
        progress, epochs = training.progress, state.epochs
        progress.history, progress.best, progress.within = list(epochs.history), epochs.best, list(epochs.within)
        last: Division | None = state.division
        within = trainer.get_rank_state() if last is not None and (state.steps or last.earlier) else None
        process.join(state.epochs.history, first=begun is None)
        rank_run = training.begin(None if begun is None else begun.run, process.read)
        if begun is None:
            begun = BegunRun(rank_run.known, training.find_left_out(rank_run), process.count_most_ranks())
        if steps_locally:  # a lost rank's copy was sent before the step moved the rates
            trainer.stepper.rates.load_state_dict(state.stepper)
        else:
            trainer.stepper.load_state_dict(state.stepper)
        trainer.take_size(state.rate_factor)
        state.rate_factor = trainer.rate_factor
        if within is not None:
            trainer.resume_within(within)
        present = rank_run.rows.make_leg(spec.batch_size, 0)
        division = Division((), present) if last is None else last.divide_again(state.steps, present)
        steps = state.steps if last is not None and last.present == present else 0
        commits = Commits(state, begun, division, trainer.stepper)
        return training.run(rank_run, begun.leaving, steps, commits, division.earlier)

    result: TrainResult | None = run_round(state)
    return result
