"""`KerasModel`: a trained Keras model that predicts on DataFrames, arrays and pandas frames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from spark_estimator.data.row_encoder import RowEncoder
from spark_estimator.estimators import model
from spark_estimator.estimators.inference.prediction_columns import OutputKind
from spark_estimator.estimators.keras import files as keras_files
from spark_estimator.estimators.keras.compiled import get_arguments
from spark_estimator.estimators.keras.keywords import KerasModelKeywords
from spark_estimator.estimators.keras.objects import dump_model, find_custom_objects, load_dumped
from spark_estimator.estimators.keras.params import MODEL
from spark_estimator.estimators.keras.parts import get_output_kinds
from spark_estimator.estimators.keras.predictor import KerasPredictor
from spark_estimator.estimators.params import MODEL_PARTS, add_params
from spark_estimator.keras.importing import keras_of


@add_params(MODEL, MODEL_PARTS)
class KerasModel(KerasModelKeywords, model.TableModel):
    """What `KerasEstimator.fit` returns: see `model.TableModel`. Its model is a `keras.Model`."""

    _public_path = "spark_estimator.KerasModel"

    def getModel(self) -> Any:  # Horovod's name
        """Return the trained model. It is this one's own: changes to it change predictions."""
        return self._model

    def setModel(self, value: Any) -> KerasModel:
        """Set another model with the same inputs and outputs. Return self."""
        if not isinstance(value, keras_of(value).Model):
            raise TypeError(f"model must be a model of Keras 3 or Keras 2 (keras.Model); got {value!r}.")
        return self._set(model=value)

    def getCustomObjects(self) -> dict[str, Any]:  # Horovod's name
        """Return the user's classes and functions with which Keras loads the model, by name."""
        return {**find_custom_objects(self._model), **(self._value("custom_objects") or {})}

    def keras_model(self) -> Any:
        """Return a copy of the trained model, for use without Spark; not compiled."""
        return load_dumped(dump_model(self._model), self.getCustomObjects())

    @classmethod
    def load(
        cls,
        path: str,
        *,
        custom_objects: Mapping[str, Any] | None = None,
        decoders: Mapping[str, Any] | None = None,
        trust: bool = False,
    ) -> KerasModel:
        """Load what `save` has written, and run no code from it unless it is trusted.

        Args:
            path: as for Spark ML: without a scheme it is on the session's default file system.
            custom_objects: your classes and functions that the model is made of, by name.
            decoders: as it was trained with, if it was; None: they are read too, which needs trust.
            trust: runs code from the folder where loading needs it; only for folders from a source that you trust.

        Raises:
            DataError: the folder is missing, damaged or of another version, or loading it would run code from it.
        """
        model, objects = keras_files.load(cls, path, custom_objects, decoders, trust=trust)
        return model.setCustomObjects(objects)

    def _find_output_kinds(self) -> Sequence[OutputKind] | None:
        compiled = get_arguments(self._model)
        return compiled and get_output_kinds(self._model, compiled.loss, len(self._value("label_columns") or []))

    def _make_predictor(self, encoder: RowEncoder) -> KerasPredictor:
        return KerasPredictor.of(self._model, self.getCustomObjects(), encoder, self._widths, self._value("batch_size"))

    def _write_files(self, folder: Path) -> None:
        keras_files.write(self, self._model, self.getCustomObjects(), folder)
