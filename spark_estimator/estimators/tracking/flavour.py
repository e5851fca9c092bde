"""Models as MLflow's pyfunc flavour: ``mlflow.pyfunc.load_model(uri).predict(frame)`` gives what `transform` adds.

MLflow finds `_load_pyfunc` by the name of this module, which is in the model's ``MLmodel`` file.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_estimator import __version__
from spark_estimator.estimators.inference.features import find_columns
from spark_estimator.estimators.persistence.folders import MLFLOW_FOLDER, trust_files
from spark_estimator.estimators.tracking.signature import Features, make_signature

if TYPE_CHECKING:
    from spark_estimator.estimators.mlflow_options import MlflowOptions
    from spark_estimator.estimators.model import TableModel

#: The name of the model among its run's artifacts: ``runs:/<run id>/model``.
MODEL_NAME = "model"
_REQUIRED = ("pyspark", "pyarrow", "pandas", "numpy", "cloudpickle")


class PyfuncModel:
    """What ``mlflow.pyfunc.load_model`` loads: see `predict`."""

    def __init__(self, model: TableModel) -> None:
        self._model = model
        self._predictor = model._make_frame_predictor()

    def predict(self, model_input: Any, params: dict[str, Any] | None = None) -> Any:
        """Return the columns that `transform` adds, as a pandas frame.

        Args:
            model_input: a pandas frame with the feature columns; NaN in a column of numbers is read as null.
            params: ignored.

        Raises:
            TypeError: it is no frame.
        """
        table = find_columns(model_input)
        if table is None:
            kind = type(model_input).__name__
            raise TypeError(f"predict() takes a pandas.DataFrame with the columns of the model's features; got {kind}.")
        return _protect_null_texts(self._predictor.predict_frame(table))

    def get_raw_model(self) -> TableModel:
        """Return the `TorchModel`, `KerasModel` or `TransformersModel` itself."""
        return self._model


def _protect_null_texts(frame: Any) -> Any:
    """Return the frame; if it has null in a column of texts, as one in which ``spark_udf`` leaves null as it is.

    MLflow maps ``str`` over a frame of texts, which makes the text "None" of a null.
    """
    import pandas

    if not any(frame[name].dtype.kind == "O" and frame[name].isna().any() for name in frame.columns):
        return frame

    class NullTexts(pandas.DataFrame):
        """A frame whose nulls are no texts to ``map(str)``; what is made of it is a plain frame."""

        @property
        def _constructor(self) -> Any:
            return pandas.DataFrame

        def map(self, func: Any, na_action: Any = None, **keywords: Any) -> Any:
            return super().map(func, "ignore" if func is str else na_action, **keywords)

        def applymap(self, func: Any, na_action: Any = None, **keywords: Any) -> Any:  # before pandas 2.1
            return super().applymap(func, "ignore" if func is str else na_action, **keywords)

    return NullTexts(frame)


def _load_pyfunc(path: str) -> PyfuncModel:  # MLflow's name
    metadata = json.loads((Path(path) / "metadata" / "part-00000").read_text(encoding="utf-8"))
    module, _, name = metadata["class"].rpartition(".")
    kind = getattr(importlib.import_module(module), name)
    with trust_files():  # as every pyfunc model, whose code runs when it is loaded
        return PyfuncModel(kind.load(f"file://{Path(path).absolute()}"))


def log_model(model: TableModel, features: Features, options: MlflowOptions) -> str:
    """Log a model in MLflow's active run. Return its address."""
    import mlflow

    columns = model._make_prediction_columns()
    example = features.example if options.input_example else None
    taken = inspect.signature(mlflow.pyfunc.log_model).parameters
    name = "name" if "name" in taken else "artifact_path"  # before MLflow 3
    code = "code_paths" if "code_paths" in taken else "code_path"  # before MLflow 2.12
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / MLFLOW_FOLDER)
        model.save(f"file://{path}")  # also where the session's default file system is another one
        logged = mlflow.pyfunc.log_model(
            **{name: MODEL_NAME, code: options.code_paths},
            loader_module=__name__,
            data_path=path,
            signature=make_signature(features, columns, find_nullable(model)),
            input_example=example,
            pip_requirements=options.pip_requirements or list_requirements(model),
        )
    address: str = logged.model_uri
    return address


def find_nullable(model: TableModel) -> set[str]:
    """Return the features of numbers in which null is a value as any other: categories, and those with a
    replacement.
    """
    by_column = [model._value(name) or {} for name in ("categories", "null_values") if model.hasParam(name)]
    return {column for columns in by_column for column in columns}


def list_requirements(model: TableModel) -> list[str]:
    """Return the packages that a model needs where it is loaded, in the versions that are installed here."""
    loaded = [name for name in model._packages if _is_loaded(name)]
    return [f"spark-estimator=={__version__}", *filter(None, map(_pin, [*_REQUIRED, *loaded]))]


def _is_loaded(package: str) -> bool:
    import sys

    return package.replace("-", "_") in sys.modules


def _pin(package: str) -> str | None:
    try:
        return f"{package}=={importlib.metadata.version(package).partition('+')[0]}"
    except importlib.metadata.PackageNotFoundError:
        return None
