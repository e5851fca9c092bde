"""Variables of either Keras: their values, and what they are in words, by which the ranks compare them."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable
from typing import Any

import numpy

from spark_estimator.keras.importing import keras_of


def find_keras_session() -> Any:
    """Return the session of Keras 2, in which a graph of TensorFlow 1 runs."""
    return importlib.import_module("tf_keras.api._v1.keras.backend").get_session()


def copy_value(variable: Any) -> Any:
    """Return a copy of a variable's value, as an array; in a graph of TensorFlow 1 that of Keras' session."""
    if not hasattr(variable, "read_value"):
        return numpy.array(keras_of(variable).ops.convert_to_numpy(variable))
    import tensorflow as tf

    if tf.executing_eagerly():
        return numpy.array(variable.numpy())
    return numpy.array(find_keras_session().run(variable.read_value()))


def assign(variable: Any, value: Any) -> None:
    """Give a variable its value; in a graph of TensorFlow 1 that of Keras' session."""
    if not hasattr(variable, "read_value"):
        variable.assign(value)
        return
    import tensorflow as tf

    if tf.executing_eagerly():
        variable.assign(value)
    else:
        variable.load(value, find_keras_session())


def describe_variables(variables: Iterable[Any]) -> list[str]:
    """Return name, type and shape of each variable: ``dense/kernel float32 (3, 4)``."""
    return [f"{make_plain_name(variable)} {_format_dtype(variable)} {tuple(variable.shape)}" for variable in variables]


def make_plain_name(variable: Any) -> str:
    """Return a variable's path without Keras' own numbers: ``dense_3/kernel`` is ``dense/kernel``.

    They depend on how many layers that process has made before, which may be another number on each rank. The
    variables of an optimizer have them within: ``adam/sequential_1_dense_3_kernel_momentum``.
    """
    path = str(getattr(variable, "path", None) or getattr(variable, "name", "variable"))
    return re.sub(r"_\d+(?=[_/]|$)", "", path)


def _format_dtype(variable: Any) -> str:
    return str(getattr(variable.dtype, "name", variable.dtype)).rpartition(".")[2]
