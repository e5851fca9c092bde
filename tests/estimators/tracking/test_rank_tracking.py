"""Each rank's part of an MLflow run: variables of the driver, and the start of the sampling."""

from __future__ import annotations

import os
import pickle
import queue
import sys
import threading

import pytest

from spark_estimator.estimators.tracking import rank_tracking
from spark_estimator.estimators.tracking.rank_tracking import RankTracking, SystemMetrics, credentials_in


def test_ranks_get_what_reaches_the_server_and_not_the_driver_s_run() -> None:
    environ = {
        "MLFLOW_TRACKING_TOKEN": "t",
        "MLFLOW_TRACKING_URI": "http://driver",
        "MLFLOW_RUN_ID": "r",
        "MLFLOW_EXPERIMENT_ID": "1",
        "MLFLOW_EXPERIMENT_NAME": "n",
        "DATABRICKS_HOST": "h",
        "AWS_SECRET_ACCESS_KEY": "s",
        "MY_AWS_KEY": "other",
        "PATH": "/bin",
    }
    assert credentials_in(environ) == {
        "MLFLOW_TRACKING_TOKEN": "t",
        "DATABRICKS_HOST": "h",
        "AWS_SECRET_ACCESS_KEY": "s",
    }
    assert credentials_in({}) == {}


def test_credentials_are_not_shown() -> None:
    metrics = SystemMetrics("run", "http://server", None, {"MLFLOW_TRACKING_TOKEN": "secret"})
    assert "secret" not in repr(RankTracking(5, metrics))
    assert pickle.loads(pickle.dumps(metrics)) == metrics


def test_an_error_is_logged_on_the_driver_and_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here mlflow cannot be imported; the variables are set before."""
    logged: queue.Queue[str] = queue.Queue()
    monkeypatch.setitem(sys.modules, "mlflow", None)
    monkeypatch.setattr(rank_tracking, "log_to_driver", logged.put)
    monkeypatch.setenv("AWS_REGION", "here")
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "")
    monkeypatch.delenv("MLFLOW_TRACKING_TOKEN")
    environment = {"AWS_REGION": "there", "MLFLOW_TRACKING_TOKEN": "t"}
    RankTracking(None, SystemMetrics("run", "http://server", None, environment)).sample_system(3)
    text = logged.get(timeout=30)
    assert text.startswith("mlflow: no system metrics of this rank are logged: ModuleNotFoundError: ")
    assert (os.environ["AWS_REGION"], os.environ["MLFLOW_TRACKING_TOKEN"]) == ("here", "t"), "the rank's own stay"


def test_a_rank_that_is_not_to_sample_imports_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    before = threading.active_count()
    RankTracking(10).sample_system(0)
    assert threading.active_count() == before
