"""Reports Lightning's training to the estimator: each batch's loss, the end of each epoch.

A callback of the Trainer and the strategy fill `EpochSums`. Both are made for the Lightning package that the
module comes from (`make_callback`, `make_strategy`).
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from typing import Any, Protocol

import torch

import spark_estimator.torch as hvd
from spark_estimator.errors import DataError
from spark_estimator.estimators.lightning.loaders import RowLoader
from spark_estimator.lightning import rates, strategy_class
from spark_estimator.observe.driver_log import log_to_driver
from spark_estimator.observe.training_meter import TrainingMeter

#: In the place of a file's path: the strategy of `make_strategy` keeps the Trainer's checkpoint as ``in_memory``.
IN_MEMORY = "the strategy's memory"


class EpochHooks(Protocol):
    """What a training does at moments of Lightning's; each is called with the Trainer."""

    def fit_starts(self, trainer: Any) -> None:
        """Model and optimizers are there; the first of the hooks ``on_fit_start``."""

    def train_starts(self, trainer: Any) -> None:
        """All hooks ``on_fit_start`` have run."""

    def epoch_starts(self, trainer: Any) -> None:
        """Begin an epoch."""

    def epoch_ends(self, trainer: Any) -> None:
        """End the batches of an epoch, before other hooks of the epoch's end."""

    def epoch_ended(self, trainer: Any) -> None:
        """All of Lightning's hooks and schedulers of the epoch have run."""


class EpochSums:
    """The sums of an epoch, and what a batch's loss is multiplied with.

    Attributes:
        factor: of the current batch, in training.
        counted: rows of the current batch that count.
        validations: how many have ended.
        seen: "train" and "validation", where the epoch has had batches of them.

    Args:
        train: this rank's batches; None: they come from a LightningDataModule of the user's.
        validation: the same for validation; None: as above, or there are none.
        metrics: how many numbers a plain module's step gives besides the loss.
        hooks: of the training.
        multiplied: the factor of every loss.
        joint: weight losses by the rank's rows, so that the mean of all ranks' gradients is that of the joint batch.
        stop_on_nan: as in `estimators.lightning.parts.LightningParts`.
        meter: counts the steps, for the display at the driver.
    """

    def __init__(
        self,
        train: RowLoader | None,
        validation: RowLoader | None,
        metrics: int,
        hooks: EpochHooks,
        multiplied: int = 1,
        joint: bool = True,
        stop_on_nan: bool = False,
        meter: TrainingMeter | None = None,
    ) -> None:
        self.factor = 1.0
        self.counted = 0
        self.validations = 0
        self.seen: set[str] = set()
        self._loaders = {"train": train, "validation": validation}
        self._width = 2 + metrics
        self._sums = {part: torch.zeros(self._width, dtype=torch.float64) for part in self._loaders}
        self._hooks = hooks
        self._multiplied = multiplied
        self._joint = joint
        self._stop_on_nan = stop_on_nan
        self._meter = TrainingMeter(0) if meter is None else meter
        # The first two of `_sums` as Python's numbers, which are cheaper to read in each step.
        self._counts = dict.fromkeys(self._loaders, (0, 0.0))

    def begin_fit(self, trainer: Any) -> None:
        self._hooks.fit_starts(trainer)

    def begin_training(self, trainer: Any) -> None:
        """Call `end` from here on after each epoch, when all of Lightning's hooks and schedulers have run."""
        original = trainer.fit_loop.on_advance_end

        def end_epoch(*args: Any, **kwargs: Any) -> None:
            original(*args, **kwargs)
            self._hooks.epoch_ended(trainer)

        trainer.fit_loop.__dict__["on_advance_end"] = end_epoch
        self._hooks.train_starts(trainer)

    def begin_epoch(self, trainer: Any) -> None:
        self.seen.clear()
        for part in self._sums:
            self._forget(part)
        train = self._loaders["train"]
        if train is not None:
            train.enter(int(trainer.current_epoch))
        self._enter(trainer, 0)
        self._hooks.epoch_starts(trainer)

    def end_epoch(self, trainer: Any) -> None:
        self._hooks.epoch_ends(trainer)

    def _enter(self, trainer: Any, done: int) -> None:
        self._meter.epochs = max(trainer.max_epochs or 0, 0)
        steps = _count(trainer.num_training_batches)
        self._meter.begin_epoch(int(trainer.current_epoch), steps, done, self._counts["train"][0])

    def get_state(self) -> dict[str, Any]:
        """Return what this rank has counted in the epoch, for `resume`."""
        counts = {part: list(counts) for part, counts in self._counts.items()}
        return {"sums": dict(self._sums), "counts": counts, "seen": sorted(self.seen)}

    def resume(self, trainer: Any, state: Mapping[str, Any], done: int) -> None:
        """Continue the epoch after `done` batches, from what `get_state` returned there."""
        self._sums = {part: sums.clone() for part, sums in state["sums"].items()}
        self._counts = {part: (int(rows), float(loss)) for part, (rows, loss) in state["counts"].items()}
        self.seen = set(state["seen"])
        self._enter(trainer, done)

    def begin_validation(self, trainer: Any) -> None:
        """Forget an earlier validation: if an epoch has several, the last one counts."""
        self._forget("validation")
        self._meter.begin_validation(sum(map(_count, trainer.num_val_batches)))

    def end_validation(self) -> None:
        self.validations += 1
        self._meter.end_validation()

    def begin_batch(self, part: str, batch: Any, number: int) -> None:
        self.seen.add(part)
        loader = self._loaders[part]
        self.counted = _count_rows(batch) if loader is None else loader.count_rows(number)
        joint = 1.0 if loader is None or not self._joint else loader.compute_factor(number)
        self.factor = joint * self._multiplied

    def end_step(self, part: str, output: Any) -> None:
        """Count what a step has returned."""
        self._add(part, output)
        rows, loss = self._counts[part]
        self._meter.end_step(self.counted, loss / rows if rows else None)

    def _forget(self, part: str) -> None:
        self._sums[part] = torch.zeros(self._width, dtype=torch.float64)
        self._counts[part] = 0, 0.0

    def _add(self, part: str, output: Any) -> None:
        result = output.get("loss") if isinstance(output, Mapping) else output
        if not isinstance(result, torch.Tensor) or result.numel() != 1 or not self.counted:
            return
        loss = float(result.detach())
        if self._stop_on_nan and not math.isfinite(loss):
            raise DataError(f"the loss of a batch on rank {hvd.rank()} was {loss} (terminate_on_nan=True).")
        metrics = output.get("all_metrics", []) if isinstance(output, Mapping) and self._width > 2 else []
        values = [1.0, loss, *(item for group in metrics for item in group)]
        rows, total = self._counts[part]
        self._counts[part] = rows + self.counted, total + loss * self.counted
        self._sums[part] += torch.tensor(values, dtype=torch.float64) * self.counted

    def compute_averages(self, part: str) -> list[float]:
        """Return the epoch's loss and metrics over the rows of all ranks; empty if no step gave a loss. Collective."""
        sums = hvd.allreduce(self._sums[part], op=hvd.Sum, name=f"averages of {part}")
        return [] if not sums[0] else [float(value) for value in sums[1:] / sums[0]]


