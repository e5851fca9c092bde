"""Finds the Keras that an object belongs to: Keras 3, or Keras 2 (``tf_keras``). A process may have both.

`keras` is that of the process, which ``tf.keras`` is, too: Keras 2 where TF_USE_LEGACY_KERAS is set, else
Keras 3. Code that has an object calls `find_keras`.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any


def uses_keras_2() -> bool:
    """Return whether ``tf.keras`` is Keras 2 here: TF_USE_LEGACY_KERAS, with the values that TensorFlow knows."""
    return os.environ.get("TF_USE_LEGACY_KERAS") in ("1", "true", "True")


def _import_keras_2() -> Any:
    try:
        return importlib.import_module("tf_keras")
    except ModuleNotFoundError as error:
        if error.name == "tf_keras":
            advice = "pip install tf_keras, on the workers, too, or unset TF_USE_LEGACY_KERAS to use Keras 3"
        else:
            advice = f"pip install {error.name}"
        message = f"Keras 2 (TF_USE_LEGACY_KERAS=1) cannot be imported, {error}: {advice}."
        raise ModuleNotFoundError(message, name=error.name) from error


def _import_keras_3() -> Any:
    try:
        module = importlib.import_module("keras")
    except ModuleNotFoundError as error:
        if error.name == "keras":
            advice = "pip install keras, on the workers, too"
        else:  # Keras imports TensorFlow unless KERAS_BACKEND names another backend
            advice = f"pip install {error.name}, or set KERAS_BACKEND (torch, jax, tensorflow) to what is installed"
        raise ModuleNotFoundError(f"Keras cannot be imported, {error}: {advice}.", name=error.name) from error
    version = str(getattr(module, "__version__", ""))
    if version.partition(".")[0] in ("1", "2"):
        raise ImportError(f"Keras {version} is too old; Keras 3 is required: pip install -U 'keras>=3'.", name="keras")
    return module


keras: Any = _import_keras_2() if uses_keras_2() else _import_keras_3()

__all__ = ["backend", "imported", "is_keras_2", "keras", "keras_of", "keras_of_version", "uses_keras_2"]


def is_keras_2(item: object) -> bool:
    """Return whether an object's class is one of Keras 2, or derived from one."""
    return any(base.__module__.partition(".")[0] == "tf_keras" for base in type(item).__mro__)


def keras_of(item: object) -> Any:
    """Return the Keras to which an object's class belongs; the process's for what belongs to none."""
    packages = {base.__module__.partition(".")[0] for base in type(item).__mro__}
    for package in ("tf_keras", "keras"):
        if package in packages and package in sys.modules:
            return sys.modules[package]
    return keras


def keras_of_version(version: str) -> Any:
    """Return the Keras, imported, of a version: Keras 2 for ``"2.21.0"``. Raises ModuleNotFoundError."""
    return _import_keras_2() if version.startswith("2.") else _import_keras_3()


def imported() -> list[Any]:
    """Return every Keras that this process has imported, that of the process first."""
    others = [sys.modules[name] for name in ("keras", "tf_keras") if name in sys.modules]
    return [keras, *(module for module in others if module is not keras)]


def backend(item: object = None) -> str:
    """Return the Keras backend of an object, or of the process: "torch", "tensorflow" or "jax". Raises ImportError."""
    module = keras_of(item)
    if module.__name__ == "tf_keras":
        return "tensorflow"
    name = str(module.backend.backend())
    if name not in ("torch", "tensorflow", "jax"):
        raise ImportError(
            f"Keras' backend is {name!r}; supported backends are torch, tensorflow and jax. Set KERAS_BACKEND to one "
            "of them before importing Keras."
        )
    return name
