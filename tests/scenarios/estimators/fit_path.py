"""Prints the files that a DataFrame passes through on the driver, in ``fit`` until the launch and in ``transform``.

A file counts while one of its functions holds the DataFrame, as an argument or in an argument's attribute: whether the
function was entered or returned to. ``python -m tests.scenarios.estimators.fit_path FOLDER``; Keras runs on torch.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import keras
import torch
from lightning import LightningModule
from pyspark.sql import DataFrame, SparkSession

import spark_estimator
from spark_estimator import KerasEstimator, TorchEstimator, TorchModel
from spark_estimator.data.fields import Field
from spark_estimator.estimators import backends
from spark_estimator.estimators.lightning.estimator import TorchEstimator as LightningEstimator
from spark_estimator.launch.spark.java_environment import choose_java_environment
from spark_estimator.store import Store

PACKAGE = Path(spark_estimator.__file__).parent
LAUNCH = backends.launch_training.__code__


class Launched(BaseException):
    """The training would start now."""


def path_of(call: Callable[[], object]) -> list[str]:
    """Return the files that the DataFrame passes through, until a launch, in order; none follows itself."""
    path: list[str] = []

    def holds_frame(frame: FrameType) -> bool:
        code = frame.f_code
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        arguments = [frame.f_locals.get(name) for name in names]
        inside = [
            value
            for argument in arguments
            if type(argument).__module__.startswith("spark_estimator")
            for value in getattr(argument, "__dict__", {}).values()
        ]
        return any(isinstance(value, DataFrame) for value in (*arguments, *inside))

    def note(frame: FrameType) -> None:
        file = Path(frame.f_code.co_filename)
        if file.is_relative_to(PACKAGE) and holds_frame(frame):
            name = str(file.relative_to(PACKAGE))
            if path[-1:] != [name]:
                path.append(name)

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code is LAUNCH:
            sys.setprofile(None)
            raise Launched
        if event == "call":
            note(frame)
        elif event == "return" and frame.f_back is not None:
            note(frame.f_back)

    sys.setprofile(profile)
    try:
        call()
    except Launched:
        pass
    finally:
        sys.setprofile(None)
    return path


class Module(LightningModule):
    """Three inputs, one output."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Linear(3, 1)

    def forward(self, x: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return self.net(torch.cat([x, v], dim=1))

    def training_step(self, batch: dict[str, torch.Tensor], number: int) -> torch.Tensor:
        return torch.nn.functional.mse_loss(self(batch["x"], batch["v"]).reshape(-1), batch["y"].float())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


def estimators(**parameters: Any) -> dict[str, Any]:
    """One of each framework, for a column of arrays that need padding and a scalar one."""
    shared = {"num_proc": 2, "feature_cols": ["x", "v"], "label_cols": ["y"], "padding": 0.0, **parameters}
    net = torch.nn.Linear(3, 1)
    sequential = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    return {
        "torch": TorchEstimator(
            model=net, optimizer=torch.optim.SGD(net.parameters(), 0.1), loss=torch.nn.MSELoss(), **shared
        ),
        "keras": KerasEstimator(model=sequential, optimizer="sgd", loss="mse", **shared),
        "lightning": LightningEstimator(model=Module(), **shared),
    }


def main(folder: str) -> None:
    os.environ.update(choose_java_environment(), PYSPARK_PYTHON=sys.executable)
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    rows = [(float(number), [1.0, 2.0][: 1 + number % 2], number % 2) for number in range(20)]
    made = session.createDataFrame(rows, "x double, v array<double>, y int")
    made.write.parquet(f"{folder}/rows")
    paths: dict[str, dict[str, list[str]]] = {}
    for case, frame, parameters in (
        ("through Spark", made, {}),
        ("files", session.read.parquet(f"{folder}/rows"), {}),
        ("materialized", made, {"store": Store.create(f"{folder}/store"), "materialize": True}),
    ):
        for framework, estimator in estimators(**parameters).items():
            paths.setdefault(framework, {})[case] = path_of(lambda: estimator.fit(frame))  # noqa: B023
    inputs = [Field(("x", "v"), ("c0", "c1"), (1, 2), "float32", (3,), (None, 0.0))]
    known: dict[str, Any] = {"inputs": inputs, "outputs": [1], "label_types": ["int"], "label_columns": ["y"]}
    model = TorchModel(model=torch.nn.Linear(3, 1), feature_columns=["x", "v"], **known)
    paths["torch"]["transform"] = path_of(lambda: model.transform(made))
    print(json.dumps(paths))
    session.stop()


if __name__ == "__main__":
    main(sys.argv[1])
