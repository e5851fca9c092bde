"""Elastic training in TensorFlow: ``hvd.elastic.run``, ``TensorFlowState``, ``TensorFlowKerasState``.

::

    @hvd.elastic.run
    def train(state):
        for state.batch in range(state.batch, 1000):
            ...                                          # one step of state.model and state.optimizer
            if state.batch % 10 == 0:
                state.commit()

    train(hvd.elastic.TensorFlowKerasState(model, optimizer, batch=0))

See ``spark_estimator.elastic`` for what happens when a rank is lost or joins. Between ``hvd.init()`` and `train`
there must be no collectives: a process that joins later would wait in them for ranks that have already passed them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import tensorflow as tf

from spark_estimator import errors
from spark_estimator.collectives import context
from spark_estimator.collectives.objects import broadcast_object
from spark_estimator.elastic import HorovodInternalError, HostsUpdatedInterrupt, ObjectState, State, rejoin, run_fn
from spark_estimator.tensorflow.starting_state import broadcast_variables, unwrap_variable
from spark_estimator.tensorflow.works import broadcast_arrays

__all__ = [
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "ObjectState",
    "State",
    "TensorFlowKerasState",
    "TensorFlowState",
    "run",
]

ValueT = TypeVar("ValueT")

# The most specific first: the text of TensorFlow's error contains the name of what a collective raised.
_FAILURES = (errors.PeerLostError, errors.ShutDownError, errors.MismatchError, errors.HorovodInternalError)


def run(func: Callable[..., ValueT]) -> Callable[..., ValueT]:
    """Decorate ``func(state, ...)``, a training that continues when the job loses or gains a rank.

    Args:
        func: gets a `State`, usually a `TensorFlowKerasState`, and takes up its work from there.

    Returns:
        A function that is called like `func`, after ``hvd.init()``, on all ranks, and returns what that returns.

    Raises:
        HorovodInternalError: the same failure repeats.
        PeerLostError: a rank is lost, and the job is not elastic (``horovodrun --min-np`` starts one).
    """

    @functools.wraps(func)
    def translate_failures(*args: Any, **kwargs: Any) -> ValueT:
        try:
            return func(*args, **kwargs)
        except tf.errors.OpError as error:
            failure = find_failure(error)
            if failure is None:
                raise
            raise failure from error

    return run_fn(translate_failures, rejoin)


def find_failure(error: Exception) -> HorovodInternalError | None:
    """Return the error of a collective in a graph, from TensorFlow's error; None if it was not a collective."""
    text = str(error)
    for kind in _FAILURES:
        _before, separator, after = text.partition(f"{kind.__name__}: ")
        if separator:
            return kind(after.partition("\nTraceback")[0].strip())
    return None


class TensorFlowState(ObjectState):
    """Variables, eager or of a session, and plain objects.

    Args:
        variables: ``tf.Variable`` or Keras variables; None: all global variables of the session's graph.
        session: of TensorFlow 1; None: variables are eager.
        kwargs: other values to keep, as attributes; for example ``batch=0``.

    Raises:
        ValueError: a name is one that the state uses itself, or there are neither variables nor a session.
    """

    def __init__(self, variables: Iterable[Any] | None = None, session: Any = None, **kwargs: Any) -> None:
        if variables is None:
            if session is None:
                raise ValueError("TensorFlowState: pass variables, or a session to use its global variables.")
            with session.graph.as_default():
                variables = tf.compat.v1.global_variables()
        self._passed_variables = list(variables)
        self._session = session
        self._saved_values: list[Any] = []
        super().__init__(broadcast_object, context.rank, **kwargs)
        self._saved_values = self._read_values()

    @property
    def variables(self) -> list[Any]:
        """Return the variables whose values the state keeps."""
        return list(self._passed_variables)

    def _list_variables(self) -> Sequence[Any]:
        return [unwrap_variable(variable, type(self).__name__) for variable in self._passed_variables]

    def _read_values(self) -> list[Any]:
        variables = self._list_variables()
        if self._session is not None:
            return list(self._session.run([variable.read_value() for variable in variables]))
        return [variable.read_value().numpy() for variable in variables]

    def _assign(self, values: Sequence[Any]) -> None:
        for variable, value in zip(self._list_variables(), values, strict=True):
            if self._session is not None:
                variable.load(value, self._session)
            else:
                variable.assign(value)

    def save(self) -> None:
        """Copy everything into host memory."""
        self._saved_values = self._read_values()
        super().save()

    def restore(self) -> None:
        """Restores the last saved state."""
        self._assign(self._saved_values)
        super().restore()

    def sync(self) -> None:
        """Copy all of rank 0's values, then save them: a failure half way leaves the last commit whole."""
        if self._session is not None:
            self._assign(broadcast_arrays(self._read_values(), 0, "elastic.variables", None))
        else:
            broadcast_variables(self._list_variables(), 0)
        super().sync()


class TensorFlowKerasState(TensorFlowState):
    """A Keras model with its optimizer, and plain objects.

    Args:
        model: built; ``state.model``.
        optimizer: ``state.optimizer``; None: that with which the model was compiled, if any.
        backend: accepted for Horovod's signature.
        kwargs: as for `TensorFlowState`.

    Raises:
        ValueError: the model has no variables yet; else as for `TensorFlowState`.
    """

    def __init__(self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any) -> None:
        if not getattr(model, "built", True):
            raise ValueError("TensorFlowKerasState: build the model first, as by model.build(input_shape).")
        optimizer = optimizer if optimizer is not None else getattr(model, "optimizer", None)
        # Keras makes an optimizer's variables at the first step, unless it is asked for them.
        if optimizer is not None and not isinstance(optimizer, tf.compat.v1.train.Optimizer):
            from spark_estimator.keras.optimizers import build

            build(optimizer, model.trainable_variables)
        self._owners = [owner for owner in (model, optimizer) if owner is not None]
        super().__init__([], **kwargs)
        self.backend = backend
        self.model = model
        self.optimizer = optimizer
        self._saved_values = self._read_values()

    def _list_variables(self) -> Sequence[Any]:
        listed: list[Any] = []
        for owner in self._owners:
            variables = owner.variables() if callable(owner.variables) else owner.variables
            listed += [unwrap_variable(variable, type(self).__name__) for variable in variables]
        return listed
