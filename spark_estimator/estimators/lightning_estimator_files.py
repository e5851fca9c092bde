"""Lightning's `TorchEstimator` in a folder, as `torch_estimator_files` does it: LightningModules need trust."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from spark_estimator.estimators import estimator_files
from spark_estimator.estimators.torch_estimator_files import dump, read_objects

if TYPE_CHECKING:
    from spark_estimator.estimators.lightning_estimator import TorchEstimator

#: What JSON does not hold.
_OBJECTS = (
    *("model", "optimizer", "loss", "loss_constructors", "metrics", "gradient_compression", "callbacks", "logger"),
    *("profiler", "data_module", "trainer_args", "decoders", "transformation_fn"),
)


def write(estimator: TorchEstimator, folder: Path) -> None:
    """Puts an estimator's files into a new folder.

    Raises:
        DataError: a parameter cannot be pickled.
    """
    estimator_files.write(estimator, folder, _OBJECTS, dump)


def load(path: str, *, trust: bool) -> TorchEstimator:
    """See `TorchEstimator.load`."""
    from spark_estimator.estimators.lightning_estimator import TorchEstimator

    return estimator_files.load(TorchEstimator, path, _OBJECTS, lambda told: read_objects(told, trust))
