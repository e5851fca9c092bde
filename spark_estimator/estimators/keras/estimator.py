"""`KerasEstimator`: trains a Keras model on a DataFrame, on several processes of the Spark session."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from spark_estimator.estimators.estimator import TableEstimator
from spark_estimator.estimators.inference.prediction_columns import OutputKind
from spark_estimator.estimators.keras import estimator_files as keras_estimator_files
from spark_estimator.estimators.keras import start as keras_start
from spark_estimator.estimators.keras.check import KerasTrial
from spark_estimator.estimators.keras.keywords import KerasEstimatorKeywords
from spark_estimator.estimators.keras.model import KerasModel
from spark_estimator.estimators.keras.objects import get_values, load_dumped
from spark_estimator.estimators.keras.params import ESTIMATOR, WITHOUT_EFFECT
from spark_estimator.estimators.keras.parts import make_parts
from spark_estimator.estimators.params import add_params
from spark_estimator.estimators.protocol import add_ineffective
from spark_estimator.estimators.rows.shapes import Trial
from spark_estimator.estimators.train_spec import TrainResult, TrainSpec


@add_ineffective(
    {"tensorflow_dataset_prefetch_buffer_size": ("TensorflowDatasetPrefetchBufferSize", 0)}, WITHOUT_EFFECT
)
@add_params(ESTIMATOR)
class KerasEstimator(KerasEstimatorKeywords, TableEstimator[KerasModel]):
    """Trains a Keras model on the rows of a DataFrame: ``model = KerasEstimator(...).fit(df)``.

    The rows are distributed evenly over `num_proc` processes, which Spark starts together, on the driver's Keras
    backend (KERAS_BACKEND). Gradients, losses and metrics are means over all rows of a step, however they are
    distributed. The optimizer's learning rate is multiplied by the number of processes.

    The model is called with one array per feature column, in the shapes of its inputs; if it has a single input, the
    columns are concatenated. `optimizer` and `loss` are required unless the model is compiled; arguments passed to the
    estimator override the model's compile settings. The model itself is not changed.

    All parameters are keywords; call ``explainParams()`` for the full list.

    Raises:
        TypeError, ValueError: a parameter is unknown or invalid.
    """

    _public_path = "spark_estimator.KerasEstimator"
    _prefix = "keras"
    _model_kind = KerasModel

    def _make_training(self) -> _KerasTraining:
        return _KerasTraining(self._value)

    def _complete(self, fitted: Any, training: Any) -> Any:
        return fitted.setCustomObjects(training.custom)

    def getModelShapes(self) -> tuple[list[list[int]], list[list[int]]]:  # Horovod's get_model_shapes
        """Return the shapes of the model's inputs and outputs, with -1 for unknown sizes, such as the number of
        rows.
        """
        model = self._value("model")
        sides: list[Any] = [getattr(model, "inputs", None), getattr(model, "outputs", None)]
        if not all(sides):
            raise ValueError(
                f"the shapes of {model!r} are not known: its class is not Keras' own, or it is not built. Define it "
                "with keras.Input."
            )
        result = [
            [[-1 if extent is None else int(extent) for extent in item.shape] for item in side or []] for side in sides
        ]
        return result[0], result[1]

    get_model_shapes = getModelShapes

    def _write_files(self, folder: Path) -> None:
        keras_estimator_files.write(self, folder)

    @classmethod
    def load(cls, path: str, *, custom_objects: Mapping[str, Any] | None = None, trust: bool = False) -> KerasEstimator:
        """Load what `save` has written, and run no code from it unless it is trusted.

        Args:
            path: as for Spark ML: without a scheme it is on the session's default file system.
            custom_objects: your classes and functions that the model is made of, by name.
            trust: runs code from the folder where loading needs it; only for folders from a source that you trust.

        Raises:
            DataError: the folder is missing, damaged or of another version, or loading its objects would run code
                from it.
        """
        return keras_estimator_files.load(cls, path, custom_objects, trust=trust)


class _KerasTraining:
    """See `estimator.FrameworkTraining`.

    Attributes:
        custom: the user's classes and functions, by name.
    """

    def __init__(self, value: Callable[[str], Any]) -> None:
        parts, self.labels, output_kinds, self.custom = make_parts(value)
        self.framework: Any = parts
        self._model = value("model")
        self.output_kinds: Sequence[OutputKind] = output_kinds
        self.recovers = self.saves_within = True
        self._trial = KerasTrial(parts, self._model, self.custom)
        self.trial: Trial = self._trial
        self.train: Callable[[TrainSpec], TrainResult | None] = keras_start.train

    @property
    def state_bytes(self) -> int:
        """See `estimator.FrameworkTraining`: of the model with the state of its optimizer, which is saved with it."""
        return self._trial.state_bytes or len(self.framework.model)

    def compute_digest(self) -> str:
        """See `estimator.FrameworkTraining.compute_digest`."""
        digest = hashlib.blake2b(digest_size=16)
        for array in get_values(self._model.weights):
            digest.update(array.tobytes())
        return digest.hexdigest()

    def load_trained(self, state: bytes) -> tuple[Any, None]:
        """See `estimator.FrameworkTraining.load_trained`: compiled, with the optimizer's state, which is in the
        model.
        """
        try:
            return load_dumped(state, self.custom, compile=True), None
        except Exception as error:
            model = load_dumped(state, self.custom)
            warnings.warn(f"the trained model is not compiled: {error}", stacklevel=2)
            return model, None
