"""The user's Keras callbacks on a rank, with the logs of all ranks; and one that chooses the returned model."""

from __future__ import annotations

import contextlib
import copy
import functools
import math
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from datetime import date, timedelta
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy

from spark_estimator import log
from spark_estimator._native import ReduceOp
from spark_estimator.collectives import arrays, context
from spark_estimator.estimators.keras.history import flattened
from spark_estimator.estimators.keras.objects import opened
from spark_estimator.estimators.keras.spec import KerasParts
from spark_estimator.keras.callbacks import HorovodCallback, LearningRateScheduleCallback
from spark_estimator.keras.importing import keras_of
from spark_estimator.keras.optimizers import rate_of
from spark_estimator.keras.rates import use_rate_of_one_process

_COPIED_BYTES = 1 << 20
_SIMPLE = (bool, int, float, complex, str, bytes, date, timedelta, numpy.generic, numpy.ufunc)
_log = log.logger(__name__)


class _Last(HorovodCallback):
    """Notes what the others have made of an epoch's logs, as Keras' own History does."""

    logs: dict[str, Any]

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.logs = dict(logs or {})


def _begin_at_rate_of(optimizer: Any, callbacks: Sequence[Any]) -> None:
    """Sets the optimizer's rate, which is multiplied by the number of ranks, as the ``initial_lr`` of Horovod's
    schedules, as Horovod's estimator does."""
    rate = rate_of(optimizer)
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
        saves_best: there is a ``checkpoint_callback``.
        want_to_stop: some rank's callback has set ``model.stop_training``.
    """

    def __init__(self, parts: KerasParts, model: Any, epochs: int, steps: int) -> None:
        custom = opened(parts.custom_objects)
        callbacks = opened(parts.callbacks, custom)
        _begin_at_rate_of(model.optimizer, callbacks)
        self._checkpoint_callback = opened(parts.checkpoint_callback, custom)
        self.saves_best = self._checkpoint_callback is not None
        self._saves: Any = None
        self._last = _Last()
        self._on_all = list(callbacks)
        self._model = model
        self._model.stop_training = False
        self._numbers = {"epochs": epochs, "steps": steps}
        self._list = self._listed(self._on_all)
        self.take_rank()
        self.want_to_stop = False

    def take_rank(self) -> None:
        """Calls ``checkpoint_callback`` if this process is rank 0, also where it has become that since."""
        if context.rank() != 0 or self._saves is not None or not self.saves_best:
            return
        self._saves = self._checkpoint_callback
        self._folder = tempfile.TemporaryDirectory(prefix="checkpoint_")
        name = "model.weights.h5" if self._saves.save_weights_only else "model.keras"
        self._saves.filepath = str(Path(self._folder.name) / name)
        # A file holds the rate of one process: it may be read after a change of the number of ranks.
        hooks = ["on_epoch_end"] if self._saves.save_freq == "epoch" else ["on_epoch_end", "on_train_batch_end"]
        for hook in hooks:
            setattr(self._saves, hook, self._at_rate_of_one_process(getattr(self._saves, hook)))
        self._list = self._listed([*self._on_all, self._saves])

    def _at_rate_of_one_process(self, hook: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(hook)
        def call(*args: Any, **kwargs: Any) -> None:
            with use_rate_of_one_process(self._model.optimizer, context.size()):
                hook(*args, **kwargs)

        return call

    def take_size(self, factor: int) -> None:
        """Gives Horovod's schedules the ``initial_lr`` of the present number of ranks.

        Args:
            factor: the number by which it is multiplied.
        """
        for callback in self._on_all:
            if isinstance(callback, LearningRateScheduleCallback):
                callback.initial_lr *= context.size() / factor

    def _listed(self, callbacks: Sequence[Any]) -> Any:
        make = keras_of(self._model).callbacks.CallbackList
        settings = {"add_history": False, "add_progbar": False, "model": self._model, "verbose": 0, **self._numbers}
        return make([*callbacks, self._last], **settings)

    def on_train_begin(self) -> None:
        """As Keras'; the others, too."""
        self._list.on_train_begin()

    def on_train_end(self, logs: dict[str, Any]) -> None:
        self._list.on_train_end(logs)

    def on_epoch_begin(self, epoch: int) -> None:
        self._list.on_epoch_begin(epoch)

    def on_batch_begin(self, kind: str, number: int) -> None:
        """Of a batch: "train" or "test"."""
        getattr(self._list, f"on_{kind}_batch_begin")(number)

    def on_batch_end(self, kind: str, number: int, logs: dict[str, Any]) -> None:
        getattr(self._list, f"on_{kind}_batch_end")(number, logs)

    def on_test_begin(self) -> None:
        self._list.on_test_begin()

    def on_test_end(self, logs: dict[str, Any]) -> None:
        self._list.on_test_end(logs)

    def on_epoch_end(self, epoch: int, entry: dict[str, Any]) -> None:
        """Gives them the epoch, and keeps the numbers that they add to it. A collective."""
        known = flattened(entry)
        self._list.on_epoch_end(epoch, dict(known))
        logs = self._last.logs
        more = {name: number for name, value in logs.items() if name not in known and (number := _number(value))}
        if more:
            entry["more"] = {name: number[0] for name, number in more.items()}
        wants = numpy.array([bool(self._model.stop_training)], numpy.uint8)
        self.want_to_stop = bool(arrays.allreduce(wants, ReduceOp.MAX, "estimator.stop_training")[0])

    def state(self) -> dict[str, Any]:
        """On rank 0: what `checkpoint_callback` has kept."""
        if self._saves is None:
            return {}
        file = Path(self._saves.filepath)
        content = file.read_bytes() if file.exists() else b""
        best = getattr(self._saves, "best", None)
        return {"file": numpy.frombuffer(content, numpy.uint8), "best": None if best is None else float(best)}

    def take(self, state: dict[str, Any]) -> None:
        """Restores what `state` returned."""
        if self._saves is None or not state:
            return
        if len(state["file"]):
            Path(self._saves.filepath).write_bytes(state["file"].tobytes())
        self._saves.best = state["best"]

    def attributes(self) -> list[dict[str, Any]]:
        """[callbacks of all ranks] copies of their attributes, of values of which `_copied` makes copies."""
        result = []
        for callback in self._on_all:
            kept = {}
            for name, value in vars(callback).items():
                with contextlib.suppress(TypeError):
                    kept[name] = _copied(value)
            result.append(kept)
        return result

    def take_attributes(self, attributes: Sequence[dict[str, Any]]) -> None:
        """Restores what `attributes` returned, on this rank or on another."""
        for callback, values in zip(self._on_all, attributes, strict=True):
            for name, value in values.items():
                setattr(callback, name, _copied(value))
        self._model.stop_training = False

    def give_back(self) -> None:
        """On rank 0: load what `checkpoint_callback` has saved, if anything, with the learning rate of one process."""
        if self._saves is not None and Path(self._saves.filepath).exists():
            self._model.load_weights(self._saves.filepath)


