"""What the driver sends to the ranks of a `KerasEstimator`, and their choice of a backend, without importing Keras."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from spark_estimator.errors import DataError
from spark_estimator.estimators.persistence.run_identity import Identity

#: Of ``backend_env``, as in Horovod: the heap of the Java machine by which a process reaches HDFS.
DEFAULT_ENVIRONMENT = {"LIBHDFS_OPTS": "-Xms2048m -Xmx2048m"}


@dataclass(frozen=True)
class KerasParts:
    """A model and how it is trained. What is Keras' own is packed, so that it is opened when the backend is chosen.

    Attributes:
        backend: on which the model was made: Keras 3's, or "tf_keras", which is Keras 2.
        environment: variables that a rank gets before it imports Keras.
        model: the user's, as the bytes of a ``.keras`` file.
        custom_objects, recipe, callbacks, checkpoint_callback: packed by `keras_objects`.
        compression: of gradients.
        label_shapes: the estimator's parameter.
        identity: what distinguishes this training from another, except for its rows.
    """

    backend: str
    environment: Mapping[str, str]
    model: bytes = field(repr=False)
    custom_objects: bytes = field(repr=False)
    recipe: bytes = field(repr=False)
    callbacks: bytes = field(repr=False)
    checkpoint_callback: bytes = field(repr=False)
    compression: bytes = field(repr=False)
    label_shapes: list[list[int]] | None
    identity: Identity = field(repr=False)


def choose_backend(name: str, environment: Mapping[str, str] | None = None, *, use_gpu: bool = True) -> None:
    """Make this process' Keras run on a backend, or be Keras 2 for "tf_keras"; before it is imported.

    Raises:
        DataError: it was imported already, on another one.
    """
    for variable, value in (environment or {}).items():
        if DEFAULT_ENVIRONMENT.get(variable) == value:
            os.environ.setdefault(variable, value)
        else:
            os.environ[variable] = value
    if not use_gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
        if name == "jax":
            os.environ["JAX_PLATFORMS"] = "cpu"
    if name in ("tensorflow", "tf_keras"):
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # else each rank chooses by its own processor
    if name == "tf_keras":  # for the user's functions, too; a process may have both
        os.environ["TF_USE_LEGACY_KERAS"] = "1"
        return
    os.environ.pop("TF_USE_LEGACY_KERAS", None)
    keras = sys.modules.get("keras")
    if keras is None:
        os.environ["KERAS_BACKEND"] = name
    elif keras.backend.backend() != name:
        raise DataError(
            f"Keras runs on {keras.backend.backend()!r} in this process already, and the model was made on {name!r}: "
            f"set KERAS_BACKEND={name} where that is imported."
        )
