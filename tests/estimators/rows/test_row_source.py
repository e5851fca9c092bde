"""The source of the rows of `TorchEstimator.fit`: Parquet files that the ranks read, a store, Spark's tasks."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from spark_estimator import DataError, TorchEstimator
from spark_estimator.data import data_sets
from spark_estimator.data.materialize import MANIFEST
from spark_estimator.store import Store
from tests.estimators.conftest import line_rows, linear

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Make = Callable[..., TorchEstimator]
pytestmark = pytest.mark.timeout(240)


def still(estimator: Make, **changed: object) -> TorchEstimator:
    """A learning rate of 0: its losses are averages over known rows, however they are spread."""
    net = linear()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    return estimator(model=net, optimizer=optimizer, epochs=1, validation="held", sample_weight_col="w", **changed)


def losses(model: object) -> tuple[float, float]:
    (entry,) = model.getHistory()  # type: ignore[attr-defined]
    return entry["train"]["loss"], entry["validation"]["loss"]


def expected() -> tuple[float, float]:
    """Of `still`."""
    features, labels = (torch.from_numpy(each) for each in line_rows())
    with torch.no_grad():
        errors = nn.functional.mse_loss(linear()(features).reshape(-1), labels, reduction="none")
    number = torch.arange(len(errors))
    weighted = errors * 2 * (number % 2)
    return weighted[number % 4 != 0].mean().item(), weighted[number % 4 == 0].mean().item()


def test_a_frame_of_files_is_read_by_the_ranks(
    line: DataFrame, estimator: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("spark_estimator"), "propagate", True)
    caplog.set_level(logging.INFO, logger="spark_estimator")
    line.write.parquet(f"{tmp_path}/line")
    frame = line.sparkSession.read.parquet(f"{tmp_path}/line")
    directly = still(estimator).fit(frame)
    assert "Parquet files (203 rows) directly" in caplog.text
    assert losses(directly) == pytest.approx(expected(), rel=1e-5)
    caplog.clear()
    through_spark = still(estimator, read_files=False).fit(frame)
    assert "through Spark's tasks: read_files is False" in caplog.text
    assert losses(through_spark) == pytest.approx(expected(), rel=1e-5)


@pytest.mark.slow
def test_a_store_holds_the_rows_for_this_fit_and_others(
    line: DataFrame, estimator: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("spark_estimator"), "propagate", True)
    caplog.set_level(logging.INFO, logger="spark_estimator")
    store = Store.create(f"{tmp_path}/store")
    line.write.parquet(f"{tmp_path}/line")
    frame = line.sparkSession.read.parquet(f"{tmp_path}/line").filter("x0 < 100")  # more than files
    kept = {"store": store, "materialize": True}
    assert losses(still(estimator, **kept).fit(frame)) == pytest.approx(expected(), rel=1e-5)
    folder = tmp_path / "store" / "intermediate_train_data"
    assert "wrote 203 rows" in caplog.text and (folder / MANIFEST).exists()
    (folder / "part-99999-of-an-attempt-that-failed.parquet").write_bytes(b"torn")
    caplog.clear()

    again = still(estimator, **kept).fit(frame)
    assert f"the rows of this DataFrame are in {folder} already" in caplog.text
    assert losses(again) == pytest.approx(expected(), rel=1e-5)
    assert losses(still(estimator, store=store).fit_on_parquet()) == pytest.approx(expected(), rel=1e-5)


@pytest.mark.slow
def test_other_rows_go_elsewhere(
    line: DataFrame, estimator: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of another plan, or of files that have changed."""
    monkeypatch.setattr(logging.getLogger("spark_estimator"), "propagate", True)
    caplog.set_level(logging.INFO, logger="spark_estimator")
    store = Store.create(f"{tmp_path}/store")
    line.write.parquet(f"{tmp_path}/line")
    frame = line.sparkSession.read.parquet(f"{tmp_path}/line").filter("x0 < 100")
    kept = {"store": store, "materialize": True}
    folder = tmp_path / "store" / "intermediate_train_data"
    still(estimator, **kept).fit(frame)
    doubled = frame.withColumn("y", frame.y * 2)
    assert losses(still(estimator, **kept).fit(doubled)) != pytest.approx(expected(), rel=1e-5)
    line.limit(40).write.mode("overwrite").parquet(f"{tmp_path}/line")
    caplog.clear()
    still(estimator, **kept).fit(line.sparkSession.read.parquet(f"{tmp_path}/line").filter("x0 < 100"))
    assert "wrote 40 rows" in caplog.text
    (tmp_path / "store" / "intermediate_train_data.7").mkdir()
    (tmp_path / "store" / "intermediate_train_data.7" / "part-0.parquet").write_bytes(b"torn")
    listed = data_sets(store)  # type: ignore[arg-type]
    assert [(data_set.index, data_set.rows) for data_set in listed] == [(None, 203), (0, 203), (1, 40), (7, None)]
    assert {data_set.session for data_set in listed[:3]} == {line.sparkSession.sparkContext.applicationId}
    assert all(
        data_set.written is not None and data_set.written <= datetime.now(timezone.utc) for data_set in listed[:3]
    )
    assert (listed[3].session, listed[3].written, listed[3].size) == (None, None, 4)
    listed[0].remove()
    listed[3].remove()
    caplog.clear()
    still(estimator, **kept).fit(line.sparkSession.read.parquet(f"{tmp_path}/line").filter("x0 < 100"))
    assert f"in {folder}.1 already" in caplog.text
    assert [data_set.index for data_set in data_sets(store)] == [0, 1]  # type: ignore[arg-type]


