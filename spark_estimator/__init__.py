"""Horovod's API on today's Spark and PyTorch: ``spark_estimator.torch as hvd`` and ``HorovodRunner(np=2).run(train)``.

A name below is imported at its first use, so that importing the package takes milliseconds and needs neither a
framework nor Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_estimator.lazy_names import bind_names

__version__ = "0.1.0"

if TYPE_CHECKING:
    from spark_estimator.collectives.preemption import preemption_warning
    from spark_estimator.errors import (
        DataError,
        HorovodInternalError,
        JobFailedError,
        PreflightError,
        SparkEstimatorError,
        WorkerFailedError,
    )
    from spark_estimator.estimators.keras.estimator import KerasEstimator
    from spark_estimator.estimators.keras.model import KerasModel
    from spark_estimator.estimators.persistence.folders import trust_files
    from spark_estimator.estimators.torch.estimator import TorchEstimator
    from spark_estimator.estimators.torch.model import TorchModel
    from spark_estimator.extensions.transformers.estimator import TransformersEstimator
    from spark_estimator.extensions.transformers.model import TransformersModel
    from spark_estimator.observe.driver_log import log_to_driver
    from spark_estimator.runner import HorovodRunner, run
    from spark_estimator.torch.profiling import profile
    from spark_estimator.torch_distributor import TorchDistributor

_HOME = {
    "DataError": "spark_estimator.errors",
    "HorovodRunner": "spark_estimator.runner",
    "HorovodInternalError": "spark_estimator.errors",
    "JobFailedError": "spark_estimator.errors",
    "KerasEstimator": "spark_estimator.estimators.keras.estimator",
    "KerasModel": "spark_estimator.estimators.keras.model",
    "PreflightError": "spark_estimator.errors",
    "SparkEstimatorError": "spark_estimator.errors",
    "TorchDistributor": "spark_estimator.torch_distributor",
    "TorchEstimator": "spark_estimator.estimators.torch.estimator",
    "TorchModel": "spark_estimator.estimators.torch.model",
    "TransformersEstimator": "spark_estimator.extensions.transformers.estimator",
    "TransformersModel": "spark_estimator.extensions.transformers.model",
    "WorkerFailedError": "spark_estimator.errors",
    "log_to_driver": "spark_estimator.observe.driver_log",
    "preemption_warning": "spark_estimator.collectives.preemption",
    "profile": "spark_estimator.torch.profiling",
    "run": "spark_estimator.runner",
    "trust_files": "spark_estimator.estimators.persistence.folders",
}

__all__ = [
    "DataError",
    "HorovodInternalError",
    "HorovodRunner",
    "JobFailedError",
    "KerasEstimator",
    "KerasModel",
    "PreflightError",
    "SparkEstimatorError",
    "TorchDistributor",
    "TorchEstimator",
    "TorchModel",
    "TransformersEstimator",
    "TransformersModel",
    "WorkerFailedError",
    "__version__",
    "log_to_driver",
    "preemption_warning",
    "profile",
    "run",
    "trust_files",
]
__getattr__, __dir__ = bind_names(__name__, _HOME)
