"""Keras' objects on their way: models as ``.keras`` bytes, losses, metrics and optimizers by class and configuration.

Whatever is opened is new: a fit changes nothing of the objects that the user has given.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import random
import tempfile
import types
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle
import numpy

from spark_estimator.errors import DataError
from spark_estimator.keras.importing import keras


@dataclass(frozen=True)
class Recipe:
    """What a model is compiled with.

    Attributes:
        state: of the optimizer's variables, where it has been trained with; None: it begins anew.
        run_eagerly: steps run op by op.
        compiles: False: no XLA or the like, as the user's model says.
    """

    optimizer: Any
    state: list[Any] | None
    loss: Any
    loss_weights: Any
    metrics: Any
    weighted_metrics: Any
    run_eagerly: bool = False
    compiles: bool = True

    def compile(self, model: Any) -> None:
        """Compiles the model with these objects; a recipe is used once."""
        model.compile(
            optimizer=self.optimizer,
            loss=self.loss,
            loss_weights=self.loss_weights,
            metrics=self.metrics,
            weighted_metrics=self.weighted_metrics,
            run_eagerly=self.run_eagerly,
            jit_compile="auto" if self.compiles else False,
        )

    def restore(self, model: Any) -> None:
        """Builds the optimizer, and gives it what it has gathered before, if that fits."""
        optimizer = model.optimizer
        if not optimizer.built:
            optimizer.build(model.trainable_variables)
        own = optimizer.variables
        if self.state is not None and [tuple(one.shape) for one in own] == [one.shape for one in self.state]:
            assign(own, self.state)


def assign(variables: Any, values: Any) -> None:
    """Gives variables their values, one each."""
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def values_of(variables: Any) -> list[Any]:
    """[variables] copies of their values, as arrays."""
    return [numpy.array(keras.ops.convert_to_numpy(variable)) for variable in variables]


class _Packer(cloudpickle.Pickler):
    """Takes of Keras' losses, metrics and optimizers their classes and configurations."""

    def reducer_override(self, one: Any) -> Any:
        kinds = (keras.losses.Loss, keras.metrics.Metric, keras.optimizers.Optimizer)
        if isinstance(one, kinds) and not isinstance(one, type):
            return _made, (type(one), one.get_config())
        return super().reducer_override(one)


def _made(kind: Any, config: dict[str, Any]) -> Any:
    return kind.from_config(config)


def packed(what: str, content: Any) -> bytes:
    """Objects as bytes.

    Args:
        what: they are, for the message.

    Raises:
        DataError: one of them cannot travel.
    """
    stream = io.BytesIO()
    try:
        _Packer(stream).dump(content)
    except Exception as error:
        raise DataError(f"{what} cannot be sent to the processes: {type(error).__name__}: {error}") from error
    return stream.getvalue()


def opened(content: bytes, custom_objects: Mapping[str, Any] | None = None) -> Any:
    """New objects, of what `packed` has made: on the driver, or of what the driver has sent."""
    with keras.saving.custom_object_scope(dict(custom_objects or {})):
        return pickle.loads(content)  # noqa: S301  # from the driver


def dumped(model: Any) -> bytes:
    """A model as the bytes of a ``.keras`` file, its optimizer's state included.

    Raises:
        DataError: Keras cannot save it; the text has what it says.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.keras"
        try:
            with warnings.catch_warnings():
                # The ranks build what is not built.
                warnings.filterwarnings("ignore", message=".*has not yet been built")
                keras.saving.save_model(model, file)
        except Exception as error:
            raise DataError(
                f"Keras cannot save the model {getattr(model, 'name', model)!r}, so that it cannot be sent: "
                f"{type(error).__name__}: {error}. A class of your own needs get_config()."
            ) from error
        return file.read_bytes()


def loaded(content: bytes, custom_objects: Mapping[str, Any], *, compile: bool = False) -> Any:
    """The model of bytes that `dumped` has made in this training: they may hold lambdas of the user's.

    Raises:
        DataError: Keras cannot read it; the text has what it says.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.keras"
        file.write_bytes(content)
        try:
            return keras.saving.load_model(file, custom_objects=dict(custom_objects), compile=compile, safe_mode=False)
        except Exception as error:
            raise DataError(
                f"Keras cannot load the model that it has saved: {type(error).__name__}: {_first_line(error)}. Name "
                "your own classes and functions in custom_objects={...}; a class needs get_config()."
            ) from error


def digest_of(content: bytes, model: Any) -> bytes:
    """32 bytes, the same for the same architecture and weights.

    Args:
        content: what `dumped` has made of the model.
    """
    digest = hashlib.sha256()
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        digest.update(archive.read("config.json"))
    for value in values_of(model.weights):
        digest.update(value.tobytes())
    return digest.digest()


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "").removesuffix(".")


def custom_objects_of(model: Any, *others: Any) -> dict[str, Any]:
    """The user's classes and functions that a model and other objects are made of, by the names that Keras looks for.

    What is registered (``keras.saving.register_keras_serializable``), layers' classes and the functions that they hold.
    """
    found: dict[str, Any] = dict(keras.saving.get_custom_objects())
    holders = [*_layers(model), *others]
    for holder in holders:
        for one in (type(holder), holder, *getattr(holder, "__dict__", {}).values()):
            if isinstance(one, (type, types.FunctionType)) and _is_users(one):
                found.setdefault(keras.saving.get_registered_name(one), one)
    return found


def _layers(model: Any) -> list[Any]:
    return list(model._flatten_layers()) if hasattr(model, "_flatten_layers") else [model]


def _is_users(one: Any) -> bool:
    package = str(getattr(one, "__module__", "")).partition(".")[0]
    known = {"keras", "builtins", "tensorflow", "torch", "jax", "numpy", "spark_estimator"}
    return package not in known and one.__name__ != "<lambda>"


@contextmanager
def chance_kept() -> Iterator[None]:
    """Python's and NumPy's chance is afterwards as it was: Keras draws from them when it makes layers."""
    python, arrays = random.getstate(), numpy.random.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        numpy.random.set_state(arrays)
