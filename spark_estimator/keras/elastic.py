"""Elastic training in Keras: ``hvd.elastic.run``, ``KerasState``, and callbacks that commit it while ``fit`` runs.

::

    @hvd.elastic.run
    def train(state):
        model.fit(
            dataset,
            epochs=10 - state.epoch,
            callbacks=[
                hvd.elastic.UpdateBatchStateCallback(state),
                hvd.elastic.UpdateEpochStateCallback(state),
                hvd.elastic.CommitStateCallback(state),       # last: it commits what the others have noted
            ],
        )

    train(hvd.elastic.KerasState(model, batch=0, epoch=0))

See ``spark_estimator.elastic`` for what happens when a rank is lost or joins.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from spark_estimator.collectives import context
from spark_estimator.collectives.objects import broadcast_object
from spark_estimator.elastic import HorovodInternalError, HostsUpdatedInterrupt, ObjectState, State, rejoin, run_fn
from spark_estimator.keras import exchange
from spark_estimator.keras.backends import load_backend
from spark_estimator.keras.callbacks import HorovodCallback, sync_jax_state
from spark_estimator.keras.importing import backend
from spark_estimator.keras.optimizers import build
from spark_estimator.keras.starting_state import broadcast_variables, list_training_variables
from spark_estimator.keras.variables import assign, copy_value

__all__ = [
    "CommitStateCallback",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "KerasState",
    "ObjectState",
    "State",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "run",
]

ValueT = TypeVar("ValueT")


def run(func: Callable[..., ValueT]) -> Callable[..., ValueT]:
    """Decorate ``func(state, ...)``, a training that continues when the job loses or gains a rank.

    Args:
        func: gets a `State`, usually a `KerasState`, and takes up its work from there.

    Returns:
        A function that is called like `func`, after ``hvd.init()``, on all ranks, and returns what that returns.

    Raises:
        HorovodInternalError: the same failure repeats.
        PeerLostError: a rank is lost, and the job is not elastic (``horovodrun --min-np`` starts one).
    """

    return run_fn(restore_engine_errors(func), rejoin)


def restore_engine_errors(func: Callable[..., ValueT]) -> Callable[..., ValueT]:
    """Return a function that raises the engine's errors, which TensorFlow and JAX convert in their graphs."""

    @functools.wraps(func)
    def call_func(*args: Any, **kwargs: Any) -> ValueT:
        exchange.failures.clear()
        try:
            return func(*args, **kwargs)
        except (HorovodInternalError, HostsUpdatedInterrupt):
            raise
        except Exception as error:
            cause = next((failure for failure in exchange.failures if isinstance(failure, HorovodInternalError)), None)
            if cause is None and backend() == "tensorflow":
                cause = load_backend("tensorflow").find_failure(error)
            if cause is None:
                raise
            raise cause from error
        finally:
            exchange.failures.clear()

    return call_func


class KerasState(ObjectState):
    """The state of a training in Keras: a model's weights, its optimizer's variables, and plain objects.

    Args:
        model: built; its optimizer is built here where it is not.
        optimizer: None: the model's.
        kwargs: other values to keep, for example ``batch=0, epoch=0``.

    Raises:
        ValueError: the model is not built, or a name is one that the state uses itself.
    """

    def __init__(self, model: Any, optimizer: Any = None, **kwargs: Any) -> None:
        if not model.built:
            raise ValueError(
                f"KerasState: model {model.name!r} is not built, so there is nothing to save. Add an Input, or call "
                "model.build(input_shape)."
            )
        self.model = model
        self.optimizer = getattr(model, "optimizer", None) if optimizer is None else optimizer
        if self.optimizer is not None:
            build(self.optimizer, model.trainable_variables)
        super().__init__(broadcast_object, context.rank, **kwargs)
        self._values: list[Any] = self._copy_values()

    def save(self) -> None:
        """Copy everything into host memory."""
        self._values = self._copy_values()
        super().save()

    def restore(self) -> None:
        """Restores the last saved state."""
        for variable, value in zip(self._list_variables(), self._values, strict=True):
            assign(variable, value)
        super().restore()

    def sync(self) -> None:
        """Take over all of rank 0's values, then save them. Collective."""
        broadcast_variables(self._list_variables(), root_rank=0)
        super().sync()

    def _list_variables(self) -> list[Any]:
        return list_training_variables(self.model, self.optimizer)

    def _copy_values(self) -> list[Any]:
        sync_jax_state(self.model)
        return [copy_value(variable) for variable in self._list_variables()]


class CommitStateCallback(HorovodCallback):
    """Commits the state every `batches_per_commit` batches, and at the end of each epoch. All ranks need it; put it
    last.

    Args:
        state: what is committed.
        batches_per_commit: how often; what a commit costs is a copy of the state and a message.
    """

    def __init__(self, state: State, batches_per_commit: int = 1) -> None:
        super().__init__()
        self._state = state
        self._batches = batches_per_commit
        self._left = batches_per_commit

    def on_train_begin(self, logs: Any = None) -> None:
        """Restarts the count: a process that has just joined must commit with the others."""
        self._left = self._batches

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Commit, if it is time. Raise HostsUpdatedInterrupt; see ``State.commit``."""
        self._left -= 1
        if self._left <= 0:
            self._left = self._batches
            self._state.commit()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Commit. Raise HostsUpdatedInterrupt; see ``State.commit``."""
        self._state.commit()


class UpdateBatchStateCallback(HorovodCallback):
    """Keeps in ``state.batch`` how many batches of the epoch are done, 0 between epochs.

    Keras 3 cannot begin in the middle of an epoch: where a resumed epoch is to be shortened, pass ``fit`` a data set
    that begins at ``state.batch``.

    Args:
        state: has an attribute `batch`.
    """

    def __init__(self, state: Any) -> None:
        super().__init__()
        self._state = state
        self._done = 0

    def on_train_begin(self, logs: Any = None) -> None:
        """Note where the epoch is taken up."""
        self._done = self._state.batch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Count the batch."""
        self._state.batch = self._done + batch + 1

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Restarts the count."""
        self._state.batch = self._done = 0


class UpdateEpochStateCallback(HorovodCallback):
    """Keeps in ``state.epoch`` how many epochs are done, over all calls of ``fit``.

    It serves ``fit(epochs=n - state.epoch)`` and ``fit(initial_epoch=state.epoch, epochs=n)`` alike.

    Args:
        state: has an attribute `epoch`.
    """

    def __init__(self, state: Any) -> None:
        super().__init__()
        self._state = state
        self._before: int | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Count the epochs of another call of ``fit`` from ``state.epoch``."""
        self._before = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Find out which epoch of the whole training this one is."""
        if self._before is None:
            self._before = self._state.epoch - epoch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Count the epoch."""
        self._state.epoch = (self._before or 0) + epoch + 1