def _copied(value: Any) -> Any:
    """A copy of a value that means the same in another process. Large arrays are not copied: callbacks replace them.

    Raises:
        TypeError: it may not: it is no number, string, array or function of a module, and no collection of these.
    """
    if isinstance(value, dict):
        copied = copy.copy(value)  # keeps its class
        for key, item in value.items():
            copied[key] = _copied(item)
        return copied
    if type(value) in (list, tuple, set, frozenset):
        return type(value)(map(_copied, value))
    if type(value) is deque:
        return deque(map(_copied, value), value.maxlen)
    if isinstance(value, numpy.ndarray) and value.dtype.kind != "O":
        return value.copy() if value.nbytes <= _COPIED_BYTES else value
    if value is None or isinstance(value, _SIMPLE) or _is_of_a_module(value):
        return value
    raise TypeError(f"{type(value).__name__} is not kept")


def _is_of_a_module(value: Any) -> bool:
    """Whether a function is found by its name, such as ``keras.ops.less``, with which callbacks compare epochs."""
    if not isinstance(value, FunctionType):
        return False
    return getattr(sys.modules.get(value.__module__), value.__name__, None) is value


def _number(value: Any) -> tuple[float] | None:
    try:
        return (float(value),)
    except (TypeError, ValueError):
        return None
