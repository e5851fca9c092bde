"""A fit of a line and its predictions, for driver programs."""

from __future__ import annotations

import torch
from pyspark.sql import SparkSession

from spark_estimator import TorchEstimator


def fit_and_transform(spark: SparkSession, num_proc: int = 2) -> dict[str, float]:
    """How far off a model is that was fitted to a line, on all rows."""
    frame = spark.range(0, 400, 1, 3).selectExpr("cast(id % 20 as float) / 10 - 1 as x")
    frame = frame.selectExpr("x", "2 * x - 1 as y")
    torch.manual_seed(1)
    model = torch.nn.Linear(1, 1)
    estimator = TorchEstimator(
        num_proc=num_proc,
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        loss=torch.nn.MSELoss(),
        feature_cols=["x"],
        label_cols=["y"],
        batch_size=40 // num_proc,
        epochs=8,
        random_seed=1,
        verbose=0,
    )
    rows = estimator.fit(frame).transform(frame).collect()
    return {"rows": len(rows), "furthest off": max(abs(row["y"] - row["y__output"]) for row in rows)}
