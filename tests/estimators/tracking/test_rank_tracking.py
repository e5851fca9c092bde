"""Each rank's part of an MLflow run: samples of its host, without the server and the driver's variables."""

from __future__ import annotations

import os
import pickle
import queue
import sys
import threading
from collections.abc import Mapping
from typing import Any

import pytest

from spark_estimator.estimators.tracking import rank_tracking
from spark_estimator.estimators.tracking.rank_tracking import RankTracking
from spark_estimator.observe import training_records


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> queue.Queue[str]:
    result: queue.Queue[str] = queue.Queue()
    monkeypatch.setattr(rank_tracking, "log_to_driver", result.put)
    return result


def test_samples_are_sent_as_records(logged: queue.Queue[str], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")  # nothing listens there
    records: queue.Queue[Mapping[str, Any]] = queue.Queue()

    def take(record: dict[str, Any]) -> None:
        records.put(record)
        if records.qsize() == 2:
            raise RuntimeError("enough")

    training_records.set_sink(take)
    try:
        RankTracking(None, 0.01).start_sampling()
        assert logged.get(timeout=60) == "mlflow: no system metrics of this rank are logged: RuntimeError: enough"
    finally:
        training_records.set_sink(None)
    first, second = records.get()["system"], records.get()["system"]
    assert first.keys() == second.keys() >= {"cpu_utilization_percentage", "network_receive_megabytes"}
    assert 0 < first["system_memory_usage_percentage"] < 100 and all(type(value) is float for value in first.values())


def test_nothing_of_the_drivers_environment_travels(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MLFLOW_TRACKING_TOKEN", "DATABRICKS_TOKEN", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "a secret")
    assert b"secret" not in pickle.dumps(RankTracking(5, 1.0))


def test_an_error_is_logged_on_the_driver_and_ends_nothing(
    logged: queue.Queue[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here mlflow cannot be imported."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "mlflow"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "mlflow", None)
    before = dict(os.environ)
    RankTracking(None, 1.0).start_sampling()
    text = logged.get(timeout=30)
    assert text.startswith("mlflow: no system metrics of this rank are logged: ModuleNotFoundError: ")
    assert dict(os.environ) == before


def test_a_rank_that_is_not_to_sample_imports_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    before = threading.active_count()
    RankTracking(10).start_sampling()
    assert threading.active_count() == before
