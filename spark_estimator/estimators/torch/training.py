"""Trains a PyTorch model on the rows of a rank: what every rank of `TorchEstimator.fit` runs."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy
import torch

import spark_estimator.torch as hvd
from spark_estimator.collectives import arrays
from spark_estimator.data.fields import Array, Field
from spark_estimator.data.rank.epoch_rows import Batch, EpochRows
from spark_estimator.errors import DataError
from spark_estimator.estimators import data_modules
from spark_estimator.estimators.persistence.checkpoint import (
    Checkpoint,
    Cursor,
    Saver,
    TrainingProgress,
    line_of,
    line_of_return,
    schedule_of,
)
from spark_estimator.estimators.rank_run import RankRun, averages_of, begin, check_loss, meter_of, record_epoch
from spark_estimator.estimators.torch.callbacks import TorchCallbacks
from spark_estimator.estimators.torch.checkpoint import TorchForm, packed
from spark_estimator.estimators.torch.epoch_log import epoch_log
from spark_estimator.estimators.torch.epoch_means import EpochMeans, total
from spark_estimator.estimators.torch.exchange import exchanging
from spark_estimator.estimators.torch.identity import identity_of
from spark_estimator.estimators.torch.losses import Tensors, TorchParts, joint_loss, leaves_out, loss_of, shaped
from spark_estimator.estimators.torch.parts import accumulates
from spark_estimator.estimators.torch.rank_state import gathered, set_rng_state, take_buffers
from spark_estimator.estimators.torch.stepping import Stepping, joint_rate
from spark_estimator.estimators.train_spec import TrainResult, TrainSpec
from spark_estimator.observe.driver_log import log_to_driver


def train(spec: TrainSpec) -> TrainResult | None:
    """Runs on every rank. Returns the result on rank 0; None on the others.

    With a store, rank 0 writes a checkpoint after each epoch, and within them if the user wants that; a run whose
    checkpoint exists resumes from it. Random numbers are seeded for each epoch from seed, epoch and rank, and their
    state is in checkpoints within an epoch, so that such a run ends with the same numbers as one without interruption.
    """
    hvd.init()
    with Saver(spec, TorchForm()) as saver, data_modules.opened(spec, hvd.rank(), hvd.size()) as brought:
        beginning = begin(spec, identity_of, TorchForm(), brought)
        with epoch_log(spec, hvd.rank()) as log:
            return _trained(spec, beginning, saver, log)


def _trained(
    spec: TrainSpec, beginning: RankRun, saver: Saver, log: Callable[[Mapping[str, Any]], None]
) -> TrainResult | None:
    rows, held, seed, kept = beginning.rows, beginning.held, beginning.seed, beginning.kept
    training = _Training(spec, seed, leaving_out(spec.framework, spec, beginning))
    progress = TrainingProgress(spec.patience, spec.restore_best)
    spread = rows.spread() if spec.checkpoints_within or (kept is not None and kept.cursor is not None) else []
    cursor: Cursor | None = None
    if kept is not None:
        again = kept.cursor is not None and kept.cursor.spread != spread
        cursor = None if again else kept.cursor
        training.take(kept, within=cursor is not None)
        progress.history = kept.history
        progress.best = kept.best
        if hvd.rank() == 0 and spec.verbose:
            log_to_driver(line_of_return(spec.run_id, kept, spec.epochs, again=again))

    def save(ranks: list[dict[str, Any]], place: Cursor | None = None) -> None:
        if hvd.rank() == 0:
            state = training.state()
            saver.save(
                Checkpoint(beginning.identity, seed, state, progress.history, progress.best, ranks, cursor=place)
            )

    def save_within(steps: int, done: int, ranks: list[dict[str, Any]]) -> None:
        save(ranks, Cursor(steps, done, spread))

    callbacks = TorchCallbacks(spec.framework.callbacks)
    callbacks.call("on_train_begin", training.model, spec.framework.optimizer)
    ended = False
    while len(progress.history) < spec.epochs and not progress.is_over and not ended:
        epoch = len(progress.history)
        callbacks.call("on_epoch_begin", epoch)
        steps, cursor = 0 if cursor is None else cursor.steps, None
        entry: dict[str, Any] = {"epoch": epoch, "train": training.train(rows, epoch, steps, save_within)}
        if held is not None or spec.checkpoint_path is not None or spec.restore_best:
            training.synchronize()
        if held is not None:
            entry["validation"] = training.evaluate(held)
        training.meter.end_epoch(averages_of(entry))
        progress.add(entry, lambda: copy.deepcopy(training.model.state_dict()))
        training.schedule(progress.watched(entry))
        log(entry)
        record_epoch(spec, entry)
        if spec.checkpoint_path is not None:
            save(training.of_ranks())
        if hvd.rank() == 0 and spec.verbose:
            log_to_driver(line_of(entry, spec.epochs))
        ended = callbacks.ends_after(epoch, entry)
    training.synchronize()
    callbacks.call("on_train_end")
    if hvd.rank() != 0:
        return None
    return beginning.result(spec, training.packed(progress.best), progress.history, "model.pt")


def leaving_out(parts: TorchParts, spec: TrainSpec, beginning: RankRun) -> frozenset[int]:
    """`TorchParts.leaving_out`, of the rows of all ranks. A collective.

    Raises:
        DataError: rows have weights, too: without the ignored rows, the mean would be neither by rows nor by weights.
    """
    if spec.kept is not None or spec.module is not None:  # a function makes the labels, in each epoch again
        return frozenset()
    per_label = []
    for loss, place in zip(parts.losses, range(len(spec.inputs), len(spec.fields)), strict=False):
        places = [place, len(spec.fields) - 1] if spec.weight else [place]
        pieces = (
            (block[0], block[1] if spec.weight else None)
            for item in (beginning.rows, beginning.held)
            if item is not None
            for block in item.blocks(places)
        )
        per_label.append(leaves_out(loss, pieces))
    of_ranks = arrays.allgather(numpy.array([per_label], numpy.uint8), "labels that losses leave out")
    result = numpy.flatnonzero(of_ranks.any(0))
    if spec.weight and len(result):
        label, loss = spec.labels[result[0]].name, parts.losses[result[0]]
        raise DataError(
            f"column {label!r} holds {loss.ignore_index}, and {loss!r} leaves such rows out, in rows whose weight "
            f"({spec.weight.name!r}) is not 0: give them the weight 0, or drop them."
        )
    return frozenset(result.tolist())


class _Training:
    """The model, the optimizer and the sums of one training.

    Attributes:
        model: on this rank's device.
        meter: counts the steps, for the display at the driver.
    """

    def __init__(self, spec: TrainSpec, seed: int, leaving: frozenset[int]) -> None:
        self._spec = spec
        self._seed = seed
        self.meter = meter_of(spec)
        self._within: dict[str, Any] | None = None
        self._parts: TorchParts = replace(spec.framework, leaving_out=leaving)
        use_gpu = spec.use_gpu and torch.cuda.is_available()
        self._device = (
            torch.device("cuda", hvd.local_rank() % torch.cuda.device_count()) if use_gpu else torch.device("cpu")
        )
        self.model = self._parts.model.to(self._device)
        hvd.broadcast_parameters(self.model.state_dict(), root_rank=0)
        self._optimizer: Any = exchanging(self._parts, self.model, spec.backward_passes_per_step)
        self._total = list if self._parts.steps_locally else total
        self._stepping = Stepping(self._optimizer, self.step)

    def step(self) -> None:
        """One step. The learning rate that the user sets is that of one process; the joint batch is larger.

        It is multiplied for the step alone, so that schedulers and checkpoints know nothing of the number of ranks.
        """
        with joint_rate(self._optimizer, 1 if self._parts.rate_is_joint else hvd.size()):
            self._optimizer.step()
        self._optimizer.zero_grad()

    def synchronize(self) -> None:
        """Gives all ranks the same parameters. A collective."""
        if self._parts.steps_locally:
            self._optimizer.synchronize()

    def state(self) -> dict[str, Any]:
        """The content of a checkpoint: Horovod's `model` and `optimizer`, and the scheduler."""
        scheduler = self._parts.scheduler
        return {
            "model": self.model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            **({"scheduler": scheduler.state_dict()} if scheduler is not None else {}),
        }

    def packed(self, best: dict[str, Any] | None) -> bytes:
        """The state for the driver: the model's weights and, if requested and if it fits, the optimizer's state.

        Args:
            best: the numbers of the best epoch; None: those of the last.
        """
        numbers = best or self.model.state_dict()
        if self._parts.returns_optimizer:
            optimizer = {key: value for key, value in self._optimizer.state_dict().items() if key != "outer"}
            state = packed({"model": numbers, "optimizer": optimizer})
            if self._spec.store is not None or len(state) <= self._spec.large:
                return state
        return packed({"model": numbers})

    def of_ranks(self, sums: torch.Tensor | None = None) -> list[dict[str, Any]]:
        """[ranks] what each has for itself. A collective.

        Args:
            sums: of the epoch so far; None: between two epochs.
        """
        return gathered(self.model, self._device, sums)

    def take(self, kept: Checkpoint, *, within: bool) -> None:
        """Restores a checkpoint.

        Args:
            within: training resumes within the epoch in which it was taken; False: at the beginning of the next.
        """
        self.model.load_state_dict(kept.state["model"])
        self._optimizer.load_state_dict(kept.state["optimizer"])
        if self._parts.scheduler is not None and "scheduler" in kept.state:
            self._parts.scheduler.load_state_dict(kept.state["scheduler"])
        if len(kept.ranks) == hvd.size():
            rank_state = kept.ranks[hvd.rank()]
            take_buffers(self.model, rank_state)
            self._within = rank_state if within else None

    def schedule(self, loss: float) -> None:
        """Moves the learning rate."""
        scheduler = self._parts.scheduler
        if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            scheduler.step(loss)
        elif scheduler is not None:
            with warnings.catch_warnings():
                # It looks for a step() that it has wrapped itself, in the driver's process.
                warnings.filterwarnings("ignore", message=".*lr_scheduler.step|.*optimizer.step")
                scheduler.step()

    def train(
        self, rows: EpochRows, epoch: int, first: int, save: Callable[[int, int, list[dict[str, Any]]], None]
    ) -> dict[str, Any]:
        """One epoch. Returns its averages over all rows.

        Args:
            first: batches that are done already, before the checkpoint that was taken.
            save: (batches done, rows of all ranks in them, what each rank has) writes a checkpoint.
        """
        spec = self._spec
        self.model.train()
        torch.manual_seed(((self._seed * 100_003 + epoch) * 10_007 + hvd.rank()) % (1 << 63))
        sums = EpochMeans(self._parts)
        order = (self._seed, epoch) if spec.shuffle else None
        if self._within is not None:
            set_rng_state(self._device, self._within)
            sums.taken(self._within["sums"])
            self._within = None
        pending = 0
        schedule, is_due = schedule_of(spec), False
        self._optimizer.zero_grad()
        plan = rows.plan(spec.batch_size, spec.train_steps)
        self.meter.begin_epoch(epoch, plan.steps, first, sums.rows)
        for done, batch in enumerate(rows.batches(spec.batch_size, spec.train_steps, order, first), first + 1):
            if self._parts.minibatch is not None:
                sums.add(*self._user_step(self._parts.minibatch, batch, done - 1), batch.rows)
                pending = self._stepping.pending
            else:
                loss, outputs, labels = self._forward(batch)
                (loss * (batch.factor / spec.backward_passes_per_step)).backward()  # a mean, as in Horovod
                sums.add(loss, outputs, labels, batch.rows)
                pending += 1
                if pending == spec.backward_passes_per_step:
                    self.step()
                    pending = 0
            self.meter.step_done(batch.rows, sums.loss)
            is_due = is_due or (schedule is not None and schedule.is_due())
            # A checkpoint has no gradients that wait for their step. After the last batch, the epoch's checkpoint
            # follows.
            if schedule is not None and is_due and not pending and done < plan.steps:
                self.synchronize()
                save(done, plan.done(done), self.of_ranks(sums.sums))
                schedule.made()
                is_due = False
        if pending:
            self.step()
            self._stepping.pending = 0
        result = sums.averages()
        check_loss(result["loss"], epoch, rows if spec.has_stored_rows else None, spec.fields)
        return result

    def evaluate(self, rows: EpochRows) -> dict[str, Any]:
        """The averages over all rows, with the model as it is."""
        self.model.eval()
        sums = EpochMeans(self._parts)
        size = self._spec.val_batch_size, self._spec.validation_steps
        self.meter.begin_validation(rows.plan(*size).steps)
        with torch.no_grad():
            for batch in rows.batches(*size):
                loss, outputs, labels = self._forward(batch)
                sums.add(loss, outputs, labels, batch.rows)
                self.meter.step_done(batch.rows, sums.loss)
        return sums.averages()

    def _tensors(self, batch: Batch) -> tuple[Tensors, Tensors, torch.Tensor | None]:
        """Inputs, labels and weights of a batch."""
        spec = self._spec
        tensors = [
            tensor_of(matrix, field).to(self._device) for matrix, field in zip(batch.matrices, spec.fields, strict=True)
        ]
        inputs, rest = tensors[: len(spec.inputs)], tensors[len(spec.inputs) :]
        return inputs, rest[: len(spec.labels)], rest[len(spec.labels)] if spec.weight is not None else None

    def _forward(self, batch: Batch) -> tuple[torch.Tensor, Tensors, Tensors]:
        inputs, labels, weights = self._tensors(batch)
        return loss_of(self._parts, self.model, inputs, labels, weights, batch.rows, self._total)

    def _user_step(
        self, minibatch: Callable[..., Any], batch: Batch, number: int
    ) -> tuple[torch.Tensor, Tensors, Tensors]:
        """A step as the user does it, by Horovod's protocol; its loss is this rank's share of the step's.

        Args:
            minibatch: takes seven arguments and steps, or two more, and steps in later calls.
            number: of the batch in its epoch, from 0.
        """
        inputs, labels, weights = self._tensors(batch)
        last: list[Tensors] = [labels]

        def transform_outputs(outputs: Any, labels: Tensors) -> tuple[Tensors, Tensors]:
            result = list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]
            last[0] = shaped(self._parts, result, labels)
            return result, last[0]

        def loss_fn(outputs: Tensors, labels: Tensors, sample_weights: torch.Tensor | None) -> torch.Tensor:
            return joint_loss(self._parts, outputs, labels, sample_weights, batch.rows, self._total) * batch.factor

        more = (self._spec.backward_passes_per_step, number) if accumulates(minibatch) else ()
        self._stepping.pending += len(more) // 2
        outputs, loss = minibatch(
            self.model, self._stepping, transform_outputs, loss_fn, inputs, labels, weights, *more
        )
        result = list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]
        return loss.detach() / (batch.factor or 1.0), result, last[0]


def tensor_of(matrix: Array, field: Field) -> torch.Tensor:
    """[rows, *field.shape] over the same memory, but where the spool keeps a smaller type."""
    tensor = torch.from_numpy(matrix).reshape(len(matrix), *field.shape)
    return tensor.to(getattr(torch, field.dtype)) if field.stored else tensor
