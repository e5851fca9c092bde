"""Tells MLflow of a training: a run with its parameters, the numbers of each epoch, and the model's folder."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any

from spark_estimator.errors import PythonEnvironmentError
from spark_estimator.estimators.history import History
from spark_estimator.estimators.params import TableParams

# What MLflow takes as a parameter's value.
_LONGEST_VALUE = 500
# MLflow refuses these characters in a metric's name, which a user may have chosen.
_NOT_IN_NAMES = re.compile(r"[^\w\-. /]", re.ASCII)


def client() -> Any:
    """The package.

    Raises:
        PythonEnvironmentError: it is not there.
    """
    try:
        import mlflow
    except ModuleNotFoundError as error:
        raise PythonEnvironmentError(
            "mlflow=True logs with MLflow, which is not there: pip install mlflow-skinny, or leave mlflow out."
        ) from error
    return mlflow


def log(estimator: TableParams, model: Any) -> str:
    """Logs a training that has ended, in a run of its own: below the active one, if there is one.

    Args:
        estimator: its parameters as text, those that are not None.
        model: the trained one: its history with an epoch for a step, its folder as the artifact ``model``, which
            ``TorchModel.load(mlflow.artifacts.download_artifacts(...))`` reads.

    Returns:
        The run's id.
    """
    mlflow = client()
    history: History = model.getHistory()
    chosen = {row.name: estimator.getOrDefault(row.name) for row in estimator._rows}
    parameters = {name: repr(value)[:_LONGEST_VALUE] for name, value in chosen.items() if value not in (None, [])}
    parameters.pop("model", None)  # it is there as an artifact
    with mlflow.start_run(nested=mlflow.active_run() is not None) as run, tempfile.TemporaryDirectory() as folder:
        mlflow.log_params(parameters)
        mlflow.set_tag("spark_estimator.run_id", model.getRunId())
        for row in history.rows():
            epoch = int(row.pop("epoch"))
            mlflow.log_metrics({_NOT_IN_NAMES.sub("_", name): value for name, value in row.items()}, step=epoch)
        path = str(Path(folder) / "model")
        model.save(path)
        mlflow.log_artifacts(path, "model")
        return str(run.info.run_id)
