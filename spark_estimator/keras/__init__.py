"""Horovod's API for Keras: ``import spark_estimator.keras as hvd``.

Keras 3 on its torch, TensorFlow and JAX backends, and Keras 2 (``tf_keras``).

Keras is imported when something of it is first used, not with this package, so that a program can still choose its
backend (KERAS_BACKEND) after ``hvd.init()``. ``tf.keras`` is Keras 3 since TensorFlow 2.16, and Keras 2
where TF_USE_LEGACY_KERAS is set; see `importing`.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

if importlib.util.find_spec("keras") is None and importlib.util.find_spec("tf_keras") is None:
    raise ModuleNotFoundError(
        "spark_estimator.keras (horovod.keras) needs Keras 3, No module named 'keras': pip install keras, on the "
        "workers, too",
        name="keras",
    )

from spark_estimator.collectives import context as _context
from spark_estimator.collectives.arrays import barrier
from spark_estimator.collectives.context import *  # noqa: F403  the functions that are alike in all frameworks
from spark_estimator.collectives.objects import allgather_object, broadcast_object
from spark_estimator.collectives.process_set import ProcessSet, global_process_set
from spark_estimator.errors import HorovodInternalError
from spark_estimator.keras.compression import Compression
from spark_estimator.keras.ops import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
    allgather,
    allreduce,
    broadcast,
    grouped_allreduce,
    reducescatter,
)

if TYPE_CHECKING:
    from spark_estimator.keras import callbacks as callbacks
    from spark_estimator.keras import elastic as elastic
    from spark_estimator.keras.saving import load_model
    from spark_estimator.keras.standalone import DistributedOptimizer, PartialDistributedOptimizer
    from spark_estimator.keras.starting_state import broadcast_global_variables, broadcast_variables

#: Names of a higher layer that need Spark, too -> their modules.
_ABOVE = {
    "KerasEstimator": "spark_estimator.estimators.keras.estimator",
    "KerasModel": "spark_estimator.estimators.keras.model",
}
#: Names that need Keras itself -> the module that has them; '': the name is a module.
_LATER = {
    "DistributedOptimizer": "standalone",
    "PartialDistributedOptimizer": "standalone",
    "broadcast_global_variables": "starting_state",
    "broadcast_variables": "starting_state",
    "callbacks": "",
    "elastic": "",
    "load_model": "saving",
}

__all__ = [
    *_context.__all__,
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "HorovodInternalError",
    "Max",
    "Min",
    "PartialDistributedOptimizer",
    "ProcessSet",
    "Product",
    "Sum",
    "allgather",
    "allgather_object",
    "allreduce",
    "barrier",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_variables",
    "global_process_set",
    "grouped_allreduce",
    "load_model",
    "reducescatter",
]


def __getattr__(name: str) -> Any:
    """Load what needs Keras, or Spark, at its first use."""
    if name not in _LATER and name not in _ABOVE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(_ABOVE.get(name) or f"{__name__}.{_LATER[name] or name}")
    value = getattr(module, name) if name in _ABOVE or _LATER[name] else module
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER, *_ABOVE})
