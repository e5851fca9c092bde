"""`KerasEstimator`: its shapes, data modules, and progress."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("keras")

import keras
import numpy
import pyarrow.parquet

from spark_estimator import KerasEstimator
from spark_estimator.data.prepared.module import DataModule
from spark_estimator.observe.status_line import Log
from tests.estimators.conftest import TRUTH

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def test_shapes_of_a_model() -> None:
    net = keras.Sequential([keras.layers.Input((2, 3)), keras.layers.Flatten(), keras.layers.Dense(4)])
    assert KerasEstimator(model=net).getModelShapes() == ([[-1, 2, 3]], [[-1, 4]])
    assert KerasEstimator(model=net).get_model_shapes() == ([[-1, 2, 3]], [[-1, 4]])
    with pytest.raises(ValueError, match=r"are not known: its class is not Keras' own, or it is not b.*keras\.Input"):
        KerasEstimator(model=keras.Sequential([keras.layers.Dense(1)])).getModelShapes()


class EveryOther(DataModule):
    """Each rank's rows are every `shard_count`-th, as tuples of features and labels, one epoch after the other."""

    def _batches(self, folder: str, size: int) -> list[Any]:
        table = pyarrow.parquet.read_table(folder, columns=self.schema_fields)
        arrays = [numpy.stack(table[name].to_numpy())[self.cur_shard :: self.shard_count] for name in ("features", "y")]
        starts = range(0, len(arrays[0]), size)
        return [tuple(array[start : start + size] for array in arrays) for start in starts]

    def train_data(self) -> list[Any]:
        return self._batches(self.train_dir, self.train_batch_size)

    def val_data(self) -> list[Any]:
        return self._batches(self.val_dir, self.val_batch_size)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_data_module_brings_the_rows(line: DataFrame, tmp_path: Path) -> None:
    net = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
    estimator = KerasEstimator(
        num_proc=2,
        model=net,
        optimizer=keras.optimizers.SGD(0.05),
        loss="mse",
        data_module=EveryOther,
        store=str(tmp_path),
        label_cols=["y"],
        validation="held",
        batch_size=10,
        epochs=6,
        verbose=0,
    )
    model = estimator.fit(line.select("features", "y", "held"))
    assert numpy.allclose(model.getModel().layers[0].kernel.numpy().ravel(), TRUTH, atol=0.1)
    history = model.getHistory()
    assert len(history["loss"]) == 6 and history["val_loss"][-1] < 0.1
    with pytest.raises(TypeError, match="data_module must be a class derived from"):
        KerasEstimator(data_module=object())


class Slow(keras.callbacks.Callback):
    """Makes steps long enough for two progress reports."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        time.sleep(0.3)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_progress(line: DataFrame, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(Log, "interval", 0.2)
    net = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
    estimator = KerasEstimator(
        num_proc=2,
        model=net,
        optimizer=keras.optimizers.SGD(0.05),
        loss="mse",
        metrics=["mae"],
        callbacks=[Slow()],
        feature_cols=["features"],
        label_cols=["y"],
        validation="held",
        batch_size=16,
        epochs=3,
    )
    history = estimator.fit(line).getHistory()
    assert list(history) == ["loss", "mae", "val_loss", "val_mae"]
    errors = capsys.readouterr().err.splitlines()
    lines = "\n".join(text for text in errors if text.startswith("spark_estimator: epoch "))
    assert re.search(r"epoch 1/3 \[#*\.*\], (validation )?step \d/[25], .*loss \d", lines), lines
    assert re.search(r" rows/s, ETA 0:0\d, .*; epoch \d: loss [\d.]+, val_loss [\d.]+, mae [\d.]+", lines), lines
