"""Serializes Keras objects: models as ``.keras`` bytes, losses, metrics and optimizers by class and configuration.

Opening makes new objects: a fit does not change the objects that the user passed.
"""

from __future__ import annotations

import copyreg
import hashlib
import inspect
import io
import json
import pickle
import random
import tempfile
import types
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle
import numpy

from spark_estimator.errors import DataError
from spark_estimator.keras import variables as keras_variables
from spark_estimator.keras.importing import imported, is_keras_2, keras_of, keras_of_version
from spark_estimator.keras.optimizers import build, is_optimizer, list_variables


@dataclass(frozen=True)
class Recipe:
    """The arguments of a model's compilation.

    Attributes:
        state: of the optimizer's variables, if it has been used in training; None: it starts without state.
        run_eagerly: steps run op by op.
        compiles: False: no XLA or other compiler, as in the user's model.
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
        """Compile the model with these objects; a recipe is used once."""
        model.compile(
            optimizer=self.optimizer,
            loss=self.loss,
            loss_weights=self.loss_weights,
            metrics=self.metrics,
            weighted_metrics=self.weighted_metrics,
            run_eagerly=self.run_eagerly,
            jit_compile=None if is_keras_2(model) else "auto" if self.compiles else False,
        )

    def restore(self, model: Any) -> None:
        """Build the optimizer, and restore its earlier state, if that fits."""
        optimizer = model.optimizer
        build(optimizer, model.trainable_variables)
        variables = list_variables(optimizer)
        if self.state is not None and [tuple(item.shape) for item in variables] == [item.shape for item in self.state]:
            assign(variables, self.state)


def assign(variables: Any, values: Any) -> None:
    """Assign values to variables, one each."""
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def get_values(variables: Any) -> list[Any]:
    """Return [variables] copies of their values, as arrays."""
    return [keras_variables.copy_value(variable) for variable in variables]


class _Packer(cloudpickle.Pickler):
    """Pickles Keras' optimizers and metrics as class and configuration, and losses as they are.

    Keras' own pickling uses configurations, some of which lack settings: in Keras 3.15 delta of Huber(delta).
    """

    def reducer_override(self, obj: Any) -> Any:
        keras = keras_of(obj)
        if isinstance(obj, keras.losses.Loss):
            return copyreg.__newobj__, (type(obj),), dict(vars(obj))  # type: ignore[attr-defined]
        if isinstance(obj, keras.metrics.Metric):
            settings = {name: _untrack(value) for name, value in vars(obj).items() if _is_setting(obj, name, value)}
            return _metric, (type(obj), obj.get_config(), settings)
        if is_optimizer(obj):
            _check_config(obj)
            return _optimizer, (type(obj), obj.get_config())
        return super().reducer_override(obj)


def _is_plain(value: Any) -> bool:
    """Return whether a value is None, a truth value, a number, a string or an array, or a tuple, list or dict of
    these.
    """
    if isinstance(value, Mapping):
        return all(map(_is_plain, [*value.keys(), *value.values()]))
    if isinstance(value, (tuple, list)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str, numpy.ndarray, numpy.generic))


def _is_setting(metric: Any, name: str, value: Any) -> bool:
    """Return whether an attribute is a metric's setting. Metrics of Keras 2 are layers, and have many attributes of
    layers.
    """
    return _is_plain(value) and not (is_keras_2(metric) and name.startswith("_"))


def _untrack(value: Any) -> Any:
    """Return a plain value without the classes in which Keras keeps lists and dicts of its objects."""
    if isinstance(value, Mapping):
        return {key: _untrack(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        kind = tuple if isinstance(value, tuple) else list
        return kind(map(_untrack, value))
    return value


def _check_config(obj: Any) -> None:
    """Raise ValueError if a class's get_config() lacks an argument of its constructor that isn't the default."""
    config = obj.get_config()
    for name, parameter in inspect.signature(type(obj)).parameters.items():
        setting = getattr(obj, name, parameter.default)
        if name not in config and _is_plain(setting) and not numpy.array_equal(setting, parameter.default):
            raise ValueError(f"get_config() of class {type(obj).__name__} lacks {name!r}, which is {setting!r}")


def _optimizer(kind: Any, config: dict[str, Any]) -> Any:
    return kind.from_config(config)


def _metric(kind: Any, config: dict[str, Any], settings: dict[str, Any]) -> Any:
    """Return a new metric. `settings` are attributes of the one that was packed; it had variables if it was built."""
    parameters = inspect.signature(kind).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        metric = kind.from_config(config)
    else:  # a class of the user's may lack get_config(), and arguments that Metric's has
        arguments = {**settings, **config}
        metric = kind.from_config({name: arguments[name] for name in parameters if name in arguments})
    fresh = vars(metric)
    for name, value in settings.items():
        if name != "_built" and (name not in fresh or _is_plain(fresh[name])):
            setattr(metric, name, value)
    return metric


def pack(name: str, content: Any) -> bytes:
    """Return objects as bytes.

    Args:
        name: of the objects, for the message.

    Raises:
        DataError: one of them cannot be sent.
    """
    try:
        return pickle_objects(content)
    except Exception as error:
        raise DataError(f"{name} cannot be sent to the processes: {type(error).__name__}: {error}") from error


def pickle_objects(content: Any) -> bytes:
    """Return objects as bytes, with pickle's own errors."""
    stream = io.BytesIO()
    _Packer(stream).dump(content)
    return stream.getvalue()


