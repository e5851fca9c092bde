"""What every rank of `KerasEstimator.fit` runs: it chooses Keras' backend before any module imports Keras."""

from __future__ import annotations

from spark_estimator.collectives import context
from spark_estimator.errors import DataError
from spark_estimator.estimators.keras.spec import KerasParts, choose_backend
from spark_estimator.estimators.train_spec import TrainResult, TrainSpec


def train(spec: TrainSpec) -> TrainResult | None:
    """Return the result on rank 0; None on the others.

    Raises:
        DataError: Keras, or its backend, is not installed.
    """
    context.init()
    parts: KerasParts = spec.framework
    choose_backend(parts.backend, parts.environment, use_gpu=spec.use_gpu)
    try:
        from spark_estimator.estimators.keras import training as keras_training
    except ModuleNotFoundError as error:
        missing = str(error.name or "").partition(".")[0]
        needed = ("tf_keras", "tensorflow") if parts.backend == "tf_keras" else ("keras", parts.backend)
        if missing not in needed:
            raise
        packages = " ".join("'keras>=3'" if package == "keras" else package for package in needed)
        raise DataError(
            f"rank {context.rank()} has no {missing}, with which this model is trained: pip install {packages}, "
            "in the Python of the executors."
        ) from error
    return keras_training.train(spec)
