"""Recovery of a Lightning estimator's training within a step, in a job that replaces lost ranks (`launch...replacing`).

Promises
--------
- The loss of a rank costs the step in progress, or the validation in progress. The other ranks stay in their Trainer's
  ``fit``. A new process takes the lost rank; it reads that rank's rows from the files, and gets all else from its
  peers: what Lightning has in a checkpoint from one of them, what the lost rank alone had (`rank_content`) from the one
  that kept it.
- The history and the model are those of a training without a loss, bit for bit. (What a lossy compression has left
  out of gradients is not among what peers keep.)
- What a rank's hook ``on_train_batch_end`` draws and logs is lost if the rank is lost in that hook.
- Hooks of the step in progress, of the validation in progress and of the epoch's end, if the loss came before all ranks
  had ended it, are called again. Plain attributes of the module and of callbacks (numbers, strings, tensors, and
  collections of these) are those of the last step; other ones of callbacks are kept where ``state_dict()`` has them.
- If no process replaces the lost rank in time, the others continue without it, as in `estimators.torch.recovery`: they
  divide the rest of the epoch, and learning rates get the factor of the ranks that are left. The lost rank's rows count
  in the estimator's averages, in metrics of torchmetrics and in what was logged. Other attributes of its module and
  callbacks are lost. When a process joins later, after a step, the rest of the epoch is divided again.
- In a new process, hooks before the first step (``setup``, ``on_fit_start``, ``on_train_start``) find the other ranks
  elsewhere: collectives of the Trainer are that rank's alone there, and hooks must not call others.

Order of events in a round
--------------------------
1. All ranks agree on the commit at which to continue: `LightningCommits.sync`. A rank that has it sends the Trainer's
   checkpoint to those that lack it.
2. All ranks even out their rows, which processes read again whose rank or number of ranks is new (`rank_run.begin`).
3. A new process makes its Trainer and enters ``fit``. Before its first step it meets the others, who wait for it:
   `LightningCommits.resume`.
4. If the number of ranks is another one: `LightningCommits.divide`, which is a commit.
5. Epochs (`resumable_fit`). There is a commit after each optimizer step, after each validation, and after an epoch with
   its checkpoint and hooks.

What fails how
--------------
As in `torch.elastic.steps`, whose agreement is made between the last hook before the optimizer's step and the step. If
a rank is lost in a collective between a step and its commit (in ``on_train_batch_end``, as when `ModelCheckpoint` saves
every few steps) and no rank was before that step, all ranks fail, and the job starts again from its last checkpoint. A
loss before the first step of all begins the training once more.

Hooks of a validation and of the begin and end of an epoch may change weights: a copy from before undoes that
(`weights_copy`). If the hooks of a step do so before the optimizer's step, which the first steps show, a loss restarts
all ranks.

A module that optimizes by hand restarts all ranks: it has no single step to agree on. So do callbacks that replace
schedules or parameters, or train by themselves (`estimator._NOT_ENTERED`).
"""

from __future__ import annotations

import enum
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from spark_estimator.collectives import context
from spark_estimator.collectives.objects import allgather_object, broadcast_object
from spark_estimator.elastic import rejoin, run_fn
from spark_estimator.elastic.resumption import Facts, RecoveryState, Resumption, resumption
from spark_estimator.elastic.state import State
from spark_estimator.estimators.epoch_division import Division
from spark_estimator.estimators.lightning.callbacks import EpochSums
from spark_estimator.estimators.lightning.checkpoint import (
    live_checkpoint,
    loop_states,
    progress_of,
    restore,
    restore_optimizers,
    set_progress,
    settings_of,
    take_settings,
)
from spark_estimator.estimators.lightning.rank_content import TrainerContent, undo_step
from spark_estimator.estimators.lightning.weights_copy import OtherWeights, WeightsCopy, modules_of
from spark_estimator.estimators.persistence.checkpoint import TrainingProgress
from spark_estimator.estimators.rank_run import KnownRun
from spark_estimator.estimators.recovering_process import RecoveringProcess
from spark_estimator.estimators.torch.checkpoint import packed
from spark_estimator.estimators.train_spec import TrainResult, TrainSpec
from spark_estimator.torch.elastic.steps import StepKeeper


class FitPhase(enum.Enum):
    """Where in its epochs a Trainer is at a commit.

    BETWEEN_EPOCHS to AFTER_BATCH to BETWEEN_BATCHES, and back to AFTER_BATCH; after the last batch to BETWEEN_EPOCHS or
    OVER.
    """

    BETWEEN_EPOCHS = "the next epoch begins"
    AFTER_BATCH = "a batch has made its step; validation may be due"
    BETWEEN_BATCHES = "the next batch begins, or the epoch ends"
    OVER = "all epochs are over"


