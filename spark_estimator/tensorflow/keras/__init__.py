"""``horovod.tensorflow.keras``: what `spark_estimator.keras` has, with Horovod's order of arguments where that differs.

``tf.keras`` is Keras 3 since TensorFlow 2.16, and Keras 2 (``tf_keras``) where TF_USE_LEGACY_KERAS is set: there is one
binding behind both names, for both.
"""

from __future__ import annotations

import importlib
from typing import Any

from spark_estimator import keras as _binding
from spark_estimator.keras import *  # noqa: F403  the same names, those that need Keras included
from spark_estimator.keras import __all__ as __all__

# after those of `horovod.keras`, which they replace
from spark_estimator.keras.optimizer import (  # type: ignore[assignment]
    DistributedOptimizer as DistributedOptimizer,
)
from spark_estimator.keras.optimizer import (  # type: ignore[assignment]
    PartialDistributedOptimizer as PartialDistributedOptimizer,
)


def __getattr__(name: str) -> Any:
    """Return a name that the binding loads at its first use."""
    if name == "callbacks":
        return importlib.import_module(f"{__name__}.callbacks")
    return getattr(_binding, name)
