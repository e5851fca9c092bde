"""`KerasEstimator` in separate programs: on a Spark Connect server, and on executors in separate processes.

The program is ``tests/launch/drivers/keras_fits.py``; ``tests/estimators/keras/test_training.py``
tries what ranks compute.
"""

from __future__ import annotations

import contextlib
import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark.sql.connect.session")
pytest.importorskip("keras")

from tests.launch import clusters

pytestmark = pytest.mark.slow


@pytest.mark.timeout(500)
@pytest.mark.parametrize(("backend", "kind"), [("tensorflow", "connect"), ("torch", "local-cluster[2,1,1024]")])
def test_fit_transform_and_folders(tmp_path: Path, backend: str, kind: str) -> None:
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed here")
    with contextlib.ExitStack() as stack:
        address = stack.enter_context(clusters.connect_server(tmp_path)) if kind == "connect" else kind
        arguments = (backend, address, str(tmp_path / "data"))
        driver = stack.enter_context(
            clusters.driver("keras_fits.py", *arguments, folder=tmp_path, env={"TF_CPP_MIN_LOG_LEVEL": "3"})
        )
        results: dict[str, Any] = dict(driver.wait(450))
        output = driver.output()
    assert "spark_estimator: lost rank 1 (host " in output and output.count("attempt 1 of 2 failed: rank 1 (host ") == 1
    assert "epoch 3/3, loss " in output
    assert results["killed"] == results["undisturbed"], "bit for bit, with another process as rank 1"
    assert results["restarted"] == results["by Spark"], "bit for bit, after a restart from the store"
    names = {"loss", "number_loss", "kind_loss", "number_mae", "kind_accuracy"}
    history = results["killed"]["history"]
    assert set(history) == names | {f"val_{name}" for name in names}
    assert len(history["loss"]) == 3 and history["loss"][2] < history["loss"][0]
    assert results["untouched"]
    assert max(results["predictions"]) < 1e-5
    assert "uses Doubling, which aren't Keras' own" in results["untrusted"]
    assert "Pass your own as custom_objects={'Doubling': Doubling}, or pass trust=True" in results["untrusted"]
    assert results["again"] == [True, True]
    assert results["estimator"] == 0.5
    assert results["shapes"] == [[[-1, 2, 2], [-1, 1]], [[-1, 1], [-1, 3]]]
    assert results["elsewhere"] == "Adam 12", results["elsewhere"]
    for name, words in {
        "shape": "DataError: square: 4 values a row, and input 1 of the model takes the shape [-1, 3], which has 3",
        "classes": "DataError: column 'k' contains class 2, but the model's output has 2 classes",
        "outputs": "returns 2 outputs, and there are 1 label columns ('y'): one for each output.",
        "inputs": "takes 2 inputs, but there are 3 feature columns ('square', 'one', 'y')",
        "optimizer": "TypeError: optimizer is an optimizer of Keras 3, or its name; model is not compiled",
        "loss": "ValueError: loss is missing, and the model is not compiled with one",
        "callbacks": "TypeError: callbacks are objects of keras.callbacks.Callback; one was <built-in function print>",
        "model": "TypeError: model must be a model of Keras 3 or Keras 2 (keras.Model); got the class Dense; pass",
    }.items():
        assert words in results["refusals"][name], results["refusals"][name]


FIT = """
import sys
import keras
from pyspark.sql import SparkSession
from spark_estimator.keras import KerasEstimator

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
rows = spark.createDataFrame([(n / 50, n / 25) for n in range(50)], "x float, y float")
model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
KerasEstimator(
    model=model, optimizer="sgd", loss="mse", feature_cols=["x"], label_cols=["y"], num_proc=2, epochs=1
).fit(rows)
spark.stop()
print("RESULT {}", flush=True)
"""


@pytest.mark.timeout(240)
@pytest.mark.parametrize("level", [None, "0"])
def test_the_ranks_print_what_matters_of_tensorflow_s_start(tmp_path: Path, level: str | None) -> None:
    pytest.importorskip("tensorflow")
    program = tmp_path / "fit.py"
    program.write_text(FIT)
    environ = {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": level}
    with clusters.driver(program, folder=tmp_path, env=environ) as driver:
        driver.wait(200)
        lines = [line for line in driver.output().splitlines() if re.match(r"\[[01]\]<stderr>:", line)]
    left_out = [line for line in lines if "start-up lines of TensorFlow left out; TF_CPP_MIN_LOG_LEVEL=0" in line]
    if level is None:
        assert len(left_out) == 2, "one of each rank"
        assert len(lines) <= 4, lines  # without a GPU also CUDA's error, which may explain a failure
    else:
        assert not left_out
        assert sum("absl::InitializeLog()" in line for line in lines) >= 2, lines
