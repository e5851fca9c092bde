"""Callbacks for ``model.fit`` on many ranks: one starting state, one set of metrics, a learning rate that warms up."""

from __future__ import annotations

import functools
import math
import numbers
from collections.abc import Callable
from typing import Any

from spark_estimator.collectives import context
from spark_estimator.collectives.objects import allgather_object
from spark_estimator.keras.importing import is_keras_2, keras
from spark_estimator.keras.lockstep import begin_together, end_epoch_together
from spark_estimator.keras.optimizers import build, find_schedule, list_velocities, read_momentum, read_rate, set_rate
from spark_estimator.keras.starting_state import broadcast_variables, list_training_variables
from spark_estimator.keras.variables import assign, copy_value
from spark_estimator.observe.progress import count_step

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]


class HorovodCallback(keras.callbacks.Callback):  # type: ignore[misc,unused-ignore]
    """A callback for a model of either Keras, whichever of them its base class belongs to."""

    # Keras 2 asks all its callbacks for these, and those of Keras 3 lack them.
    _supports_tf_logs = False
    _chief_worker_only: bool | None = None

    def _implements_train_batch_hooks(self) -> bool:
        return True

    def _implements_test_batch_hooks(self) -> bool:
        return False

    def _implements_predict_batch_hooks(self) -> bool:
        return False


class BroadcastGlobalVariablesCallback(HorovodCallback):
    """Gives all ranks the root's weights and optimizer state, once, before the first batch. All ranks have it.

    A model that is not built by then is broadcast after its first batch, as is every model where ``on_batch_end`` has
    been replaced, in a subclass or on the object: Horovod broadcasts there, and such code comes before it. It also
    compares how many batches the ranks have, and has all ranks stop after the same epoch; see ``keras.lockstep``.

    Args:
        root_rank: whose state counts.
        device: without effect.
        local_variables: variables that stay as they are on each rank, or one of them.

    Raises:
        ValueError: one of them is no variable.
    """

    def __init__(self, root_rank: int = 0, device: str = "", local_variables: Any = None) -> None:
        super().__init__()
        self.root_rank = root_rank
        self.broadcast_done = False
        self._local: set[int] = set()
        if local_variables is not None and not isinstance(local_variables, (list, tuple, set)):
            local_variables = [local_variables] if hasattr(local_variables, "assign") else local_variables
        for variable in [] if local_variables is None else local_variables:
            if not hasattr(variable, "assign"):
                raise ValueError(f"local_variables must be variables, and one is {variable!r}.")
            self.register_local_var(variable)

    def register_local_var(self, var: Any) -> None:
        """Has a variable stay as it is on each rank.

        Raises:
            RuntimeError: it has the root's values by now.
        """
        if self.broadcast_done and id(var) not in self._local:
            raise RuntimeError(
                f"register_local_var: variable {getattr(var, 'name', var)!r} has already been broadcast on rank "
                f"{context.rank()}. Register it before fit()."
            )
        self._local.add(id(var))

    def on_train_begin(self, logs: Any = None) -> None:
        """Broadcasts, if there is something by now."""
        begin_together(self.model, self.params)
        if self.model.built and not _is_in_graph(self.model) and not self._batch_end_is_replaced():
            optimizer = getattr(self.model, "optimizer", None)
            if optimizer is not None:  # TensorFlow's trainer leaves that to the first batch
                build(optimizer, self.model.trainable_variables)
            self._broadcast()

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        """Broadcasts what the first batch has built."""
        if not self.broadcast_done:
            sync_jax_state(self.model)
            self._broadcast()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Call `on_batch_end`, and count the step for the progress reports."""
        count_step()
        self.on_batch_end(batch, logs)

    def _batch_end_is_replaced(self) -> bool:
        return getattr(self.on_batch_end, "__func__", None) is not BroadcastGlobalVariablesCallback.on_batch_end

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Compare how many batches the ranks had; see ``keras.lockstep``."""
        end_epoch_together(self.model, epoch)

    def _broadcast(self) -> None:
        if not self.broadcast_done:
            variables = [v for v in list_training_variables(self.model) if id(v) not in self._local]
            broadcast_variables(variables, self.root_rank)
            self.broadcast_done = True