@dataclass(frozen=True)
class FitPosition:
    """Where a training is, the same on all ranks.

    Attributes:
        run: its identity and seed.
        size: its ranks at the beginning.
        division: of the present epoch.
        leaving: `TorchParts.leaving_out` of a plain module.
        history, best: of the epochs that have ended, as in `TrainingProgress`.
        phase: of the Trainer.
        loops: what they have done, by `progress_of`.
        should_stop: as the Trainer's.
        settings: by `settings_of`.
    """

    run: KnownRun
    size: int
    division: Division
    leaving: frozenset[int] = frozenset()
    history: tuple[dict[str, Any], ...] = ()
    best: Any = field(default=None, repr=False)
    phase: FitPhase = FitPhase.BETWEEN_EPOCHS
    loops: bytes = field(default=b"", repr=False)
    should_stop: bool = False
    settings: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def batches(self) -> int:
        """Of the present ranks in the present epoch that are done."""
        if self.phase in (FitPhase.BETWEEN_EPOCHS, FitPhase.OVER):
            return 0
        done: int = loop_states(self.loops)["epoch_loop.batch_progress"]["current"]["ready"]
        by_others: int = sum(leg["steps"] for leg in self.division.earlier)
        return done - by_others

    def moved(self, trainer: Any, phase: FitPhase) -> FitPosition:
        """The place where a Trainer is now."""
        return replace(
            self,
            phase=phase,
            loops=progress_of(trainer),
            should_stop=bool(trainer.should_stop),
            settings=settings_of(trainer),
        )

    def place(self, trainer: Any) -> None:
        """Moves a Trainer there."""
        set_progress(trainer, loop_states(self.loops))
        trainer.should_stop = self.should_stop
        take_settings(trainer, self.settings)


#: Trains on this process from the place of the commits, or from the beginning. Returns the result on rank 0. A
#: collective.
TrainFrom = Callable[["LightningCommits", RecoveringProcess], "TrainResult | None"]


