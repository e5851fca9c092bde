"""Times how fast an estimator's rows become batches, and predictions, side by side with Spark's own ways.

``python -m spark_estimator.benchmarks.estimator [--rows 1000000] [--rounds 5]`` prints a line for each way: rows in a
second, the median of rounds in which all ways take turns, and how many times the peer's that is.

- *batches*: shuffled batches of 1,024 rows from a rank's spool, on one thread, beside the gather bound: the same rows,
  in the same order, taken at once by numpy. Rows of 20 and, a tenth of as many, of 784 float32 numbers.
- *predictions* of a network of 20, 64 and 1 units for a column of vectors, into a column that Spark adds up: ours;
  `predict_batch_udf`, on the same column; and row by row, as Horovod's estimators predict, on a hundredth of the rows.

Sums of all values are compared first.
"""

from __future__ import annotations

import argparse
import itertools
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import nn

from spark_estimator.benchmarks import programs, tables
from spark_estimator.benchmarks.backends import Way, in_turns
from spark_estimator.benchmarks.command_line import ended_by_signals, positive
from spark_estimator.benchmarks.launch import session
from spark_estimator.collectives import context
from spark_estimator.console import ends_with_its_reader
from spark_estimator.data.fields import Field
from spark_estimator.data.rank.rank_rows import RankRows
from spark_estimator.estimators.torch.model import TorchModel

_MODULE = "spark_estimator.benchmarks.estimator"
_BATCH = 1024
_WIDTH = 20


def of_batches(rows: int, width: int) -> list[Way]:
    """Ours, and numpy's."""
    matrix = numpy.random.default_rng(0).random((rows, width), numpy.float32)
    spooled = RankRows(([matrix],), numpy.arange(rows), (rows,))
    epochs = itertools.count()

    def ours() -> float:
        batches = spooled.batches(_BATCH, None, (1, next(epochs)))
        return sum(float(batch.matrices[0][:, 0].sum()) for batch in batches) / rows

    def gathered() -> float:
        order = numpy.random.default_rng([1, 2, 0]).permutation(rows)
        return float(matrix.take(order, axis=0)[:, 0].sum(dtype=numpy.float64)) / rows

    return [Way(f"batches of {width}, ours", rows, ours), Way(f"batches of {width}, bound", rows, gathered)]


def of_predictions(spark: Any, rows: int) -> list[Way]:
    """Ours, Spark's batch inference, and Horovod's way."""
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

    # A few rows have another mean; by how much, ours says for all ways alike.
    offset = mean(model.transform(frame), "y__output") - mean(model.transform(few), "y__output")
    return [
        Way("predictions, ours", count, lambda: mean(model.transform(frame), "y__output")),
        Way("predictions, predict_batch_udf", count, lambda: mean(frame.select(batched("x").alias("y")), "y")),
        Way(
            "predictions, row by row",
            few_count,
            lambda: mean(few.rdd.mapPartitions(by_row).toDF(["y"]), "y") + offset,
        ),
    ]


@ends_with_its_reader
def main(argv: Sequence[str] | None = None) -> None:
    """Parses the arguments, runs all ways, prints the table."""
    words = sys.argv[1:] if argv is None else list(argv)
    parser = argparse.ArgumentParser(
        prog=f"python -m {_MODULE}", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=positive, default=1_000_000, help="of 20 numbers (default 1000000)")
    parser.add_argument("--rounds", type=positive, default=5, help="that count (default 5)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there; - for standard output")
    options = parser.parse_args(words)
    screen = sys.stderr if str(options.json) == "-" else sys.stdout
    torch.set_num_threads(1)
    facts = programs.machine()
    print(f"{facts['cores']} cores ({facts['processor']}); rows a second", file=screen)
    print(f"{'way':34}{'rows/s':>14}{'ours is':>12}", file=screen)
    found: list[Way] = []
    with ended_by_signals():
        context.init()
        for width, rows in ((_WIDTH, options.rows), (784, max(1, options.rows // 10))):
            found += _measured(of_batches(rows, width), options.rounds, screen)
        context.shutdown()
        with session("local[2]") as spark:
            found += _measured(of_predictions(spark, options.rows), options.rounds, screen)
    if options.json is not None:
        runs = [{"name": way.name, "rows": way.rows, "seconds": way.seconds} for way in found]
        command = shlex.join(["python", "-m", _MODULE, *words])
        tables.write_json(options.json, {"command": command, "machine": facts, "runs": runs})


def _measured(ways: list[Way], rounds: int, screen: Any) -> list[Way]:
    in_turns(ways, rounds)
    for way in ways:
        print(f"{way.name:34}{way.rate:14,.0f}{ways[0].rate / way.rate:11.2f}x", file=screen, flush=True)
    return ways


if __name__ == "__main__":
    main()
