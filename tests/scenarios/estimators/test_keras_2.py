"""A model of Keras 2 from fit to the saved model, beside Keras 3 in the driver's process."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy
import pytest

pytest.importorskip("keras")
pytest.importorskip("pyspark")
pytest.importorskip("tf_keras")

import keras
import tf_keras

import spark_estimator.keras as hvd
from spark_estimator import DataError, KerasEstimator, KerasModel
from tests.estimators.histories import drop_times

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def network() -> Any:
    layers = [tf_keras.layers.Dense(4, activation="relu", input_shape=(2,)), tf_keras.layers.Dense(1)]
    return tf_keras.Sequential(layers)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_fit_transform_and_load(spark: SparkSession, tmp_path: Path) -> None:
    tf_keras.utils.set_random_seed(1)
    rows = numpy.random.RandomState(1).rand(120, 2).round(3)
    df = spark.createDataFrame([([float(a), float(b)], float(a + b)) for a, b in rows], "x array<double>, y double")
    estimator = KerasEstimator(
        num_proc=2,
        model=network(),
        optimizer=tf_keras.optimizers.legacy.Adam(0.05),
        loss="mse",
        metrics=[tf_keras.metrics.MeanAbsoluteError(name="mae")],
        feature_cols=["x"],
        label_cols=["y"],
        validation=0.2,
        batch_size=16,
        epochs=6,
        random_seed=3,
        verbose=0,
        callbacks=[hvd.callbacks.LearningRateWarmupCallback(0.05, 2), tf_keras.callbacks.TerminateOnNaN()],
        checkpoint_callback=hvd.callbacks.BestModelCheckpoint(),
    )
    fitted = estimator.fit(df)
    history = fitted.getHistory()
    assert list(drop_times(history)) == ["loss", "mae", "val_loss", "val_mae", "lr"]
    assert history["loss"][-1] < 0.5 * history["loss"][0]
    assert history["lr"][1:] == pytest.approx([0.1] * 5)  # that of both ranks, as in Horovod
    model = fitted.getModel()
    assert isinstance(model, tf_keras.Model) and type(model.optimizer) is tf_keras.optimizers.legacy.Adam
    path = str(tmp_path / "model")
    fitted.write().save(path)
    with pytest.raises(DataError, match=r"it is of Keras 2\.\d.*: pass trust=True"):
        KerasModel.load(path)
    loaded = KerasModel.load(path, trust=True)
    assert isinstance(loaded.getModel(), tf_keras.Model)
    predicted = [row["y__output"] for row in loaded.transform(df.limit(5)).collect()]
    assert predicted == pytest.approx(model.predict(rows[:5], verbose=0).reshape(-1).tolist(), abs=1e-5)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_lost_rank_is_replaced(spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    marker = str(tmp_path / "killed")

    class Mortal(tf_keras.callbacks.Callback):  # type: ignore[misc]
        """Kills its process once on rank 1, in the second epoch."""

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            rank, is_second = os.environ["HOROVOD_RANK"], int(self.model.optimizer.iterations) == 5
            if rank == "1" and is_second and not Path(marker).exists():
                Path(marker).touch()
                os.kill(os.getpid(), signal.SIGKILL)

    rows = numpy.random.RandomState(1).rand(120, 2)
    df = spark.createDataFrame([([float(a), float(b)], float(a + b)) for a, b in rows], "x array<double>, y double")
    df.repartition(2).write.parquet(str(tmp_path / "rows"))
    files = spark.read.parquet(str(tmp_path / "rows"))
    tf_keras.utils.set_random_seed(1)
    settings = {"model": network(), "optimizer": tf_keras.optimizers.Adam(0.05), "loss": "mse", "metrics": ["mae"]}
    settings |= {"num_proc": 2, "feature_cols": ["x"], "label_cols": ["y"], "batch_size": 16, "epochs": 4}
    settings |= {"random_seed": 3, "verbose": 0, "callbacks": [Mortal()]}
    with pytest.warns(UserWarning, match="max_restarts=1 without store"):
        fitted = KerasEstimator(**settings, max_restarts=1).fit(files)
    assert Path(marker).exists() and "spark_estimator: lost rank 1 (host " in capfd.readouterr().err
    undisturbed = KerasEstimator(**settings).fit(files)
    assert drop_times(fitted.getHistory()) == drop_times(undisturbed.getHistory())
    for weight, other in zip(fitted.getModel().get_weights(), undisturbed.getModel().get_weights(), strict=True):
        assert numpy.array_equal(weight, other)


def test_files_and_refusals(tmp_path: Path) -> None:
    path = str(tmp_path / "estimator")
    KerasEstimator(
        model=network(), optimizer=tf_keras.optimizers.Adam(0.25), loss=[tf_keras.losses.Huber(0.5)], metrics=["mae"]
    ).save(path)
    with pytest.raises(DataError, match=r"it is of Keras 2\.\d.*: pass trust=True"):
        KerasEstimator.load(path)
    loaded = KerasEstimator.load(path, trust=True)
    assert float(loaded.getOptimizer().learning_rate) == 0.25 and type(loaded.getModel()) is tf_keras.Sequential
    assert loaded.getLoss()[0].get_config()["delta"] == 0.5
    with pytest.raises(TypeError, match="an optimizer of Keras 2, as the model is"):
        KerasEstimator(
            model=network(), optimizer=keras.optimizers.SGD(0.1), loss="mse", feature_cols=["x"], label_cols=["y"]
        )._make_training()
