"""What collectives raise in TensorFlow: errors that are this package's and TensorFlow's, with Horovod's codes.

================================================  =====================================
what failed                                       TensorFlow's error
================================================  =====================================
ranks disagree (`MismatchError`)                  ``tf.errors.FailedPreconditionError``
``hvd.init()`` has not been called                ``tf.errors.FailedPreconditionError``
an argument (`ValueError`)                        ``tf.errors.InvalidArgumentError``
a rank is lost or has left, all others            ``tf.errors.UnknownError``
================================================  =====================================

Eagerly both kinds are caught. In a graph TensorFlow raises its own error, by the code of the failed node;
``hvd.elastic.run`` makes this package's of it.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from spark_estimator._native import Status
from spark_estimator.errors import DuplicateNameError, HorovodInternalError, MismatchError, NotInitializedError

#: The most specific first -> TensorFlow's class, and what a failed node returns.
_KINDS: tuple[tuple[type[Exception], Any, Status], ...] = (
    (MismatchError, tf.errors.FailedPreconditionError, Status.MISMATCH),
    (NotInitializedError, tf.errors.FailedPreconditionError, Status.MISMATCH),
    (DuplicateNameError, tf.errors.InvalidArgumentError, Status.INVALID_ARGUMENT),
    (HorovodInternalError, tf.errors.UnknownError, Status.INTERNAL),
    (ValueError, tf.errors.InvalidArgumentError, Status.INVALID_ARGUMENT),
)


@contextlib.contextmanager
def raise_as_tensorflow() -> Iterator[None]:
    """Raise errors inside of it as TensorFlow's errors, too."""
    try:
        yield
    except tuple(kind for kind, _, _ in _KINDS) as error:
        if isinstance(error, tf.errors.OpError):
            raise
        raise to_tensorflow_error(error) from error.__cause__


def to_tensorflow_error(error: Exception, of_tensorflow: Any = None) -> Exception:
    """Return an error of the same class and text that is one of TensorFlow's, too, by the table above or as asked."""
    kind = of_tensorflow or next(
        (tensorflow_class for kind, tensorflow_class, _ in _KINDS if isinstance(error, kind)), None
    )
    if kind is None:
        return error
    kind_of_error: Any = type(error)
    result: Exception = _combine_classes(kind_of_error, kind)(str(error))
    return result.with_traceback(error.__traceback__)


def find_status(error: BaseException) -> Status:
    """Return the status of a failed node, by which ``native/tensorflow`` chooses TensorFlow's error."""
    return next((status for kind, _, status in _KINDS if isinstance(error, kind)), Status.INTERNAL)


@functools.cache
def _combine_classes(kind: Any, of_tensorflow: Any) -> Any:
    def __init__(self: Any, message: str) -> None:
        of_tensorflow.__init__(self, None, None, message)

    namespace = {
        "__init__": __init__,
        "__str__": lambda self: str(self.message),
        "__reduce__": lambda self: (_restored, (kind, str(self))),
        "__module__": kind.__module__,
        "__doc__": kind.__doc__,
        # AutoGraph would raise its StagingError instead, as it cannot make an error of this class.
        "ag_pass_through": True,
    }
    return type(kind.__name__, (kind, of_tensorflow), namespace)


def _restored(kind: type[Exception], message: str) -> Exception:
    """Make an error that has been sent to another process, which may have no TensorFlow: this package's alone."""
    error = kind.__new__(kind)
    Exception.__init__(error, message)
    return error
