"""The parameter mlflow."""

from __future__ import annotations

import pytest

from spark_estimator import TorchEstimator
from spark_estimator.estimators.mlflow_options import MlflowOptions


def test_true_false_and_options() -> None:
    assert MlflowOptions.from_parameter(False) is None
    options = MlflowOptions.from_parameter({"log_system_metrics": 2, "tags": {"n": 1}})
    assert options is not None and options.log_system_metrics == 2.0 and options.tags == {"n": "1"}
    assert TorchEstimator(mlflow={"run_name": "x"}).getMlflow() == {"run_name": "x"}
    assert TorchEstimator(mlflow=True).getMlflow() is True


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("yes", "mlflow must be True, False or a dict of options; got 'yes'"),
        ({"experiment": "x"}, r"has no option 'experiment'\. Did you mean 'experiment_name'\? Its options"),
        ({"log_every_n_steps": 0}, r"mlflow\['log_every_n_steps'\] must be at least 1"),
        ({"tags": "a"}, r"mlflow\['tags'\] must be a dict"),
        ({"tags": {"mlflow.parentRunId": "r"}}, r"the tag 'mlflow.parentRunId' is set by parent_run_id='r'\."),
        ({"registered_model_name": "a/b:c"}, "'a/b:c': the names of models in MLflow contain neither '/' nor ':'"),
        ({"registered_model_name": "m", "log_model": False}, "registered_model_name needs the model to be logged"),
    ],
)
def test_what_cannot_be_used(value: object, words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        TorchEstimator(mlflow=value)  # type: ignore[arg-type]
