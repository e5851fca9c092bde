"""A user's driver program: `TorchEstimator` on files, through a store with a rank that is killed, and in folds.

Arguments: the master or remote address; a folder that driver and executors share. It prints what it has found out on a
line ``RESULT {...}``.
"""

import json
import logging
import os
import signal
import sys
import traceback
from pathlib import Path

import torch
import torchmetrics
from sessions import session
from torch import nn

from spark_estimator import TorchEstimator
from spark_estimator.store import Store

where, folder = sys.argv[1:]
ROWS = 300


class Mortal(nn.Linear):
    """Kills its process in the first attempt on rank 1: in the second of two epochs of 6 batches."""

    def forward(self, x):
        self.batches = getattr(self, "batches", 0) + 1
        on_rank = os.environ.get("SPARK_ESTIMATOR_JOB") and os.environ["HOROVOD_RANK"] == "1"
        if on_rank and os.environ["SPARK_ESTIMATOR_ATTEMPT"] == "1" and self.batches == 8:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(x)


class Lines(logging.Handler):
    def __init__(self):
        super().__init__()
        self.texts = []

    def emit(self, record):
        self.texts.append(record.getMessage())


def estimator(net=None, **changed):
    torch.manual_seed(3)
    net = net or nn.Linear(2, 1)
    params = {
        "num_proc": 2,
        "model": net,
        "optimizer": torch.optim.SGD(net.parameters(), lr=0.1),
        "loss": nn.MSELoss(),
        "feature_cols": ["a", "b"],
        "label_cols": ["y"],
        "batch_size": 25,
        "epochs": 2,
        "random_seed": 7,
        "verbose": 0,
    }
    return TorchEstimator(**{**params, **changed})


def description_of(model):
    return {
        "history": [{name: part for name, part in entry.items() if name != "time"} for entry in model.getHistory()],
        "weights": [value.flatten().tolist() for value in model.getModel().state_dict().values()],
    }


def folds(frame):
    """A grid over a pipeline of Spark ML's own stages and this package's."""
    from pyspark.ml import Pipeline
    from pyspark.ml.evaluation import RegressionEvaluator
    from pyspark.ml.feature import VectorAssembler
    from pyspark.ml.tuning import CrossValidator, ParamGridBuilder

    assembler = VectorAssembler(inputCols=["a", "b"], outputCol="both")
    steps = {"validation": 0.2, "restore_best": True, "monitor": "validation.mae", "mode": "min"}
    metrics = {"mae": torchmetrics.MeanAbsoluteError()}
    made = estimator(
        feature_cols=["both"], prediction_col="prediction", num_proc=1, epochs=12, metrics=metrics, **steps
    )
    grid = ParamGridBuilder().baseOn({made.warmup_steps: 3, made.gradient_clip_norm: 1.0, made.validate_every_steps: 2})
    grid = grid.addGrid(made.learning_rate, [0.4]).addGrid(made.lr_scheduler, ["cosine"]).build()
    validated = CrossValidator(
        estimator=Pipeline(stages=[assembler, made]),
        estimatorParamMaps=grid,
        evaluator=RegressionEvaluator(labelCol="y", metricName="rmse"),
        numFolds=2,
        seed=4,
    ).fit(frame)
    return {
        "errors": validated.avgMetrics,
        "rows": validated.transform(frame).filter("abs(prediction - y) < 0.2").count(),
    }


def categories(frame):
    """A column of texts: its vocabulary, and the rows whose prediction is the number of their text's id."""
    table = nn.Embedding(4, 1)
    made = estimator(table, feature_cols=["city"], categories={"city": 4}, epochs=1)
    model = made.fit(frame.selectExpr("concat('city ', int(b * 7 + 0.5) % 3) AS city", "y"))
    ids = {city: number for number, city in enumerate(model.getCategories()["city"], 1)}
    weights = model.getModel().weight.flatten().tolist()
    cities = [(city,) for city in ("city 0", "city 1", "city 2", "city 3", None)]
    predicted = model.transform(frame.sparkSession.createDataFrame(cities, "city string")).collect()
    return {
        "known": model.getCategories(),
        "right": [row.y__output == weights[ids.get(row.city, 0)] for row in predicted],
    }


def main():
    lines = Lines()
    logging.getLogger("spark_estimator").addHandler(lines)
    logging.getLogger("spark_estimator").setLevel(logging.INFO)
    spark = session(where)
    numbers = spark.range(0, ROWS, 1, 2).selectExpr(f"id / {ROWS} AS a", "id % 7 / 7 AS b")
    numbers.selectExpr("*", "a * 2 - b AS y").write.parquet(f"{folder}/rows")
    frame = spark.read.parquet(f"{folder}/rows")
    results = {"files": description_of(estimator().fit(frame)), "lines": list(lines.texts)}
    store = Store.create(f"{folder}/store")
    kept = {"store": store, "materialize": True, "run_id": "run", "checkpoint_every_steps": 2, "max_restarts": 1}
    torch.manual_seed(3)
    results["killed"] = description_of(estimator(Mortal(2, 1), **kept).fit(frame.filter("a < 2")))
    results["undisturbed"] = description_of(estimator(store=store).fit_on_parquet())
    results["left"] = sorted(
        str(path.relative_to(folder)) for path in Path(folder, "store", "runs").rglob("*") if path.is_file()
    )
    try:
        results["folds"] = folds(frame)
    except Exception as error:
        traceback.print_exc()
        results["folds"] = {"type": type(error).__name__, "text": str(error)[:1000]}
    results["categories"] = categories(frame)
    print("RESULT " + json.dumps(results), flush=True)
    spark.stop()


try:
    main()
except BaseException:
    traceback.print_exc()
    raise
