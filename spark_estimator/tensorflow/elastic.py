"""Elastic training in TensorFlow: ``hvd.elastic.run``, ``TensorFlowState``, ``TensorFlowKerasState``.

::

    @hvd.elastic.run
    def train(state):
        for state.batch in range(state.batch, 1000):
            ...                                          # one step of state.model and state.optimizer
            if state.batch % 10 == 0:
                state.commit()

    train(hvd.elastic.TensorFlowKerasState(model, optimizer, batch=0))

What happens when a rank is lost or comes stands in ``spark_estimator.elastic``. Between ``hvd.init()`` and `train`
there must be no collectives: a process that comes later would wait in them for ranks that are long past them.
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
from spark_estimator.tensorflow.starting_state import broadcast_variables, variable_of
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

# The most telling first: the text of an error of TensorFlow's holds the name of what a collective raised.
_FAILURES = (errors.PeerLostError, errors.ShutDownError, errors.MismatchError, errors.HorovodInternalError)


def run(func: Callable[..., ValueT]) -> Callable[..., ValueT]:
    """Decorates ``func(state, ...)``, a training that goes on when the job loses a rank or takes one in.

    Args:
        func: gets a `State`, usually a `TensorFlowKerasState`, and takes up its work from there.

    Returns:
        A function that is called like `func`, after ``hvd.init()``, on all ranks, and returns what that returns.

    Raises:
        HorovodInternalError: the job is not elastic (``horovodrun --min-np`` starts one), or the same failure repeats.
    """

    @functools.wraps(func)
    def translated(*args: Any, **kwargs: Any) -> ValueT:
        try:
            return func(*args, **kwargs)
        except tf.errors.OpError as error:
            failure = failure_of(error)
            if failure is None:
                raise
            raise failure from error

    return run_fn(translated, rejoin)


def failure_of(error: Exception) -> HorovodInternalError | None:
    """What a collective raised in a graph, from what TensorFlow made of it; None when it was no collective."""
    text = str(error)
    for kind in _FAILURES:
        _before, found, after = text.partition(f"{kind.__name__}: ")
        if found:
            return kind(after.partition("\nTraceback")[0].strip())
    return None


class TensorFlowState(ObjectState):
    """Variables, eager or of a session, and plain objects.

    Args:
        variables: ``tf.Variable`` or Keras variables; None: all global variables of the session's graph.
        session: of TensorFlow 1; None: variables are eager.
        kwargs: whatever else training must not lose, as attributes; for example ``batch=0``.

    Raises:
        ValueError: a name is one that the state uses itself, or there are neither variables nor a session.
    """

    def __init__(self, variables: Iterable[Any] | None = None, session: Any = None, **kwargs: Any) -> None:
        if variables is None:
            if session is None:
                raise ValueError("TensorFlowState: give variables, or the session whose global variables are meant.")
            with session.graph.as_default():
                variables = tf.compat.v1.global_variables()
        self._variables_given = list(variables)
        self._session = session
        self._saved_values: list[Any] = []
        super().__init__(broadcast_object, context.rank, **kwargs)
        self._saved_values = self._values()

    def _variables(self) -> Sequence[Any]:
        return [variable_of(each, type(self).__name__) for each in self._variables_given]

    def _values(self) -> list[Any]:
        variables = self._variables()
        if self._session is not None:
            return list(self._session.run([each.read_value() for each in variables]))
        return [each.read_value().numpy() for each in variables]

    def _assign(self, values: Sequence[Any]) -> None:
        for variable, value in zip(self._variables(), values, strict=True):
            if self._session is not None:
                variable.load(value, self._session)
            else:
                variable.assign(value)

    def save(self) -> None:
        """Copies everything into host memory."""
        self._saved_values = self._values()
        super().save()

    def restore(self) -> None:
        """Goes back to what was saved last."""
        self._assign(self._saved_values)
        super().restore()

    def sync(self) -> None:
        """Takes over all of rank 0's values, then saves them: a failure half way leaves the last commit whole."""
        if self._session is not None:
            self._assign(broadcast_arrays(self._values(), 0, "elastic.variables", None))
        else:
            broadcast_variables(self._variables(), 0)
        super().sync()


class TensorFlowKerasState(TensorFlowState):
    """A Keras model with its optimizer, and plain objects.

    Args:
        model: built; ``state.model``.
        optimizer: ``state.optimizer``; None: that with which the model was compiled, if any.
        backend: taken for Horovod's sake.
        kwargs: as for `TensorFlowState`.

    Raises:
        ValueError: the model has no variables yet; else as for `TensorFlowState`.
    """

    def __init__(self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any) -> None:
        if not getattr(model, "built", True):
            raise ValueError("TensorFlowKerasState: build the model first, as by model.build(input_shape).")
        optimizer = optimizer if optimizer is not None else getattr(model, "optimizer", None)
        # Keras 3 makes its variables at the first step, unless it is asked for them.
        if optimizer is not None and not getattr(optimizer, "built", True):
            optimizer.build(model.trainable_variables)
        self._owners = [each for each in (model, optimizer) if each is not None]
        super().__init__([], **kwargs)
        self.model = model
        self.optimizer = optimizer
        self._saved_values = self._values()

    def _variables(self) -> Sequence[Any]:
        listed: list[Any] = []
        for owner in self._owners:
            given = owner.variables() if callable(owner.variables) else owner.variables
            listed += [variable_of(each, type(self).__name__) for each in given]
        return listed
