"""Times an estimator's batches and predictions, and compares them with numpy and with Spark's own inference.

``python -m benchmarks.estimator [--rows 1000000] [--rounds 5]`` prints a line for each backend: rows per
second (the median of interleaved rounds), and how many times faster than this backend ours is.

- *batches*: shuffled batches of 1,024 rows from a rank's spool, on one thread; the bound is numpy's gather of the same
  rows in one call. Rows have 20 float32 numbers; a second case has a tenth of the rows, with 784 numbers each.
- *predictions* of a network of 20, 64 and 1 units for a column of vectors, into a column that Spark averages: ours;
  `predict_batch_udf` on the same column; where MLflow is installed, `mlflow.pyfunc.spark_udf` of a model that calls the
  network; and row by row, as Horovod's estimators predict, on a hundredth of the rows.

Each round compares the means of the results.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import shlex
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import nn

from benchmarks import programs, tables
from benchmarks.backends import Backend, time_interleaved
from benchmarks.command_line import ended_by_signals, positive
from benchmarks.launch import session
from spark_estimator.collectives import context
from spark_estimator.console import end_with_reader
from spark_estimator.data.fields import Field
from spark_estimator.data.rank.rank_rows import RankRows
from spark_estimator.estimators.torch.model import TorchModel

_MODULE = "benchmarks.estimator"
_BATCH = 1024
_WIDTH = 20


def batch_backends(rows: int, width: int) -> list[Backend]:
    """Shuffled batches: this package's, and numpy's gather of all rows in one call."""
    matrix = numpy.random.default_rng(0).random((rows, width), numpy.float32)
    spooled = RankRows(([matrix],), numpy.arange(rows), (rows,))
    epochs = itertools.count()

    def ours() -> float:
        batches = spooled.read_batches(_BATCH, None, (1, next(epochs)))
        return sum(float(batch.matrices[0][:, 0].sum()) for batch in batches) / rows

    def gathered() -> float:
        order = numpy.random.default_rng([1, 2, 0]).permutation(rows)
        return float(matrix.take(order, axis=0)[:, 0].sum(dtype=numpy.float64)) / rows

    return [Backend(f"batches of {width}, ours", rows, ours), Backend(f"batches of {width}, bound", rows, gathered)]


def mlflow_function(spark: Any, net: nn.Module, folder: str) -> Any:
    """`mlflow.pyfunc.spark_udf` of a model that calls `net` with all rows of a batch.

    Args:
        folder: a new one, for the model.
    """
    import mlflow

    base: Any = mlflow.pyfunc.PythonModel  # type: ignore[attr-defined,unused-ignore]

    class Predictor(base):
        def predict(self, context: Any, model_input: Any, params: Any = None) -> Any:
            with torch.inference_mode():
                return net(torch.from_numpy(numpy.stack(model_input["x"].tolist()))).numpy().reshape(-1)

    mlflow.pyfunc.save_model(folder, python_model=Predictor(), pip_requirements=[])
    return mlflow.pyfunc.spark_udf(spark, folder, result_type="float", env_manager="local")


def prediction_backends(spark: Any, rows: int, folder: str) -> list[Backend]:
    """Predictions: this package's, Spark's batch inference, MLflow's function, and row by row as in Horovod."""
    from pyspark.ml.functions import predict_batch_udf
    from pyspark.sql import functions
    from pyspark.sql.types import FloatType

    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(_WIDTH, 64), nn.ReLU(), nn.Linear(64, 1)).eval()
    columns = [functions.rand(seed).cast("float") for seed in range(_WIDTH)]
    frame = spark.range(rows).select(functions.array(*columns).alias("x")).cache()
    few = frame.sample(0.01, seed=3).cache()
    count, few_count = frame.count(), few.count()
    model = TorchModel(
        model=net,
        inputs=[Field(("x",), ("c0",), (_WIDTH,), "float32", (_WIDTH,))],
        outputs=[1],
        label_types=["float"],
        feature_columns=["x"],
        label_columns=["y"],
    )

    def make_predict() -> Callable[[Any], Any]:
        def predict(inputs: Any) -> Any:
            with torch.inference_mode():
                return net(torch.from_numpy(inputs)).numpy().reshape(-1)

        return predict

    batched = predict_batch_udf(
        make_predict, return_type=FloatType(), batch_size=_BATCH, input_tensor_shapes=[[_WIDTH]]
    )

    def by_row(partition: Any) -> Any:
        with torch.inference_mode():
            for row in partition:
                yield (float(net(torch.tensor([row.x]))[0, 0]),)

    def mean(predicted: Any, name: str) -> float:
        return float(predicted.agg(functions.avg(name)).first()[0])

    by_mlflow: list[Backend] = []
    if importlib.util.find_spec("mlflow") is not None:
        loaded = mlflow_function(spark, net, folder + "/model")
        structs = frame.select(loaded(functions.struct("x")).alias("y"))
        by_mlflow = [Backend("predictions, mlflow spark_udf", count, lambda: mean(structs, "y"))]

    # The sample has another mean than all rows; the difference is measured with our predictions.
    offset = mean(model.transform(frame), "y__output") - mean(model.transform(few), "y__output")
    return [
        Backend("predictions, ours", count, lambda: mean(model.transform(frame), "y__output")),
        Backend("predictions, predict_batch_udf", count, lambda: mean(frame.select(batched("x").alias("y")), "y")),
        *by_mlflow,
        Backend(
            "predictions, row by row",
            few_count,
            lambda: mean(few.rdd.mapPartitions(by_row).toDF(["y"]), "y") + offset,
        ),
    ]


@end_with_reader
def main(argv: Sequence[str] | None = None) -> None:
    """Parses the arguments, runs all backends, and prints the table."""
    words = sys.argv[1:] if argv is None else list(argv)
    parser = argparse.ArgumentParser(
        prog=f"python -m {_MODULE}", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=positive, default=1_000_000, help="rows of 20 numbers (default 1000000)")
    parser.add_argument("--rounds", type=positive, default=5, help="timed rounds (default 5)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results to FILE; - for standard output")
    options = parser.parse_args(words)
    screen = sys.stderr if str(options.json) == "-" else sys.stdout
    torch.set_num_threads(1)
    facts = programs.machine()
    print(f"{facts['cores']} cores ({facts['processor']}); rows per second", file=screen)
    print(f"{'backend':34}{'rows/s':>14}{'ours is':>12}", file=screen)
    backends: list[Backend] = []
    with ended_by_signals():
        context.init()
        for width, rows in ((_WIDTH, options.rows), (784, max(1, options.rows // 10))):
            backends += _measured(batch_backends(rows, width), options.rounds, screen)
        context.shutdown()
        with session("local[2]") as spark, tempfile.TemporaryDirectory() as folder:
            backends += _measured(prediction_backends(spark, options.rows, folder), options.rounds, screen)
    if options.json is not None:
        runs = [{"name": backend.name, "rows": backend.rows, "seconds": backend.seconds} for backend in backends]
        command = shlex.join(["python", "-m", _MODULE, *words])
        tables.write_json(options.json, {"command": command, "machine": facts, "runs": runs})


def _measured(backends: list[Backend], rounds: int, screen: Any) -> list[Backend]:
    time_interleaved(backends, rounds)
    for backend in backends:
        ratio = backends[0].rate / backend.rate
        print(f"{backend.name:34}{backend.rate:14,.0f}{ratio:11.2f}x", file=screen, flush=True)
    return backends


if __name__ == "__main__":
    main()