def unpack(content: bytes, custom_objects: Mapping[str, Any] | None = None) -> Any:
    """Return new objects, of what `pack` has made: on the driver, or of what the driver has sent."""
    with ExitStack() as scopes:
        for keras in imported():
            scopes.enter_context(keras.saving.custom_object_scope(dict(custom_objects or {})))
        return pickle.loads(content)  # noqa: S301  # from the driver


def register(keras: Any, custom_objects: Mapping[str, Any]) -> None:
    """Register the user's classes and functions in this process as they are in the driver's.

    Keras saves a class that is registered under that name, and another under its plain name, which the driver may
    not know.

    Args:
        keras: that of the model.
    """
    for name, item in custom_objects.items():
        package, mark, rest = name.partition(">")
        if mark:
            keras.saving.register_keras_serializable(package, rest)(item)


def dump_model(model: Any) -> bytes:
    """Return a model as the bytes of a ``.keras`` file, its optimizer's state included.

    Raises:
        DataError: Keras cannot save it; the message has Keras' error.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.keras"
        try:
            with warnings.catch_warnings():
                # The ranks build the layers that are not built.
                warnings.filterwarnings("ignore", message=".*has not yet been built")
                keras_of(model).saving.save_model(model, str(file))
        except Exception as error:
            raise DataError(
                f"Keras cannot save the model {getattr(model, 'name', model)!r}, so that it cannot be sent: "
                f"{type(error).__name__}: {error}. A class of your own needs get_config()."
            ) from error
        return file.read_bytes()


def load_dumped(content: bytes, custom_objects: Mapping[str, Any], *, compile: bool = False) -> Any:
    """Return the model of bytes that `dump_model` has made in this training: they may hold lambdas of the user's.

    Raises:
        DataError: Keras cannot read it; the message has Keras' error.
    """
    try:
        return read_model(content, custom_objects, compile=compile, safe_mode=False)
    except Exception as error:
        raise DataError(
            f"Keras cannot load the model that it has saved: {type(error).__name__}: {get_first_line(error)}. Name "
            "your own classes and functions in custom_objects={...}; a class needs get_config()."
        ) from error


def read_model(content: bytes, custom_objects: Mapping[str, Any], *, compile: bool, safe_mode: bool) -> Any:
    """Return the model of a ``.keras`` file's bytes, by the Keras that has written them.

    Args:
        compile: with its optimizer, loss and metrics.
        safe_mode: Keras' own, which refuses some of what could run code.

    Raises:
        Exception: Keras cannot read it.
    """
    keras = keras_of_version(read_version(content))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.keras"
        file.write_bytes(content)
        return keras.saving.load_model(
            str(file), custom_objects=dict(custom_objects), compile=compile, safe_mode=safe_mode
        )


def read_version(content: bytes) -> str:
    """Return the version of the Keras that has written a ``.keras`` file.

    Raises:
        KeyError, TypeError, ValueError, zipfile.BadZipFile: it is no ``.keras`` file.
    """
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return str(json.loads(archive.read("metadata.json"))["keras_version"])


def compute_digest(content: bytes, model: Any) -> bytes:
    """Return 32 bytes, the same for the same architecture and weights.

    Args:
        content: what `dump_model` has made of the model.
    """
    digest = hashlib.sha256()
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        digest.update(archive.read("config.json"))
    for value in get_values(model.weights):
        digest.update(value.tobytes())
    return digest.digest()


def get_first_line(error: Exception) -> str:
    """Return the first line of an error's text, without the full stop."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "").removesuffix(".")


def find_custom_objects(model: Any, *others: Any) -> dict[str, Any]:
    """Return the user's classes and functions that a model and other objects are made of, by the names that Keras
    looks for.

    What is registered (``keras.saving.register_keras_serializable``), layers' classes and the functions that they
    hold.
    """
    keras = keras_of(model)
    result: dict[str, Any] = dict(keras.saving.get_custom_objects())
    holders = [*get_layers(model), *others]
    for holder in holders:
        # Not what hides a method, such as Keras' wrapper of build(), which holds the layer itself.
        held = [item for name, item in getattr(holder, "__dict__", {}).items() if not hasattr(type(holder), name)]
        for item in (type(holder), holder, *held):
            if isinstance(item, (type, types.FunctionType)) and _is_users(item):
                result.setdefault(keras.saving.get_registered_name(item), item)
    return result


def get_layers(model: Any) -> list[Any]:
    """Return a model and all layers within it."""
    return list(model._flatten_layers()) if hasattr(model, "_flatten_layers") else [model]


def _is_users(definition: Any) -> bool:
    package = str(getattr(definition, "__module__", "")).partition(".")[0]
    packages = {"keras", "tf_keras", "builtins", "tensorflow", "torch", "jax", "numpy", "spark_estimator"}
    return package not in packages and definition.__name__ != "<lambda>"


@contextmanager
def keep_rng_state() -> Iterator[None]:
    """Restore Python's and NumPy's random state afterwards: Keras draws from them when it makes layers."""
    python, arrays = random.getstate(), numpy.random.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        numpy.random.set_state(arrays)
