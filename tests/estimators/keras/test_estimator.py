"""`KerasEstimator`: its shapes, and parameters without effect."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("keras")

import keras

from spark_estimator import KerasEstimator
from spark_estimator.observe.status_line import Log

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def test_shapes_of_a_model() -> None:
    net = keras.Sequential([keras.layers.Input((2, 3)), keras.layers.Flatten(), keras.layers.Dense(4)])
    assert KerasEstimator(model=net).getModelShapes() == ([[-1, 2, 3]], [[-1, 4]])
    assert KerasEstimator(model=net).get_model_shapes() == ([[-1, 2, 3]], [[-1, 4]])
    with pytest.raises(ValueError, match=r"are not known: its class is not Keras' own, or it is not b.*keras\.Input"):
        KerasEstimator(model=keras.Sequential([keras.layers.Dense(1)])).getModelShapes()


def test_a_data_module_has_no_effect() -> None:
    with pytest.warns(UserWarning, match="data_module has no effect") as caught:
        KerasEstimator(data_module=object())
    assert caught[0].filename == __file__


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
