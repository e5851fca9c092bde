"""Imports Keras; where that fails, the error names what to install. Only Keras 3 is supported."""

from __future__ import annotations

try:
    import keras
except ModuleNotFoundError as error:
    if error.name == "keras":
        advice = "pip install keras, on the workers, too"
    else:  # Keras imports TensorFlow unless KERAS_BACKEND names another backend
        advice = f"pip install {error.name}, or set KERAS_BACKEND (torch, jax, tensorflow) to what is installed"
    raise ModuleNotFoundError(f"Keras cannot be imported, {error}: {advice}.", name=error.name) from error

_version = str(getattr(keras, "__version__", ""))
if _version.partition(".")[0] in ("1", "2"):
    raise ImportError(f"Keras {_version} is too old; Keras 3 is required: pip install -U 'keras>=3'.", name="keras")

__all__ = ["backend", "keras"]


def backend() -> str:
    """Which backend Keras runs on: ``"torch"``, ``"tensorflow"`` or ``"jax"``. Raises ImportError for another."""
    name = str(keras.backend.backend())
    if name not in ("torch", "tensorflow", "jax"):
        raise ImportError(
            f"Keras' backend is {name!r}; supported backends are torch, tensorflow and jax. Set KERAS_BACKEND to one "
            "of them before importing Keras."
        )
    return name
