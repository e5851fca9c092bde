"""The user's Keras callbacks on a rank, with the logs of all ranks; and one that chooses the returned model."""

from __future__ import annotations

import copy
import functools
import math
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy

from spark_estimator import log
from spark_estimator._native import ReduceOp
from spark_estimator.collectives import arrays, context
from spark_estimator.estimators.keras.history import flatten_entry
from spark_estimator.estimators.keras.objects import unpack
from spark_estimator.estimators.keras.spec import KerasParts
from spark_estimator.keras.callbacks import HorovodCallback, LearningRateScheduleCallback
from spark_estimator.keras.importing import keras_of
from spark_estimator.keras.optimizers import read_rate
from spark_estimator.keras.rates import use_single_process_rate

_log = log.get_logger(__name__)


class _Last(HorovodCallback):
    """Notes what the others have made of an epoch's logs, as Keras' own History does."""

    logs: dict[str, Any]

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.logs = dict(logs or {})


def _begin_at_rate_of(optimizer: Any, callbacks: Sequence[Any]) -> None:
    """Set the optimizer's rate, which is multiplied by the number of ranks, as the ``initial_lr`` of Horovod's
    schedules, as Horovod's estimator does.
    """
    rate = read_rate(optimizer)
    for callback in callbacks:
        if isinstance(callback, LearningRateScheduleCallback):
            same = [math.isclose(callback.initial_lr, other, rel_tol=1e-6) for other in (rate, rate / context.size())]
            if context.rank() == 0 and not any(same):
                _log.warning(
                    "%s has initial_lr=%g: the optimizer's learning rate times the number of ranks, %g, takes its "
                    "place, as in Horovod.",
                    type(callback).__name__,
                    callback.initial_lr,
                    rate,
                )
            callback.initial_lr = rate


