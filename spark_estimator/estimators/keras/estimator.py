"""`KerasEstimator`: trains a Keras model on a DataFrame, on several processes of the Spark session."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from spark_estimator.estimators import checks, estimator, params
from spark_estimator.estimators.inference.prediction_columns import Meaning
from spark_estimator.estimators.keras import estimator_files as keras_estimator_files
from spark_estimator.estimators.keras import start as keras_start
from spark_estimator.estimators.keras.check import KerasTrial
from spark_estimator.estimators.keras.model import KerasModel
from spark_estimator.estimators.keras.objects import loaded
from spark_estimator.estimators.keras.parts import parts_of
from spark_estimator.estimators.params import Row, with_params
from spark_estimator.estimators.rows.shapes import Trial
from spark_estimator.estimators.train_spec import TrainResult, TrainSpec

#: Where Keras' words differ from what is said of all estimators.
_SAID = {
    "model": "a keras.Model, compiled or not; required",
    "optimizer": "an optimizer of Keras, or its name; None: that with which the model is compiled",
    "loss": "a loss of Keras, its name or a function of (label, output), or a list with one for each output; None: "
    "those with which the model is compiled",
    "loss_weights": "a weight for each loss; None: as the model is compiled, else 1 for each",
    "metrics": "as model.compile takes them; none: those with which the model is compiled",
}

_ROWS = (
    *(replace(row, doc=_SAID.get(row.name, row.doc)) for row in params.SHARED),
    *params.PREDICTING,
    Row(
        "learning_rate",
        None,
        checks.positive,
        "takes the place of the optimizer's own, for a ParamGridBuilder; None: that is kept",
    ),
    Row("callbacks", [], checks.listed, "callbacks of Keras, called on every rank with the losses of all"),
    Row(
        "checkpoint_callback",
        None,
        checks.anything,
        "a ModelCheckpoint, such as BestModelCheckpoint, called on rank 0: what it has kept last comes back; None: the "
        "last epoch's model does",
    ),
    Row("custom_objects", {}, checks.objects, "your classes and functions by name, where Keras does not find them"),
    Row("backend_env", {}, checks.objects, "environment variables that the processes get before they import Keras"),
)


@with_params(_ROWS)
class KerasEstimator(estimator.TableEstimator[KerasModel]):
    """Trains a Keras model on the rows of a DataFrame: ``model = KerasEstimator(...).fit(df)``.

    The rows are spread evenly over `num_proc` processes, which Spark starts together, on the backend that Keras has
    here (KERAS_BACKEND). Gradients are averaged over all rows of a step, however they are spread; the optimizer's
    learning rate is that of one process, and is multiplied with their number where it steps. Losses and metrics are
    those of all rows.

    The model is called with one array for each feature column, in the shapes of its inputs; when it has a single one,
    with all columns side by side. A model that is not compiled needs `optimizer` and `loss`; of one that is, those
    that are not given are taken. The user's model stays as it is.

    All parameters are keywords; ``explainParams()`` tells them.

    Raises:
        TypeError, ValueError: a parameter that is unknown or cannot be used.
    """

    _prefix = "keras"
    _model_kind = KerasModel

    def __init__(self, **kwargs: Any) -> None:
        if kwargs.pop("data_module", None) is not None:
            warnings.warn("data_module has no effect: rows go to the processes directly.", stacklevel=2)
        super().__init__(**kwargs)

    def _training(self) -> _KerasTraining:
        return _KerasTraining(self._value)

    def _trained(self, training: Any, *args: Any) -> KerasModel:
        return super()._trained(training, *args).setCustomObjects(training.custom)

    def getModelShapes(self) -> tuple[list[list[int]], list[list[int]]]:  # Horovod's get_model_shapes
        """The shapes of the model's inputs and outputs, with -1 for what is not known, such as the rows."""
        model = self._value("model")
        sides: list[Any] = [getattr(model, "inputs", None), getattr(model, "outputs", None)]
        if not all(sides):
            raise ValueError(
                f"the shapes of {model!r} are not known: it is of a class of its own, or not built; a keras.Input says "
                "them."
            )
        found = [
            [[-1 if extent is None else int(extent) for extent in one.shape] for one in side or []] for side in sides
        ]
        return found[0], found[1]

    get_model_shapes = getModelShapes

    def _write_files(self, folder: Path) -> None:
        keras_estimator_files.write(self, folder)

    @classmethod
    def load(cls, path: str, *, custom_objects: Mapping[str, Any] | None = None, trust: bool = False) -> KerasEstimator:
        """Loads what `save` has written, and runs no code from it unless it is trusted.

        Args:
            path: a folder that this process sees.
            custom_objects: your classes and functions that the model is made of, by name.
            trust: the folder comes from somebody whom you would let run code here.

        Raises:
            DataError: there is nothing, it is damaged or of another version, or what it holds could be had only by
                running code from it.
        """
        return keras_estimator_files.load(path, custom_objects, trust=trust)


class _KerasTraining:
    """See `estimator.Training`.

    Attributes:
        custom: the user's classes and functions, by name.
    """

    def __init__(self, value: Callable[[str], Any]) -> None:
        parts, self.labels, meanings, self.custom = parts_of(value)
        self.framework: Any = parts
        self.meanings: Sequence[Meaning] = meanings
        self.state_bytes = len(parts.model)
        self.trial: Trial = KerasTrial(parts, value("model"), self.custom)
        self.train: Callable[[TrainSpec], TrainResult | None] = keras_start.train

    def trained(self, state: bytes) -> Any:
        """See `estimator.Training.trained`: compiled, with the optimizer's state."""
        try:
            return loaded(state, self.custom, compile=True)
        except Exception as error:
            model = loaded(state, self.custom)
            warnings.warn(f"the trained model is not compiled: {error}", stacklevel=2)
            return model
