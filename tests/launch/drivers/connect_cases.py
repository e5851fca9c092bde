"""A user's driver program on Spark Connect: a job, one that fails, and a fit. Its argument is the remote address."""

import json
import sys

import numpy
from pyspark.sql import SparkSession

from spark_estimator import HorovodRunner, WorkerFailedError
from tests.launch.line_fit import fit_and_transform


def mean(scale):
    """The mean of a number of each rank."""
    from spark_estimator.collectives import arrays, context

    context.init()
    print(f"rank {context.rank()} adds")
    return float(arrays.allreduce(numpy.array([scale * (context.rank() + 1.0)]), name="mean")[0])


def fail():
    from spark_estimator.collectives import arrays, context

    context.init()
    if context.rank() == 1:
        raise ValueError("rank 1 has had enough")
    arrays.allreduce(numpy.ones(1), name="x")


def main():
    spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
    results = {"value": HorovodRunner(np=2, driver_log_verbosity="all").run(mean, scale=10)}
    try:
        HorovodRunner(np=2).run(fail)
    except WorkerFailedError as error:
        results["failure"] = {"rank": error.rank, "kind": error.kind, "text": str(error)}
    results["fit"] = fit_and_transform(spark)
    print("RESULT " + json.dumps(results), flush=True)
    spark.stop()


main()