class MetricAverageCallback(HorovodCallback):
    """Replaces each metric of an epoch by its mean over the ranks that have it, on all ranks. All ranks have it.

    Put it before callbacks that read metrics, such as `EarlyStopping` and `ReduceLROnPlateau`. A metric that some ranks
    lack, such as ``val_loss`` where only rank 0 validates, is sent to all.

    Args:
        device: without effect.
    """

    def __init__(self, device: str = "") -> None:
        super().__init__()

    def on_train_begin(self, logs: Any = None) -> None:
        """Has all ranks stop after the same epoch; see ``keras.lockstep``."""
        begin_together(self.model, self.params)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Averages ``logs`` in place, where the ranks had equally many batches."""
        end_epoch_together(self.model, epoch)
        if logs is None or context.size() == 1:
            return
        averages = {key: number for key in sorted(logs) if (number := _to_number(logs[key])) is not None}
        of_ranks: list[dict[str, float]] = allgather_object(averages, name="keras.MetricAverageCallback")
        for key in sorted({key for of_rank in of_ranks for key in of_rank}):
            values = [of_rank[key] for of_rank in of_ranks if key in of_rank]
            logs[key] = math.fsum(values) / len(values) if all(map(math.isfinite, values)) else sum(values)


class LearningRateScheduleCallback(HorovodCallback):
    """Sets the learning rate to ``initial_lr * multiplier(epoch)`` in the epochs from start to end.

    With several of them one after another, such as a warm-up and then steps, a training has all of its schedule.

    Args:
        initial_lr: what the multiplier counts from.
        multiplier: a function of the epoch, or a number, by whose power it falls from epoch to epoch.
        start_epoch: the first epoch, counted from 0.
        end_epoch: the first epoch after them; None: there is none.
        staircase: the rate changes at the start of an epoch; without it with each batch, the epoch being a fraction.
        momentum_correction: what momentum has gathered is scaled along with the rate (optimizers with ``momentum``), so
            that a step of the past keeps its size relative to new ones.
        steps_per_epoch: batches in an epoch; None: the number that ``fit`` reports.

    Raises:
        ValueError: `initial_lr` is missing or no number.
    """

    def __init__(
        self,
        initial_lr: Any,
        multiplier: Callable[[float], float] | float,
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        if isinstance(initial_lr, bool) or not (isinstance(initial_lr, numbers.Real) or hasattr(initial_lr, "dtype")):
            raise ValueError(
                f"initial_lr={initial_lr!r} must be a number: the learning rate that the schedule multiplies."
            )
        self.initial_lr = float(initial_lr)
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self.current_epoch = 0
        self._first_of_epoch = True
        # a number for all epochs falls by its power, in steps or not as it is asked
        self.staircase = staircase
        self.multiplier: Callable[[float], float] = (
            multiplier if callable(multiplier) else lambda epoch: float(multiplier) ** (epoch - start_epoch)
        )

    def on_train_begin(self, logs: Any = None) -> None:
        """Find out how long an epoch is."""
        if find_schedule(self.model.optimizer) is not None:
            raise ValueError(
                f"{type(self).__name__}: the optimizer has a LearningRateSchedule, so its learning rate cannot be "
                "set. Pass a number as learning_rate, or remove the callback."
            )
        if not self.staircase and self.steps_per_epoch is None:
            params = self.params or {}
            self.steps_per_epoch = params.get("steps")
            if not self.steps_per_epoch and params.get("samples") and params.get("batch_size"):  # in a graph of Keras 2
                self.steps_per_epoch = params["samples"] // params["batch_size"]
            if not self.steps_per_epoch:
                raise ValueError(
                    f"{type(self).__name__}: the number of steps per epoch is unknown; pass steps_per_epoch=."
                )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Note the epoch."""
        self.current_epoch = epoch
        self._first_of_epoch = True

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Set the rate."""
        first, self._first_of_epoch = self._first_of_epoch, False
        if self.current_epoch < self.start_epoch or (
            self.end_epoch is not None and self.current_epoch >= self.end_epoch
        ):
            return
        if not self.staircase:
            assert self.steps_per_epoch is not None
            self._adjust(self.current_epoch + batch / self.steps_per_epoch)
        elif first:
            self._adjust(self.current_epoch)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Put the rate into ``logs["lr"]``."""
        if logs is not None:
            logs["lr"] = self._read_rate()

    def _read_rate(self) -> float:
        return read_rate(self.model.optimizer)

    def _adjust(self, epoch: float) -> None:
        sync_jax_state(self.model)
        old, new = self._read_rate(), self.initial_lr * self.multiplier(epoch)
        optimizer = self.model.optimizer
        set_rate(optimizer, new)
        if self.momentum_correction and old > 0 and new != old and read_momentum(optimizer) > 0:
            # Keras' velocity holds the rates of its past: scaled once, it is as if they had been the new one.
            for velocity in list_velocities(optimizer):
                assign(velocity, copy_value(velocity) * (new / old))


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate from ``initial_lr / size`` to ``initial_lr`` over the first epochs, with each batch.

    Args:
        initial_lr: the rate afterwards: usually that of one rank times ``hvd.size()``.
        warmup_epochs: how many epochs it takes; 0: the rate stays as it is.
        momentum_correction, steps_per_epoch: as for `LearningRateScheduleCallback`.
        verbose: 1: rank 0 prints the rate that is reached.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: float = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        def multiplier(epoch: float) -> float:
            size = context.size()
            # at the end of the batch that begins at `epoch`
            done = min(epoch + 1.0 / (self.steps_per_epoch or 1), warmup_epochs)
            return 1.0 / size * (done * (size - 1) / warmup_epochs + 1)

        super().__init__(
            initial_lr,
            multiplier,
            start_epoch=0,
            end_epoch=math.ceil(warmup_epochs),
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Put the rate into ``logs["lr"]``."""
        super().on_epoch_end(epoch, logs)
        if self.end_epoch is not None and epoch == self.end_epoch - 1 and self.verbose > 0 and context.rank() == 0:
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {self._read_rate():g}.")


class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):  # type: ignore[misc,unused-ignore]
    """Keeps the model of the best epoch so far. Usually on rank 0 only, after `MetricAverageCallback`.

    The order of arguments is that of ``horovod.keras``; ``horovod.tensorflow.keras`` has another one.

    Args:
        monitor: the metric that decides.
        verbose, mode, save_freq, save_weights_only: as for Keras' ``ModelCheckpoint``.
        filepath: where; else set the attribute `filepath` before training.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        mode: str = "auto",
        save_freq: Any = "epoch",
        *,
        save_weights_only: bool = False,
        filepath: str | None = None,
    ) -> None:
        super().__init__(
            filepath or ("best.weights.h5" if save_weights_only else "best.keras"),
            monitor=monitor,
            verbose=verbose,
            save_best_only=True,
            save_weights_only=save_weights_only,
            mode=mode,
            save_freq=save_freq,
        )
        self.filepath = filepath
        self._arguments = {
            "monitor": monitor,
            "verbose": verbose,
            "mode": mode,
            "save_freq": save_freq,
            "save_weights_only": save_weights_only,
            "filepath": filepath,
        }

    def __reduce_ex__(self, protocol: Any) -> Any:
        # Made again when unpickled: its base class may be that of the other Keras there, with other attributes.
        if not type(self).__module__.startswith("spark_estimator."):
            return super().__reduce_ex__(protocol)
        return functools.partial(type(self), **self._arguments | {"filepath": self.filepath}), ()

    def on_train_begin(self, logs: Any = None) -> None:
        """Raise ValueError when no file path has been set."""
        if not self.filepath:
            raise ValueError("BestModelCheckpoint: set its attribute filepath, or give filepath=, before training.")
        super().on_train_begin(logs)


def _is_in_graph(model: Any) -> bool:
    """Return whether a model of Keras 2 is trained in a graph of TensorFlow 1: variables have values once it runs."""
    if not is_keras_2(model):
        return False
    import tensorflow as tf

    return not tf.executing_eagerly()


def sync_jax_state(model: Any) -> None:
    """Put the variables' values back, which the trainer holds while an epoch runs on the JAX backend."""
    sync = getattr(model, "jax_state_sync", None)
    if sync is not None:
        sync()


def _to_number(value: Any) -> float | None:
    """Return a metric as a number; None where it is none."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return None