def average_logged(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the module's logged values, averaged over the ranks that have them; values that Lightning has averaged
    are kept. Collective.

    Args:
        metrics: ``trainer.callback_metrics``, which differ where they were logged without ``sync_dist``.
    """
    local = {name: float(value) for name, value in metrics.items() if not name.endswith("_step")}
    everybody = hvd.allgather_object(local, name="what was logged")
    result = {}
    for name in dict.fromkeys(name for entry in everybody for name in entry):
        values = [entry[name] for entry in everybody if name in entry]
        result[name] = values[0] if len({*values}) == 1 else sum(values) / len(values)
    return result


def make_callback(flavour: str, watch: EpochSums) -> Any:
    """Return a callback that reports to `watch`."""
    package: Any = importlib.import_module(flavour)

    class Telling(package.Callback):
        def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
            watch.begin_fit(trainer)

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            watch.begin_training(trainer)

        def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
            watch.begin_epoch(trainer)

        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            watch.end_epoch(trainer)

        def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
            watch.begin_batch("train", batch, batch_idx)

        def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
            watch.begin_validation(trainer)

        def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
            watch.end_validation()

        def on_validation_batch_start(
            self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
        ) -> None:
            watch.begin_batch("validation", batch, batch_idx)

    return Telling()


def make_strategy(flavour: str, watch: EpochSums, verbose: int, **options: Any) -> Any:
    """Return the strategy "horovod", whose losses are multiplied by `watch.factor`, and reported to `watch`
    unscaled.

    Args:
        options: of the strategy. Rates of a checkpoint are changed to those of this number of ranks.
        verbose: 0: what the log has of rates is not for the driver.
    """
    base: Any = strategy_class(flavour)

    class Weighing(base):
        in_memory: dict[str, Any] | None = None

        def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, *args: Any, **kwargs: Any) -> None:
            if filepath == IN_MEMORY:
                rates.note_factor(checkpoint, self.optimizers)
                self.in_memory = checkpoint
            else:
                super().save_checkpoint(checkpoint, filepath, *args, **kwargs)

        def backward(self, closure_loss: torch.Tensor, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            weighed = closure_loss if watch.factor == 1 else closure_loss * watch.factor
            return super().backward(weighed, optimizer, *args, **kwargs)

        def training_step(self, *args: Any, **kwargs: Any) -> Any:
            output = super().training_step(*args, **kwargs)
            watch.end_step("train", output)
            return output

        def validation_step(self, *args: Any, **kwargs: Any) -> Any:
            output = super().validation_step(*args, **kwargs)
            watch.end_step("validation", output)
            return output

        def restored_rates(self, checkpoint: Mapping[str, Any]) -> None:
            pass  # `follow_ranks` is called when the schedules have their state, too

        def log_rates(self, line: str) -> None:
            if line and verbose and self.is_global_zero:
                log_to_driver(line)
            else:
                super().log_rates(line)

    return Weighing(**options)


def _count(batches: float) -> int:
    """Return a number of batches as Lightning has it; 0: unknown, which is infinity there."""
    return int(batches) if math.isfinite(batches) else 0


def _count_rows(batch: Any) -> int:
    """Return the first extent of the first tensor in a batch; 1 if there is none."""
    if isinstance(batch, torch.Tensor):
        return len(batch) if batch.dim() else 1
    parts = list(batch.values()) if isinstance(batch, Mapping) else batch if isinstance(batch, (list, tuple)) else []
    return _count_rows(parts[0]) if parts else 1