class LightningCommits(State):
    """The commits of a training, of which all ranks continue at the last one; see the module.

    Attributes:
        position: where the training is; None: it has not begun on any rank.
        checkpoint: Lightning's, of the commit at which to continue; None on ranks that have it anyway.
    """

    def __init__(self) -> None:
        super().__init__(broadcast_object, context.rank)
        self._keeper = StepKeeper([])
        self._facts: list[Facts] = []
        self._at = Resumption(0, 0, from_full=False, spread=True)
        self._trainer: Any = None
        self._content: TrainerContent | None = None
        self._weights: WeightsCopy | None = None
        self._other_weights: OtherWeights | None = None
        self.position: FitPosition | None = None
        self.checkpoint: dict[str, Any] | None = None

    @property
    def has_begun(self) -> bool:
        """Whether this process has a commit."""
        return self._keeper.state is not RecoveryState.FRESH

    @property
    def has_stepped(self) -> bool:
        """Whether the optimizer has made a step since the last commit."""
        return self._keeper.state is RecoveryState.AGREED

    def agree(self) -> None:
        """The agreement, right before the optimizer's step. A collective.

        Raises:
            HorovodInternalError: a rank was lost, so that this one does not take the step.
        """
        if self._other_weights is not None:
            self._other_weights.step_begins()
        if self.has_begun:
            self._keeper.agree()

    def step(self, trainer: Any, *, renew: bool) -> None:
        """A batch has made its step. A collective if `renew` is true.

        Args:
            renew: peers get once more what this rank alone has, which may have changed since the agreement.

        Raises:
            HostsUpdatedInterrupt: a rank joins in the place of a lost one, before the next batch.
        """
        self._commit(self._position.moved(trainer, FitPhase.AFTER_BATCH), renew=renew)
        if context.size() < self._position.size and not trainer.fit_loop.epoch_loop.batch_progress.is_last_batch:
            super().check_host_updates()

    def validation(self, trainer: Any) -> None:
        """A validation after a batch is over. A collective."""
        self._commit(self._position.moved(trainer, FitPhase.BETWEEN_BATCHES), renew=True)

    def epoch(self, trainer: Any, progress: TrainingProgress) -> None:
        """An epoch is over. A collective."""
        phase = FitPhase.OVER if trainer.fit_loop.done else FitPhase.BETWEEN_EPOCHS
        position = replace(
            self._position.moved(trainer, phase),
            division=Division((), self._position.division.present),
            history=tuple(progress.history),
            best=progress.best,
        )
        self._commit(position, renew=True)

    def divide(self, present: Mapping[str, Any]) -> FitPosition:
        """Divides the rest of the epoch among the ranks of a new round. Returns the place. A collective.

        Args:
            present: `Division.present`.
        """
        position = self._position
        division = position.division.next(position.batches, present)
        if division != position.division:
            self._commit(replace(position, division=division), renew=True)
        return self._position

    @property
    def _position(self) -> FitPosition:
        assert self.position is not None
        return self.position

    def _commit(self, position: FitPosition, *, renew: bool) -> None:
        self.position = position
        self.commit()
        if renew:
            self._keeper.renew()

    def save(self) -> None:
        """See `State.save`."""
        self._keeper.committed()
        self._weights = None
        if self._other_weights is not None:
            self._other_weights.step_is_over()

    def keep_weights(self) -> None:
        """Hooks follow that may change weights, until the next commit: a loss in them undoes that."""
        self._weights = WeightsCopy(self._trainer)

    def batches_begin(self) -> None:
        """The hooks at the begin of an epoch have run."""
        if self._other_weights is None:
            self._other_weights = OtherWeights(self._trainer)

    def restore(self) -> None:
        """A rank was lost: discards the step in progress.

        Raises:
            RuntimeError: that step has changed weights which no optimizer has.
        """
        if self._other_weights is not None and self._other_weights.have_moved and not self.has_stepped:
            raise RuntimeError(
                "this training changes weights that no optimizer has before the optimizer's step, such as those of a "
                "momentum encoder, so that a step cannot be discarded. It can continue from a checkpoint. Change them "
                "in on_train_batch_end, and a lost rank costs one step."
            )
        if self._trainer is not None and self.has_begun:
            undo_step(self._trainer)
            if self._weights is not None and not self.has_stepped:
                self._weights.restore()
            self._weights = None
            self._keeper.lost()

    def keep_steps(self) -> None:
        """Each of its commits is of a step."""

    def check_host_updates(self) -> None:
        """Ranks join at no other commit than `step`."""

    def sync(self) -> None:
        """Agrees on the commit at which to continue: sets `position` and `checkpoint`. A collective.

        Raises:
            RuntimeError: no rank has a whole commit.
        """
        if not self.has_begun:
            self.position = None
        mine = self._keeper.facts()
        self._facts = allgather_object(mine, name="elastic.step.facts")
        self._at = resumption(self._facts)
        if any(each.state is RecoveryState.LOST_AGREED for each in self._facts) and not self._is_whole(self._at.root):
            raise RuntimeError(
                "a rank was lost in a collective after the optimizer's step, as of a hook on_train_batch_end: no rank "
                "has parameters and attributes that belong together. The training can continue from a checkpoint."
            )
        self.checkpoint = None
        if not self._at.spread:
            return
        sent = None
        if context.rank() == self._at.root and self.position is not None:
            sent = self.position, packed(live_checkpoint(self._trainer))
        received = broadcast_object(sent, self._at.root)
        if received is not None and not (mine.is_whole and mine.step == self._at.step):
            self.position, content = received
            self.checkpoint = torch.load(io.BytesIO(content), map_location="cpu", weights_only=False)

    def _is_whole(self, rank: int) -> bool:
        return self._facts[rank].is_whole

    def take_checkpoint(self) -> None:
        """Restores `checkpoint` on a rank that was in the round before, and has another step."""
        if self.checkpoint is not None:
            self._keeper.receives(self._at)
            restore(self._trainer, self._trainer.lightning_module, self.checkpoint, None)
            restore_optimizers(self._trainer, self.checkpoint)
            self.checkpoint = None

    def resume(self, trainer: Any, flavour: str, watch: EpochSums, first: FitPosition) -> FitPosition:
        """Meets the other ranks before a Trainer's next step, and gives it the place of the commit. A collective.

        Args:
            trainer: in its ``fit``.
            flavour: the package that it comes from.
            watch: its sums.
            first: the place where the training begins, if it does here.

        Returns:
            The place.
        """
        if self._trainer is not trainer:
            self._trainer = trainer
            self._content = TrainerContent(trainer, trainer.lightning_module, flavour, watch)
            self._keeper.models, self._keeper.content = modules_of(trainer), self._content
        if self.position is None:
            self.position = first
        # A rank that has the commit has returned to its schedules; on others they came with the checkpoint, while the
        # content is of the agreement before the step.
        assert self._content is not None
        self._content.takes_schedules = False
        try:
            self._keeper.resume(self._facts, self._at)
            self._share_content()
        finally:
            self._content.takes_schedules = True
        self.checkpoint = None
        self.position.place(trainer)
        return self.position

    @property
    def has_other_ranks(self) -> bool:
        """Whether this round has another number of ranks than the one before."""
        return any(each.size not in (-1, len(self._facts)) for each in self._facts)

    def _share_content(self) -> None:
        """Gives ranks that join what the module and callbacks of another rank have. A collective."""
        joins = [each.rank < 0 for each in self._facts]
        if not self.has_other_ranks or not any(joins):
            return
        assert self._content is not None
        rank = context.rank()
        content = broadcast_object(self._content.packed() if rank == self._at.root else None, self._at.root)
        if joins[rank]:
            self._content.enter(content)


def recovered(train_from: TrainFrom, spec: TrainSpec) -> TrainResult | None:
    """Trains in an elastic job. Returns the result on rank 0."""
    process = RecoveringProcess(spec)

    def rounds(commits: LightningCommits) -> TrainResult | None:
        position = commits.position
        process.joins([] if position is None else position.history, first=position is None)
        return train_from(commits, process)

    return run_fn(rounds, rejoin, "step")(LightningCommits())
