"""The GPUs that ranks of an elastic job see: one a task by the session, and as many as a job asks for."""

import json
import os
import sys

from pyspark.sql import SparkSession

from spark_estimator.spark import run_elastic


def seen():
    return os.environ.get("CUDA_VISIBLE_DEVICES")


def main():
    where, *settings = sys.argv[1:]
    builder = SparkSession.builder.master(where)
    for setting in ("spark.ui.enabled=false", "spark.driver.host=127.0.0.1", *settings):
        builder = builder.config(*setting.split("=", 1))
    spark = builder.getOrCreate()
    results = {"each": run_elastic(seen, num_proc=2)}
    spark.conf.set("spark.spark_estimator.gpusPerRank", "2")
    results["both"] = run_elastic(seen, num_proc=1)
    print("RESULT " + json.dumps(results), flush=True)


main()
