"""`KerasEstimator`: its shapes and progress."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("keras")

import cloudpickle
import keras
import numpy
import pyarrow.parquet

from spark_estimator import KerasEstimator, KerasModel
from spark_estimator.data.parquet import FileRows, find_files
from spark_estimator.data.row_encoder import RowEncoder
from spark_estimator.estimators.keras import start
from spark_estimator.observe.status_line import Log
from tests.estimators.histories import drop_times
from tests.estimators.specs import X, Y, spec_of
from tests.ranks import run_ranks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def test_shapes_of_a_model() -> None:
    net = keras.Sequential([keras.layers.Input((2, 3)), keras.layers.Flatten(), keras.layers.Dense(4)])
    assert KerasEstimator(model=net).getModelShapes() == ([[-1, 2, 3]], [[-1, 4]])
    assert KerasEstimator(model=net).get_model_shapes() == ([[-1, 2, 3]], [[-1, 4]])
    with pytest.raises(ValueError, match=r"are not known: its class is not Keras' own, or it is not b.*keras\.Input"):
        KerasEstimator(model=keras.Sequential([keras.layers.Dense(1)])).getModelShapes()


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
    assert list(drop_times(history)) == ["loss", "mae", "val_loss", "val_mae"]
    errors = capsys.readouterr().err.splitlines()
    lines = "\n".join(text for text in errors if text.startswith("spark_estimator: epoch "))
    assert re.search(r"epoch \d/3 \[#*\.*\], (validation )?step \d/[25], [^;]*loss \d", lines), lines
    assert re.search(r" rows/s, ETA [\d:]+, .*; epoch \d: loss [\d.]+, val_loss [\d.]+, mae [\d.]+", lines), lines


def registered() -> list[Any]:
    """Models with layers, a loss and a metric that are registered where they are defined, as in a notebook's cell."""

    @keras.saving.register_keras_serializable("own")
    class Twice(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            return 2 * x

    @keras.saving.register_keras_serializable()
    class Net(keras.Model):
        def __init__(self, width: int = 2, **options: Any) -> None:
            super().__init__(**options)
            self.width = width
            self.inner, self.last = keras.layers.Dense(width), keras.layers.Dense(1)

        def call(self, x: Any) -> Any:
            return self.last(self.inner(x))

        def get_config(self) -> dict[str, Any]:
            return {**super().get_config(), "width": self.width}

    @keras.saving.register_keras_serializable()
    class Squares(keras.losses.Loss):
        def call(self, y_true: Any, y_pred: Any) -> Any:
            return keras.ops.mean(keras.ops.square(y_true - y_pred), -1)

    @keras.saving.register_keras_serializable("own")
    class Errors(keras.metrics.Mean):
        def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
            return super().update_state(keras.ops.abs(y_true - y_pred), sample_weight)

    layers = [keras.layers.Input((3,)), Twice(), keras.layers.Dense(1)]
    models = [keras.Sequential(layers), Net(3)]
    for model in models:
        model.compile(keras.optimizers.Ftrl(0.01), Squares(), metrics=[Errors(name="errors")])
    return models


def trained_there(rank: int, spec: bytes) -> Any:
    return start.train(cloudpickle.loads(spec))


@pytest.mark.timeout(300)
def test_registered_classes_that_no_module_has_come_back(tmp_path: Path) -> None:
    numbers = numpy.random.default_rng(0).standard_normal((20, 3)).astype(numpy.float32)
    table = pyarrow.table({"x": numbers.tolist(), "y": numbers.sum(1)})
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet")
    source = FileRows(find_files(str(tmp_path / "rows.parquet")), RowEncoder(("x", "y"), (X, Y)))
    environ = {"KERAS_BACKEND": keras.backend.backend()}
    for number, model in enumerate(registered()):
        training = KerasEstimator(model=model, label_cols=["y"])._make_training()
        spec = cloudpickle.dumps(spec_of(source=source, framework=training.framework))
        (result,) = run_ranks(1, trained_there, 200, args=(spec,), environ=environ)
        back, _ = training.load_trained(result.state)
        assert type(back) is type(model) and back.compiled and type(back.loss).__name__ == "Squares"
        _, errors = back.evaluate(numbers, numbers.sum(1, keepdims=True), verbose=0)
        plain = numpy.abs(back.predict(numbers, verbose=0)[:, 0] - numbers.sum(1)).mean()
        assert numpy.isclose(errors, plain, rtol=1e-4)
        fitted = KerasModel(model=back, inputs=[X], outputs=[1], label_types=["float"], label_columns=["y"])
        fitted.save(str(tmp_path / str(number)))
        again = KerasModel.load(str(tmp_path / str(number)))  # they are registered here, so that no trust is needed
        assert numpy.allclose(again.predict(numbers), fitted.predict(numbers))
