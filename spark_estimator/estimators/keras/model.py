"""`KerasModel`: a trained Keras model that predicts on DataFrames, arrays and pandas frames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from spark_estimator.data.decoding import Decoder
from spark_estimator.data.fields import Field
from spark_estimator.estimators import model
from spark_estimator.estimators.keras import files as keras_files
from spark_estimator.estimators.keras.history import KerasHistory, history_of
from spark_estimator.estimators.keras.objects import custom_objects_of, dumped, loaded
from spark_estimator.estimators.keras.predictor import KerasPredictor
from spark_estimator.estimators.params import Row, with_params
from spark_estimator.keras.importing import keras

_ROWS = (
    Row("history", KerasHistory(), history_of, "a dict from each metric's name to its values, one for each epoch"),
    *(row for row in model.ROWS if row.name != "history"),
)


@with_params(_ROWS)
class KerasModel(model.TableModel):
    """What `KerasEstimator.fit` returns: see `model.TableModel`. Its model is a `keras.Model`."""

    def __init__(self, *, custom_objects: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        self._custom_objects: dict[str, Any] = dict(custom_objects or {})
        super().__init__(**kwargs)

    def getModel(self) -> Any:  # Horovod's name
        """The trained model. It is this one's own: changes to it change predictions."""
        return self._model

    def setModel(self, value: Any) -> KerasModel:
        """Takes another model with the same inputs and outputs. Returns self."""
        if not isinstance(value, keras.Model):
            raise TypeError(f"model is a model of Keras 3 (keras.Model); it was {value!r}.")
        self._model = value
        return self

    def getCustomObjects(self) -> dict[str, Any]:  # Horovod's name
        """The user's classes and functions with which Keras loads the model, by name."""
        return {**custom_objects_of(self._model), **self._custom_objects}

    def setCustomObjects(self, value: Mapping[str, Any]) -> KerasModel:
        """Sets them. Returns self."""
        self._custom_objects = dict(value)
        return self

    def keras_model(self) -> Any:
        """A copy of the trained model, for use without Spark; not compiled."""
        return loaded(dumped(self._model), self.getCustomObjects())

    @classmethod
    def load(
        cls,
        path: str,
        *,
        custom_objects: Mapping[str, Any] | None = None,
        decoders: Mapping[str, Any] | None = None,
        trust: bool = False,
    ) -> KerasModel:
        """Loads what `save` has written, and runs no code from it unless it is trusted.

        Args:
            path: a folder that this process sees.
            custom_objects: your classes and functions that the model is made of, by name.
            decoders: as it was trained with, if it was; None: they are read too, which needs trust.
            trust: the folder comes from somebody whom you would let run code here.

        Raises:
            DataError: there is nothing, it is damaged or of another version, or it could be had only by running code
                from it.
        """
        return keras_files.load(path, custom_objects, decoders, trust=trust)

    def _predictor(self, inputs: Sequence[Field], decoders: Mapping[str, Decoder] | None = None) -> KerasPredictor:
        return KerasPredictor.of(
            self._model, self.getCustomObjects(), inputs, self._outputs, self._value("batch_size"), decoders
        )

    def _write_files(self, folder: Path) -> None:
        keras_files.write(self, folder)
