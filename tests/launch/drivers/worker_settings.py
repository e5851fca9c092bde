"""A user's driver program: what its workers were started with, before and after the driver sets its own values.

Arguments: the master, then name=value settings of the session.
"""

import json
import os
import sys

from pyspark.sql import SparkSession

from spark_estimator import HorovodRunner


def look():
    import os

    import torch

    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "SPARK_ESTIMATOR_WORKER_CHOICES")
    with open("/proc/self/environ", encoding="utf-8") as started_with:
        keeps = "\0MALLOC_TRIM_THRESHOLD_=" in started_with.read()
    return {"threads": torch.get_num_threads(), "keeps": keeps, **{name: os.environ.get(name) for name in names}}


def main():
    builder = SparkSession.builder.master(sys.argv[1]).config("spark.ui.enabled", "false")
    for setting in sys.argv[2:]:
        builder = builder.config(*setting.split("=", 1))
    builder.getOrCreate()
    results = {"by itself": HorovodRunner(np=2).run(look)}
    os.environ |= {"SPARK_ESTIMATOR_WORKER_THREADS": "1", "SPARK_ESTIMATOR_WORKER_MALLOC": "system"}
    results["as told"] = HorovodRunner(np=2).run(look)
    print("RESULT " + json.dumps(results), flush=True)


main()