@pytest.mark.slow
def test_with_limits_rows_are_streamed_from_files_or_from_the_store(
    line: DataFrame, estimator: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("spark_estimator"), "propagate", True)
    caplog.set_level(logging.INFO, logger="spark_estimator")
    limits = {"cache_bytes": 1000, "buffer_bytes": 500}
    with pytest.raises(ValueError, match=r"with cache_bytes the ranks read rows from files .* Set store="):
        still(estimator, **limits).fit(line)
    streamed = still(estimator, store=Store.create(f"{tmp_path}/store"), **limits).fit(line)
    assert "written to the store, because of cache_bytes" in caplog.text and "wrote 203 rows" in caplog.text
    assert losses(streamed) == pytest.approx(expected(), rel=1e-5)


@pytest.mark.slow
def test_rows_are_copied_to_the_store_for_the_time_of_a_training_that_recovers(
    line: DataFrame, estimator: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("spark_estimator"), "propagate", True)
    caplog.set_level(logging.INFO, logger="spark_estimator")
    recovers = {"max_restarts": 1, "run_id": "run"}
    copied = still(estimator, store=Store.create(f"{tmp_path}/store"), **recovers).fit(line.repartition(3))
    assert "wrote 203 rows in 2 Parquet files" in caplog.text and "until the end of the training" in caplog.text
    assert losses(copied) == pytest.approx(expected(), rel=1e-5)
    assert sorted(path.name for path in (tmp_path / "store").iterdir()) == ["runs"], "the copy is removed"
    caplog.clear()
    in_memory = still(estimator, store=Store.create("memory://store"), **recovers).fit(line)
    assert "a lost rank will restart all ranks, as their rows cannot be copied to the store" in caplog.text
    assert losses(in_memory) == pytest.approx(expected(), rel=1e-5)
    caplog.clear()
    with pytest.warns(UserWarning, match="max_restarts=1 without store: the loss of one rank costs everything"):
        still(estimator, max_restarts=1).fit(line)
    monkeypatch.setenv("SPARK_ESTIMATOR_DRIVER_CHANNEL", "0")
    still(estimator, store=Store.create(f"{tmp_path}/other"), **recovers).fit(line)
    assert caplog.text.count("through Spark's tasks") == 2 and "wrote" not in caplog.text, (
        "nothing could replace a rank"
    )


def test_what_spark_has_prepared_and_what_is_torn(line: DataFrame, estimator: Make, tmp_path: Path) -> None:
    store = Store.create(str(tmp_path))
    with pytest.raises(DataError, match=r"intermediate_train_data holds no complete data: neither"):
        estimator(store=store).fit_on_parquet()
    line.filter("NOT held").write.parquet(f"{tmp_path}/intermediate_train_data")
    line.filter("held").write.parquet(f"{tmp_path}/intermediate_val_data")
    made = still(estimator, store=store)
    apart = made.fit_on_parquet({made.validation: 0.1})  # type: ignore[attr-defined]
    assert losses(apart) == pytest.approx(expected(), rel=1e-5), "its share is what lies apart"
    for changed, text in ((line.drop("y"), "not there"), (line.withColumn("y", line.y.cast("string")), "string")):
        changed.filter("held").write.mode("overwrite").parquet(f"{tmp_path}/intermediate_val_data")
        with pytest.raises(DataError, match=rf"'y' is .* in .*train_data/.*, and {text} in .*val_data/.*parquet"):
            made.fit_on_parquet({made.validation: 0.1})  # type: ignore[attr-defined]
    Path(tmp_path, "intermediate_train_data", "_SUCCESS").unlink()
    with pytest.raises(DataError, match="may be the rest of a write that did not end"):
        made.fit_on_parquet()
    with pytest.raises(ValueError, match=r"materialize=True needs a store whose folders are known"):
        still(estimator, materialize=True).fit(line)
