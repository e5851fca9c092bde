"""Tries a LightningModule on the first rows, on the driver: runs training_step of a copy on one batch.

Its hooks do not run there, as nothing is trained: they may save, register or send what they believe to be the result.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import logging
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow
import torch

from spark_estimator.checkpoint.random_state import get_random_state, set_random_state
from spark_estimator.errors import DataError
from spark_estimator.estimators.lightning.loaders import Named, name_batch
from spark_estimator.estimators.lightning.parts import LightningParts
from spark_estimator.estimators.rows.shapes import RESHAPE, Fields, describe_fields, find_not_finite
from spark_estimator.estimators.torch.check import ModuleTrial, make_first_tensors
from spark_estimator.estimators.torch.losses import Tensors, call_model
from spark_estimator.lightning.epoch_outputs import hide_epoch_ends

#: The hooks before a step, which may make what `training_step` uses.
_STARTS = ("on_fit_start", "on_train_start", "on_train_epoch_start", "on_train_batch_start")
#: Hooks that are part of a step: they change its batch.
_OF_BATCHES = ("on_before_batch_transfer", "on_after_batch_transfer")


class LightningTrial(ModuleTrial):
    """See `shapes.Trial`."""

    by_name = True

    def __init__(self, parts: LightningParts) -> None:
        super().__init__(parts.model)
        self._parts = parts

    def run(self, rows: pyarrow.RecordBatch, fields: Fields) -> tuple[int, ...]:
        """See `shapes.Trial.run`."""
        tensors = make_first_tensors(rows, fields)
        shapes = self._parts.label_shapes if fields.labels else None
        batch = name_batch(fields.inputs, fields.labels, fields.weight, tensors, shapes)
        state = get_random_state()
        try:
            with _silence_warnings(self._parts.flavour):
                module: Any = copy.deepcopy(self._parts.model).cpu()
                module.configure_model()
                if rows.num_rows == 1:
                    module.eval()  # batch norm raises an error for a single row
                module, loss = self._try_step(module, batch)
                self._check_loss(loss, rows, fields)
                if not fields.labels or self.count_positional()[1] == 0:
                    return ()  # forward() takes what is available at prediction
                return self._find_widths(module, tensors[: len(fields.inputs)], fields)
        finally:
            set_random_state(state)

    def _try_step(self, module: Any, batch: Named) -> tuple[Any, Any]:
        """Return the module, or a copy with what its hooks have made; and the result of training_step for a batch,
        after a backward pass. The result is None if the module optimizes by hand, and has.
        """
        try:
            if module.automatic_optimization:
                try:
                    return module, _step_without_trainer(copy.deepcopy(module), batch)
                except Exception:  # it may have used the Trainer, in any way
                    pass
            return _step_with_trainer(self._parts.flavour, module, batch)
        except KeyError as error:
            if error.args and isinstance(error.args[0], str) and error.args[0] not in batch:
                raise DataError(
                    f"{type(module).__name__}.training_step asked its batch for {error.args[0]!r}: it is a dict of "
                    f"{', '.join(map(repr, batch))}, the columns that feature_cols, label_cols and sample_weight_col "
                    "name."
                ) from error
            raise

    @staticmethod
    def _check_loss(loss: Any, rows: pyarrow.RecordBatch, fields: Fields) -> None:
        if loss is None:
            return
        if not isinstance(loss, torch.Tensor):
            raise DataError(
                f"training_step returned {loss!r} of type {type(loss).__name__}: return the loss, a tensor of one "
                "number, or a dict with it as 'loss'."
            )
        if loss.numel() != 1:
            raise DataError(
                f"the loss has the shape {list(loss.shape)}; it has to be one number, a mean over the rows."
            )
        if not math.isfinite(loss.item()):
            raise DataError(
                f"the loss of the first {rows.num_rows} rows is {loss.item()}: "
                f"{find_not_finite(rows, fields) or 'the model computes it so from finite numbers'}."
            )

    def _find_widths(self, module: Any, inputs: Tensors, fields: Fields) -> tuple[int, ...]:
        """Return [labels] how many values forward() returns for a row."""
        module.eval()
        rows = len(inputs[0])
        with torch.no_grad():
            outputs = call_model(module, inputs)
            fewer = call_model(module, [tensor[:-1] for tensor in inputs]) if rows > 2 else []
        if len(outputs) != len(fields.labels):
            raise DataError(
                f"{self.takes} returned {len(outputs)} tensors for {len(fields.labels)} label columns: one each is "
                "needed."
            )
        for output, field in zip(outputs, fields.labels, strict=True):
            if not output.dim() or len(output) != rows:
                raise DataError(
                    f"{self.takes} returned {list(output.shape)} for a batch of {rows} rows with the label "
                    f"{field.name!r}: the first dimension must be the batch."
                )
        widths = tuple(output.numel() // len(output) for output in outputs)
        for output, width, field in zip(fewer, widths, fields.labels, strict=False):
            if output.numel() != width * (rows - 1):
                raise DataError(
                    f"{self.takes}'s output for {field.name!r} has {width} values a row for {rows} rows, and another "
                    f"number for one row less: it mixes rows. {describe_fields(fields)}{RESHAPE}"
                )
        return widths


def _step_without_trainer(module: Any, batch: Named) -> Any:
    taken = inspect.signature(module.training_step).parameters
    output = module.training_step(*((batch, 0) if len(taken) > 1 else (batch,)))
    loss = output.get("loss") if isinstance(output, Mapping) else output
    if isinstance(loss, torch.Tensor) and loss.numel() == 1:
        loss.backward()
    return loss


def _step_with_trainer(flavour: str, module: Any, batch: Named) -> tuple[Any, Any]:
    """Make one step by a Trainer of this process: see `LightningTrial._try_step`."""
    base: Any = importlib.import_module(flavour).LightningModule
    copied = copy.deepcopy(module)
    try:
        return copied, _fit_batch(flavour, copied, batch)
    except Exception:
        if all(getattr(type(module), name) is getattr(base, name) for name in _STARTS):
            raise
        return module, _fit_batch(flavour, module, batch, _STARTS)


def _fit_batch(flavour: str, module: Any, batch: Named, hooks: Sequence[str] = ()) -> Any:
    """Return the result of a step of a Trainer.

    Args:
        hooks: of the module, that are called.
    """
    package: Any = importlib.import_module(flavour)
    losses: list[Any] = []

    class Keeping(package.Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, *args: Any) -> None:
            losses.append(outputs.get("loss") if isinstance(outputs, Mapping) else None)

    off = ("checkpointing", "progress_bar", "model_summary")
    trainer = package.Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=1,
        limit_val_batches=0,
        logger=importlib.import_module(f"{flavour}.loggers.logger").DummyLogger(),
        callbacks=[Keeping()],
        use_distributed_sampler=False,
        **{f"enable_{name}": False for name in off},
    )
    for name in dir(package.LightningModule):
        if name.startswith("on_") and name not in (*hooks, *_OF_BATCHES):
            module.__dict__[name] = _do_nothing
    for name in ("configure_callbacks", "prepare_data", "teardown"):
        module.__dict__[name] = _do_nothing
    with hide_epoch_ends(module):
        trainer.fit(module, _One(batch))
    return losses[0] if losses and module.automatic_optimization else None


def _do_nothing(*args: Any, **keywords: Any) -> None:
    """Replace a hook."""


class _One:
    """A loader of one batch."""

    def __init__(self, batch: Named) -> None:
        self._batch = batch

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[Named]:
        return iter([self._batch])


@contextmanager
def _silence_warnings(flavour: str) -> Iterator[None]:
    """Silence Lightning's warnings about a module without a Trainer, and a Trainer without a logger."""
    log = logging.getLogger(flavour)
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)
