"""Trains a PyTorch model on batches of a rank's rows: one epoch, one validation, and the state between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

import spark_estimator.torch as hvd
from spark_estimator.data.fields import Array, Field
from spark_estimator.data.rank.epoch_rows import Batch, EpochRows
from spark_estimator.estimators.epoch_division import find_rest
from spark_estimator.estimators.persistence.checkpoint import Checkpoint, make_schedule
from spark_estimator.estimators.rank_run import check_loss, make_meter
from spark_estimator.estimators.torch.checkpoint import pack
from spark_estimator.estimators.torch.epoch_means import EpochMeans, sum_over_ranks
from spark_estimator.estimators.torch.exchange import wrap_optimizer
from spark_estimator.estimators.torch.losses import (
    JointLoss,
    Tensors,
    TorchParts,
    Total,
    compute_joint_loss,
    compute_loss,
    find_divisors,
    reshape_labels,
)
from spark_estimator.estimators.torch.parts import accumulates
from spark_estimator.estimators.torch.rank_state import (
    gather_rank_states,
    get_rng_state,
    seed_generators,
    set_rng_state,
    take_buffers,
)
from spark_estimator.estimators.torch.skipped_steps import SkippedSteps
from spark_estimator.estimators.torch.stepping import make_passes
from spark_estimator.estimators.torch.steps.recipe import Stepper
from spark_estimator.estimators.train_spec import TrainSpec
from spark_estimator.log import get_logger
from spark_estimator.observe.step_times import time_input
from spark_estimator.torch.rates import multiply_groups, multiply_schedules

#: (batches done, rows of all ranks in them, what each rank has): writes a checkpoint.
SaveWithin = Callable[[int, int, list[dict[str, Any]]], None]
_log = get_logger(__name__)


class Trainer:
    """The model, the optimizer and the sums of one training.

    Attributes:
        model: on this rank's device.
        optimizer: as `wrap_optimizer` makes it.
        sums: over this rank's rows of the epoch so far.
        meter: counts the steps, for the display at the driver.
        stepper: makes the steps.
        rate_factor: by which the learning rates are multiplied: the number of ranks, or 1.
    """

    def __init__(self, spec: TrainSpec) -> None:
        self._spec = spec
        self._seed = spec.seed
        self.meter = make_meter(spec)
        self._within: dict[str, Any] | None = None
        self._parts: TorchParts = spec.framework
        use_gpu = spec.use_gpu and torch.cuda.is_available()
        self._device = (
            torch.device("cuda", hvd.local_rank() % torch.cuda.device_count()) if use_gpu else torch.device("cpu")
        )
        self.model = self._move_model(self._parts.model)
        self.optimizer: Any = wrap_optimizer(self._parts, self.model, spec.backward_passes_per_step)
        self.stepper = self._make_stepper()
        self.sums = EpochMeans(self._parts, counts_skipped=self.stepper.may_skip)
        self._skipped = (
            SkippedSteps(self.sums, self.model, spec, lambda batch: self._compute_loss(batch, list)[0].value)
            if self._parts.recipe.skips
            else None
        )
        self._total: Total = list if self._parts.steps_locally else sum_over_ranks
        self._pending = 0  # backward passes since the last step
        self.rate_factor = 1

    def _move_model(self, model: nn.Module) -> nn.Module:
        """Return the model on the device, as the recipe has it."""
        recipe = self._parts.recipe
        model.to(self._device)
        if recipe.channels_last:
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if recipe.compile is not None:
            # Not by Module.compile(), which leaves a module of torch.nn's own, such as Sequential, as it is.
            model.forward = torch.compile(model.forward, **recipe.compile)
        return model

    def _make_stepper(self) -> Stepper:
        parts = self._parts
        scaler = torch.amp.GradScaler(self._device.type) if parts.precision == "fp16" else None
        return Stepper(parts.recipe, self.optimizer, scaler, parts.scheduler, steps_locally=parts.steps_locally)

    def begin(self, seed: int, leaving: frozenset[int]) -> None:
        """Set the run's seed and the labels that losses leave out, before the first epoch.

        Args:
            seed: of the run.
            leaving: `TorchParts.leaving_out`.
        """
        self._seed = seed
        self._parts = replace(self._parts, leaving_out=leaving)

    def take_size(self, factor: int = 1) -> None:
        """Multiply the learning rates, and those of the schedule, with the number of ranks, as Horovod does.

        The user's rates are those of one process; the joint batch is larger. What the user's code reads and sets from
        then on is what steps are taken with.

        Args:
            factor: by which the rates that the optimizer has are multiplied already.
        """
        size = 1 if self._parts.rate_is_joint else hvd.size()
        unchanged = self._rescale(factor, size)
        # New groups of parameters begin with these, which are not part of any state.
        multiply_groups([self.optimizer.defaults], size / self.rate_factor)
        if unchanged and self.rate_factor == 1 and hvd.rank() == 0:
            _log.warning(
                "lr_scheduler: %s has no base_lrs. It sets the learning rates of a step of all %d processes; other "
                "schedulers set those of one process, which are multiplied by that number.",
                type(unchanged[0]).__name__,
                size,
            )
        self.rate_factor = size

    def _rescale(self, old: int, new: int) -> list[Any]:
        """Give rates that were multiplied by `old` the factor `new`. Return the schedules without known rates."""
        if old == new:
            return []
        multiply_groups(self.optimizer.param_groups, new / old)
        scheduler = self.stepper.rates.scheduler
        return [] if scheduler is None else multiply_schedules([scheduler], new / old)

    def step(self, epoch: int, done: int) -> None:
        """Make one step, or skip it, after `done` batches of the epoch."""

        def settle(is_made: bool) -> None:
            if self._skipped is not None:
                if is_made:
                    self._skipped.count()
                else:
                    self._skipped.undo(epoch, done)
            if not is_made:
                self.sums.count_skipped()

        self.stepper.step(settle)
        self.optimizer.zero_grad()
        self._pending = 0

    def synchronize(self) -> None:
        """Give all ranks the same parameters. A collective."""
        if self._parts.steps_locally:
            self.optimizer.synchronize()

    def get_state(self) -> dict[str, Any]:
        """Return the content of a checkpoint: Horovod's `model` and `optimizer`, the scheduler, and the rates'
        factor.
        """
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "rate_factor": self.rate_factor,
            **self.stepper.state_dict(),
        }

    def pack_result(self, best: dict[str, Any] | None) -> bytes:
        """Return the state for the driver: the model's weights and, if requested and if it fits, the optimizer's state.

        As in Horovod, the learning rates of the latter are divided by the number of ranks, for the next training.

        Args:
            best: the numbers of the best epoch; None: those of the last.
        """
        numbers = best or self.model.state_dict()
        if self._parts.returns_optimizer:
            optimizer = {key: value for key, value in self.optimizer.state_dict().items() if key != "outer"}
            optimizer["param_groups"] = [dict(group) for group in optimizer["param_groups"]]
            multiply_groups(optimizer["param_groups"], 1 / self.rate_factor)
            state = pack({"model": numbers, "optimizer": optimizer})
            if self._spec.store is not None or len(state) <= self._spec.large:
                return state
        return pack({"model": numbers})

    def gather_states(self, *, within: bool = False) -> list[dict[str, Any]]:
        """Return [ranks] what each has for itself. A collective.

        Args:
            within: an epoch, with its sums so far; False: between two epochs.
        """
        return gather_rank_states(self.model, self._device, self.sums.get_state() if within else None)

    def take(self, checkpoint: Checkpoint, *, within: bool) -> None:
        """Restore a checkpoint. Rates that it holds for another number of ranks become those of this job.

        Args:
            within: training resumes within the epoch in which it was taken; False: at the beginning of the next.
        """
        self.model.load_state_dict(checkpoint.state["model"])
        self.optimizer.load_state_dict(checkpoint.state["optimizer"])
        self.stepper.load_state_dict(checkpoint.state)
        self._rescale(checkpoint.state["rate_factor"], self.rate_factor)
        if len(checkpoint.ranks) == hvd.size():
            rank_state = checkpoint.ranks[hvd.rank()]
            take_buffers(self.model, rank_state)
            self._within = rank_state if within else None

    def get_rank_state(self) -> dict[str, Any]:
        """Return the random number generators and sums of this rank, for `resume_within`."""
        return get_rng_state(self._device) | self.sums.get_state()

    def resume_within(self, state: dict[str, Any]) -> None:
        """Continue, in the next epoch, one that has begun, with this rank's generators and sums from
        `get_rank_state`.
        """
        self._within = state

    def train(
        self,
        rows: EpochRows,
        epoch: int,
        first: int,
        save: SaveWithin,
        commit: Callable[[int], None] | None = None,
        legs: Sequence[Mapping[str, Any]] = (),
        batch_calls: tuple[Callable[..., None] | None, Callable[..., None] | None] = (None, None),
        validate: Callable[[int], bool] | None = None,
    ) -> dict[str, Any]:
        """Train for one epoch. Return its averages over all rows.

        Args:
            first: batches that are done already, before the checkpoint that was taken.
            save: writes a checkpoint within the epoch.
            commit: called with the number of batches done, before the first and after each step: what follows repeats
                nothing of these. No collective happens between a step and this.
            legs: parts of the epoch that other ranks have done, before `first`. The rest has no checkpoints.
            batch_calls: called before each batch with its number, and after it with its number and loss.
            validate: called between two steps with the number of batches done; returns whether the epoch ends there. A
                collective.
        """
        spec = self._spec
        order = (self._seed, epoch) if spec.shuffle else None
        whole = rows.make_plan(spec.batch_size, spec.train_steps).steps
        rows, most_steps = find_rest(rows, legs, order, spec.train_steps)
        self._enter(epoch)
        if commit is not None:
            commit(first)
        self._pending = 0
        schedule, is_due = None if legs else make_schedule(spec), False
        self.optimizer.zero_grad()
        plan = rows.make_plan(spec.batch_size, most_steps)
        self._begin_rates(epoch, whole, plan.steps - first)
        self.meter.begin_epoch(epoch, plan.steps, first, self.sums.rows)
        batches = time_input(rows.read_batches(spec.batch_size, most_steps, order, first))
        most = 1 if self._parts.minibatch is not None else spec.backward_passes_per_step
        # Horovod's rule where the learning rate is Horovod's, that of one process.
        parts = make_passes(
            batches, plan, first, most, self._find_divisors, self._total, as_horovod=not self._parts.rate_is_joint
        )
        for done, part in enumerate(parts, first + 1):
            if validate is not None and not self._pending and validate(done - 1):
                break
            if batch_calls[0] is not None:
                batch_calls[0](done - 1)
            batch = part.batch
            if self._parts.minibatch is not None:
                loss, outputs, labels = self._take_user_step(self._parts.minibatch, batch, done - 1)
                self.sums.add(loss, outputs, labels, batch.rows)
            else:
                if self._skipped is not None and not self._pending:
                    self._skipped.begin()
                loss, outputs, labels = self._compute_loss(batch, part.total)
                is_finite = self._skipped is None or self._skipped.note(batch, loss, outputs, labels)
                self.stepper.differentiate(loss.value * part.factor, is_finite=is_finite)
                if self._skipped is None:
                    self.sums.add(loss, outputs, labels, batch.rows)
                self._pending += 1
                if self._pending == spec.backward_passes_per_step:
                    self.step(epoch, done)
            self.meter.end_step(batch.rows, self.sums.loss)
            if batch_calls[1] is not None:  # before the commit, at which ranks may leave
                batch_calls[1](done - 1, float(loss.value.detach()))
            if commit is not None and not self._pending:
                commit(done)
            is_due = is_due or (schedule is not None and schedule.is_due())
            # A checkpoint has no gradients that wait for their step. After the last batch, the epoch's checkpoint
            # follows.
            if schedule is not None and is_due and not self._pending and done < plan.steps:
                self.synchronize()
                if commit is not None:
                    commit(done)
                save(done, plan.count_done(done), self.gather_states(within=True))
                schedule.restart()
                is_due = False
        if self._pending:
            self.step(epoch, plan.steps)
        if commit is not None:
            self.synchronize()
            commit(plan.steps)
        result = self.sums.compute_averages()
        stored = rows if spec.has_stored_rows else None
        check_loss(result["loss"], epoch, stored, spec.fields, multiplied=not self._parts.rate_is_joint)
        return result

    def _begin_rates(self, epoch: int, batches: int, left: int) -> None:
        """Tell the schedule where it is.

        Args:
            batches: of a whole epoch.
            left: of those, in this one.
        """
        recipe, passes = self._parts.recipe, self._spec.backward_passes_per_step
        done, total = epoch, self._spec.epochs
        if recipe.schedule is not None and recipe.schedule.by_step:
            steps = -(-batches // passes)
            done, total = (epoch + 1) * steps - -(-left // passes), total * steps
            if recipe.schedule.warmup >= total > 0 == done and hvd.rank() == 0:
                _log.warning(
                    "warmup_steps=%d: the training has %d steps, and ends before the learning rate is reached.",
                    recipe.schedule.warmup,
                    total,
                )
        self.stepper.rates.begin_epoch(done, total, self.rate_factor)

    def _enter(self, epoch: int) -> None:
        """Seed the random number generators for an epoch, or restore what they were within it."""
        self.model.train()
        seed_generators(self._seed, epoch)
        self.sums.clear()
        if self._within is not None:
            set_rng_state(self._device, self._within)
            self.sums.restore(self._within)
            self._within = None

    def evaluate(self, rows: EpochRows) -> dict[str, Any]:
        """Return the averages over all rows, with the model as it is, which is in its mode for that afterwards."""
        self.model.eval()
        sums = EpochMeans(self._parts)
        size = self._spec.val_batch_size, self._spec.validation_steps
        self.meter.begin_validation(rows.make_plan(*size).steps)
        state = get_rng_state(self._device)
        with torch.no_grad():
            for batch in rows.read_batches(*size):
                loss, outputs, labels = self._compute_loss(batch, self._total)
                sums.add(loss, outputs, labels, batch.rows)
                self.meter.end_step(batch.rows, sums.loss)
        set_rng_state(self._device, state)
        self.meter.end_validation()
        return sums.compute_averages()

    def _make_tensors(self, batch: Batch) -> tuple[Tensors, Tensors, torch.Tensor | None]:
        """Return inputs, labels and weights of a batch."""
        spec = self._spec
        tensors = [
            to_tensor(matrix, field).to(self._device) for matrix, field in zip(batch.matrices, spec.fields, strict=True)
        ]
        if self._parts.recipe.channels_last:
            tensors = [each.to(memory_format=torch.channels_last) if each.dim() == 4 else each for each in tensors]
        inputs, rest = tensors[: len(spec.inputs)], tensors[len(spec.inputs) :]
        return inputs, rest[: len(spec.labels)], rest[len(spec.labels)] if spec.weight is not None else None

    def _find_divisors(self, batch: Batch) -> list[float]:
        """Return what the losses of a batch divide by, if that is not its rows."""
        _, labels, weights = self._make_tensors(batch)
        return list(find_divisors(self._parts, labels, weights, batch.rows).values())

    def _compute_loss(self, batch: Batch, total: Total) -> tuple[JointLoss, Tensors, Tensors]:
        inputs, labels, weights = self._make_tensors(batch)
        return compute_loss(self._parts, self.model, inputs, labels, weights, batch.rows, total)

    def _handle_user_step(self, *_: Any) -> None:
        self.optimizer.zero_grad()
        # A function with nine arguments steps before the backward pass of the call in which it does.
        self._pending = min(self._pending, 1)

    def _take_user_step(
        self, minibatch: Callable[..., Any], batch: Batch, number: int
    ) -> tuple[JointLoss, Tensors, Tensors]:
        """Take a step as the user does it, by Horovod's protocol; its loss is this rank's share of the step's.

        Args:
            minibatch: takes seven arguments and steps, or two more, and steps in later calls.
            number: of the batch in its epoch, from 0.
        """
        inputs, labels, weights = self._make_tensors(batch)
        last: list[Tensors] = [labels]

        def transform_outputs(outputs: Any, labels: Tensors) -> tuple[Tensors, Tensors]:
            result = list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]
            last[0] = reshape_labels(self._parts, result, labels)
            return result, last[0]

        def loss_fn(outputs: Tensors, labels: Tensors, sample_weights: torch.Tensor | None) -> torch.Tensor:
            loss = compute_joint_loss(self._parts, outputs, labels, sample_weights, batch.rows, self._total)
            return loss.value * batch.factor

        more = (self._spec.backward_passes_per_step, number) if accumulates(minibatch) else ()
        self._pending += len(more) // 2
        # After the hooks of the user's, which may read gradients.
        hook = self.optimizer.register_step_post_hook(self._handle_user_step)
        try:
            outputs, loss = minibatch(
                self.model, self.optimizer, transform_outputs, loss_fn, inputs, labels, weights, *more
            )
        finally:
            hook.remove()
        result = list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]
        return JointLoss(loss.detach() / (batch.factor or 1.0)), result, last[0]


def to_tensor(matrix: Array, field: Field) -> torch.Tensor:
    """Return [rows, *field.shape] over the same memory, except if the spool keeps a smaller type."""
    tensor = torch.from_numpy(matrix).reshape(len(matrix), *field.shape)
    return tensor.to(getattr(torch, field.dtype)) if field.stored else tensor
