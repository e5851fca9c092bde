"""Runs a Trainer's epochs so that they can be entered at any batch, and continue after the loss of a rank.

It replaces what the Trainer's loop over epochs calls for each epoch, on the Trainer's own object; the loop over batches
is Lightning's, called batch by batch.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from spark_estimator.elastic.run import JobRounds, rejoin
from spark_estimator.errors import HorovodInternalError, HostsUpdatedInterrupt
from spark_estimator.estimators.lightning.callbacks import EpochSums
from spark_estimator.estimators.lightning.checkpoint import take_loaders
from spark_estimator.estimators.lightning.recovery import FitPhase, FitPosition, LightningCommits


class DividedRows(Protocol):
    """This rank's rows, which change with the number of ranks."""

    def read_again(self) -> None:
        """Evens out the rows in a new round. A collective."""

    def leg(self) -> dict[str, Any]:
        """`Division.present`."""

    def take_legs(self, epoch: int, legs: Sequence[Mapping[str, Any]]) -> None:
        """See `RowLoader.take_legs`."""

    def lengths(self) -> tuple[int, int]:
        """The numbers of batches of training and of validation."""


class ResumableFit:
    """The epochs of one Trainer on this rank.

    Args:
        trainer: whose ``fit`` is about to begin its first epoch.
        flavour: the package that it comes from.
        watch: the estimator's sums.
        commits: of the training.
        first: the place where the training begins, if it does.
        rows: of this rank.
    """

    def __init__(
        self,
        trainer: Any,
        flavour: str,
        watch: EpochSums,
        commits: LightningCommits,
        first: FitPosition,
        rows: DividedRows,
    ) -> None:
        self._trainer = trainer
        self._flavour = flavour
        self._watch = watch
        self._commits = commits
        self._first = first
        self._rows = rows
        self._lengths = rows.lengths()  # for which Lightning has its loaders
        self._rounds = JobRounds(commits, rejoin, "step")
        self._has_met = False
        module = trainer.lightning_module
        callback: Any = importlib.import_module(flavour).Callback
        # Their hooks may change what a rank alone has after the agreement of the step.
        self._renews = any(
            type(each).on_train_batch_end is not callback.on_train_batch_end for each in trainer.callbacks
        ) or any(
            not str(getattr(type(module), hook).__module__).startswith((f"{flavour}.", "spark_estimator."))
            for hook in ("on_train_batch_end", "optimizer_step", "lr_scheduler_step")
        )
        loop, plugin = trainer.fit_loop, trainer.precision_plugin
        self._begin_epoch, self._end_epoch, self._end = loop.on_advance_start, loop.on_advance_end, loop.on_run_end
        validation = loop.epoch_loop.val_loop
        validate = validation.run

        def kept(*args: Any, **kwargs: Any) -> Any:
            commits.keep_weights()
            return validate(*args, **kwargs)

        validation.__dict__["run"] = kept
        loop.__dict__["on_advance_start"] = _nothing
        loop.__dict__["advance"] = self._advance
        loop.__dict__["on_advance_end"] = _nothing
        loop.__dict__["on_run_end"] = self._run_end
        after_closure = plugin._after_closure

        def agreed(*args: Any, **kwargs: Any) -> None:
            after_closure(*args, **kwargs)
            commits.agree()

        plugin.__dict__["_after_closure"] = agreed

        def stepped(*args: Any, **kwargs: Any) -> None:
            if not commits.has_stepped:
                raise RuntimeError(_no_agreement(trainer))

        for optimizer in trainer.optimizers:
            optimizer.register_step_post_hook(stepped)

    def _advance(self) -> None:
        """One epoch, or the rest of one; after a loss also none."""
        while True:
            try:
                if not self._has_met and self._meet().phase is FitPhase.OVER:
                    return
                self._run_epoch()
                return
            except (HorovodInternalError, HostsUpdatedInterrupt) as error:
                if not self._commits.has_begun:
                    raise
                if self._recover(error).phase in (FitPhase.BETWEEN_EPOCHS, FitPhase.OVER):
                    return

    def _run_end(self) -> None:
        """The hooks at the end. After a loss in them all ranks call them again, each by itself."""
        try:
            self._end()
        except HorovodInternalError as error:
            self._recover(error)
            self._end()

    def _meet(self) -> FitPosition:
        is_new = self._trainer.strategy.is_apart
        position = self._commits.resume(self._trainer, self._flavour, self._watch, self._first)
        if is_new and position.phase is not FitPhase.OVER:
            take_loaders(self._trainer, position.settings)
        self._has_met = True
        self._trainer.strategy.is_apart = position.phase is FitPhase.OVER
        if self._commits.has_other_ranks:
            self._trainer.strategy.take_ranks()
        if position.phase is not FitPhase.OVER:
            if self._commits.has_other_ranks:
                position = self._commits.divide(self._rows.leg())
            self._rows.take_legs(int(self._trainer.current_epoch), position.division.earlier)
            self._take_lengths()
        return position

    def _take_lengths(self) -> None:
        """Lightning's loops get loaders again whose numbers of batches have changed; they are the same on all ranks."""
        loop, strategy = self._trainer.fit_loop, self._trainer.strategy
        validation = loop.epoch_loop.val_loop
        before, self._lengths = self._lengths, self._rows.lengths()
        reloaded = loop._last_train_dl_reload_epoch, validation._last_val_dl_reload_epoch
        apart, strategy.is_apart = strategy.is_apart, True
        try:
            if loop._combined_loader is not None and self._lengths[0] != before[0]:
                loop._combined_loader = None
                loop.setup_data()
            if validation._combined_loader is not None and self._lengths[1] != before[1]:
                self._trainer.validating = True
                validation._combined_loader = None
                validation.setup_data()
                self._trainer.training = True
        finally:
            strategy.is_apart = apart
            loop._last_train_dl_reload_epoch, validation._last_val_dl_reload_epoch = reloaded

    def _recover(self, error: HorovodInternalError | HostsUpdatedInterrupt) -> FitPosition:
        """Joins the next round. Returns the place at which to continue."""
        while True:
            try:
                self._rounds.ended(error)
                self._rounds.begin()
                self._rows.read_again()
                self._commits.take_checkpoint()
                return self._meet()
            except (HorovodInternalError, HostsUpdatedInterrupt) as another:
                error = another

    def _run_epoch(self) -> None:
        trainer, loop = self._trainer, self._trainer.fit_loop
        batches, fetcher = loop.epoch_loop, loop._data_fetcher
        position = self._commits.position
        assert position is not None
        phase = position.phase
        if phase is FitPhase.BETWEEN_EPOCHS:
            self._rows.take_legs(int(trainer.current_epoch), ())  # the last epoch may have been divided
            self._take_lengths()
            self._commits.keep_weights()
            self._begin_epoch()
            fetcher = loop._data_fetcher  # it may be another one
            batches.reset()
        else:
            self._watch.enter_epoch(trainer, batches.batch_progress.current.ready)
        self._commits.batches_begin()
        iter(fetcher)
        with trainer.profiler.profile("run_training_epoch"):
            batches.on_run_start(fetcher)
            if phase is FitPhase.AFTER_BATCH:
                self._after_batch(batches, fetcher)
            while not batches.done:
                try:
                    batches.advance(fetcher)
                    if self._commits.has_stepped:
                        self._commits.step(trainer, renew=self._renews)
                    self._after_batch(batches, fetcher)
                except StopIteration:
                    break
        self._commits.keep_weights()
        self._end_epoch()

    def _after_batch(self, batches: Any, fetcher: Any) -> None:
        """What Lightning does between two batches, such as a validation."""
        validations = self._watch.validations
        batches.on_advance_end(fetcher)
        # Gradients that wait for their step would be lost with a commit.
        if self._watch.validations != validations and not batches._should_accumulate():
            self._commits.validation(self._trainer)


def _no_agreement(trainer: Any) -> str:
    plugin = type(trainer.precision_plugin)
    return (
        f"the optimizer has made a step on which the ranks have not agreed: {plugin.__module__}.{plugin.__qualname__} "
        "does not call _after_closure before the step, as Lightning's own precision plugins do. Such a training cannot "
        "replace a lost rank: set max_restarts=0, or use one of Lightning's plugins."
    )


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Is called in the place of what `ResumableFit` calls itself."""