class KerasCallbacks:
    """Calls them, on every rank alike; ``checkpoint_callback`` on rank 0 alone.

    Attributes:
        want_to_stop: some rank's callback has set ``model.stop_training``.
    """

    _saves: Any = None

    def __init__(self, parts: KerasParts, model: Any, epochs: int, steps: int) -> None:
        custom = unpack(parts.custom_objects)
        callbacks = unpack(parts.callbacks, custom)
        _begin_at_rate_of(model.optimizer, callbacks)
        checkpoint_callback = unpack(parts.checkpoint_callback, custom)
        self._last = _Last()
        self._on_all = list(callbacks)
        self._initial = list(map(_copy_attributes, callbacks))
        self._model = model
        self._model.stop_training = False
        self._operations: Any = getattr(keras_of(model), "ops", None)  # not in Keras 2
        if checkpoint_callback is not None and context.rank() == 0:
            self._save_best_with(checkpoint_callback)
        make = keras_of(model).callbacks.CallbackList
        settings = {"add_history": False, "add_progbar": False, "model": model, "verbose": 0}
        called = [*callbacks, *([] if self._saves is None else [self._saves]), self._last]
        self._list = make(called, epochs=epochs, steps=steps, **settings)
        self.want_to_stop = False

    def _save_best_with(self, checkpoint_callback: Any) -> None:
        self._saves = checkpoint_callback
        self._folder = tempfile.TemporaryDirectory(prefix="checkpoint_")
        name = "model.weights.h5" if self._saves.save_weights_only else "model.keras"
        self._saves.filepath = str(Path(self._folder.name) / name)
        # A file holds the rate of one process: it may be read after a change of the number of ranks.
        hooks = ["on_epoch_end"] if self._saves.save_freq == "epoch" else ["on_epoch_end", "on_train_batch_end"]
        for hook in hooks:
            setattr(self._saves, hook, self._wrap_at_single_rate(getattr(self._saves, hook)))

    def _wrap_at_single_rate(self, hook: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(hook)
        def call(*args: Any, **kwargs: Any) -> None:
            with use_single_process_rate(self._model.optimizer, context.size()):
                hook(*args, **kwargs)

        return call

    def on_train_begin(self) -> None:
        """Call Keras' ``on_train_begin``, and note the callbacks' attributes."""
        self._list.on_train_begin()
        self._initial = list(map(_copy_attributes, self._on_all))

    def on_train_end(self, logs: dict[str, Any]) -> None:
        self._list.on_train_end(logs)

    def on_epoch_begin(self, epoch: int) -> None:
        self._list.on_epoch_begin(epoch)

    def on_batch_begin(self, kind: str, number: int) -> None:
        """Call the hook of a batch: "train" or "test"."""
        getattr(self._list, f"on_{kind}_batch_begin")(number)

    def on_batch_end(self, kind: str, number: int, logs: dict[str, Any]) -> None:
        getattr(self._list, f"on_{kind}_batch_end")(number, logs)

    def on_test_begin(self) -> None:
        self._list.on_test_begin()

    def on_test_end(self, logs: dict[str, Any]) -> None:
        self._list.on_test_end(logs)

    def on_epoch_end(self, epoch: int, entry: dict[str, Any]) -> None:
        """Pass the epoch to the callbacks, and keep the numbers that they add to it. A collective."""
        numbers = flatten_entry(entry)
        self._list.on_epoch_end(epoch, dict(numbers))
        logs = self._last.logs
        more = {name: number for name, value in logs.items() if name not in numbers and (number := _to_number(value))}
        if more:
            entry["more"] = {name: number[0] for name, number in more.items()}
        self.want_to_stop = self.is_stopping()

    def is_stopping(self) -> bool:
        """Return whether a callback of any rank has set ``model.stop_training``. A collective."""
        wants = numpy.array([bool(self._model.stop_training)], numpy.uint8)
        return bool(arrays.allreduce(wants, ReduceOp.MAX, "estimator.stop_training")[0])

    def stop(self) -> None:
        """End the training after this epoch, as a callback does."""
        self._model.stop_training = True

    def get_state(self) -> dict[str, Any]:
        """Return, on rank 0, what `checkpoint_callback` has kept, and what has changed in the others since
        `on_train_begin`.

        These are their plain attributes: numbers, strings, arrays, and lists and dicts of these; and functions of
        ``keras.ops``, with which Keras' callbacks compare epochs.
        """
        changed = {
            "attributes": [
                {key: value for key, value in _copy_attributes(each).items() if not _is_equal(value, initial.get(key))}
                for each, initial in zip(self._on_all, self._initial, strict=True)
            ],
            "comparisons": [_find_operations(each, self._operations) for each in self._on_all],
        }
        if self._saves is None:
            return changed
        file = Path(self._saves.filepath)
        content = file.read_bytes() if file.exists() else b""
        counted = {key: value for key, value in _copy_attributes(self._saves).items() if key != "filepath"}
        return {"file": numpy.frombuffer(content, numpy.uint8), "saves": counted, **changed}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` returned, after `on_train_begin`."""
        attributes = state["attributes"]
        if len(attributes) == len(self._on_all):
            for callback, values, operations in zip(self._on_all, attributes, state["comparisons"], strict=True):
                named = {key: getattr(self._operations, name) for key, name in operations.items()}
                for key, value in {**values, **named}.items():
                    setattr(callback, key, value)
        if self._saves is None or "file" not in state:
            return
        if len(state["file"]):
            Path(self._saves.filepath).write_bytes(state["file"].tobytes())
        for key, value in state["saves"].items():
            setattr(self._saves, key, value)

    def load_best_weights(self) -> None:
        """Load, on rank 0, what `checkpoint_callback` has saved, if anything, with the learning rate of one process."""
        if self._saves is not None and Path(self._saves.filepath).exists():
            self._model.load_weights(self._saves.filepath)


def _copy_attributes(callback: Any) -> dict[str, Any]:
    """Return copies of the attributes of a callback that a checkpoint can hold."""
    return {name: copy.deepcopy(value) for name, value in vars(callback).items() if _is_plain(value)}


def _find_operations(callback: Any, operations: Any) -> dict[str, str]:
    """Return the names of functions of ``keras.ops`` that a callback has in attributes."""
    named = {key: getattr(value, "__name__", "") for key, value in vars(callback).items() if callable(value)}
    return {key: name for key, name in named.items() if getattr(operations, name, None) is getattr(callback, key)}


def _is_plain(value: Any) -> bool:
    if type(value) is dict:
        return all(type(key) is str and _is_plain(item) for key, item in value.items())
    if type(value) is list:
        return all(map(_is_plain, value))
    if isinstance(value, numpy.ndarray):
        return value.dtype.kind in "biuf"
    return value is None or isinstance(value, (bool, int, float, str, numpy.bool_, numpy.integer, numpy.floating))


def _is_equal(value: Any, other: Any) -> bool:
    """Return whether two plain values are the same."""
    if isinstance(value, numpy.ndarray) or isinstance(other, numpy.ndarray):
        return type(value) is type(other) and value.dtype == other.dtype and numpy.array_equal(value, other)
    if type(value) is not type(other):
        return False
    if isinstance(value, list):
        return len(value) == len(other) and all(map(_is_equal, value, other))
    if isinstance(value, dict):
        return value.keys() == other.keys() and all(_is_equal(item, other[key]) for key, item in value.items())
    return bool(value == other)


def _to_number(value: Any) -> tuple[float] | None:
    try:
        return (float(value),)
    except (TypeError, ValueError):
        return None
