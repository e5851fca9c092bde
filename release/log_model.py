"""Fits y = 3 x + 1 and has MLflow log the model; ``release.py`` runs it in an environment of the wheel.

The argument is the folder that gets the model, in a folder `model`.
"""

from __future__ import annotations

import os
import sys

import mlflow
import torch
from pyspark.sql import SparkSession

from spark_estimator import TorchEstimator
from spark_estimator.launch.spark.java_environment import choose_java_environment


def main(folder: str) -> None:
    """Fit, log, and copy what was logged."""
    os.environ.update(choose_java_environment(), PYSPARK_PYTHON=sys.executable)
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    rows = spark.range(200).selectExpr("id / 100 AS x", "3 * id / 100 + 1 AS y")
    mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")
    mlflow.search_experiments()  # makes the database, which may take longer than an estimator waits for a run
    torch.manual_seed(1)
    net = torch.nn.Linear(1, 1)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.05)
    TorchEstimator(
        num_proc=2, model=net, optimizer=optimizer, loss=torch.nn.MSELoss(), feature_cols=["x"], label_cols=["y"],
        batch_size=20, epochs=30, mlflow=True,
    ).fit(rows)  # fmt: skip
    (run,) = mlflow.search_runs(search_all_experiments=True, output_format="list")
    mlflow.artifacts.download_artifacts(f"runs:/{run.info.run_id}/model", dst_path=folder)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
