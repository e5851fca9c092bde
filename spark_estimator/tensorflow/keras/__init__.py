"""``horovod.tensorflow.keras``: what `spark_estimator.keras` has, for Keras on TensorFlow.

``tf.keras`` is Keras 3 itself since TensorFlow 2.16, so that there is one binding behind both names.
"""

from __future__ import annotations

from typing import Any

from spark_estimator import keras as _binding
from spark_estimator.keras import *  # noqa: F403  the same names, those that need Keras included
from spark_estimator.keras import __all__ as __all__


def __getattr__(name: str) -> Any:
    """What the binding loads at its first use."""
    return getattr(_binding, name)
