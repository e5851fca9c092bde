"""A user's driver program on a cluster whose executors have other packages than the driver.

Arguments: the folder that is first on the executors' PYTHONPATH, then the master. In that folder the file `version` has
    their version of spark_estimator; ``torch-9.9.9.dist-info`` exists already.
"""

import dataclasses
import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

import spark_estimator
from spark_estimator import HorovodRunner, doctor

folder = Path(sys.argv[1])


def train():
    return 1


def job():
    try:
        return HorovodRunner(np=2).run(train)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def rows(spark):
    return [{**dataclasses.asdict(row), "state": row.state.value} for row in doctor.cluster(spark)]


def main():
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "1g",
        "spark.executorEnv.PYTHONPATH": str(folder),
        "spark.python.worker.reuse": "false",
    }
    builder = SparkSession.builder.master(sys.argv[2])
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    results = {"torch differs": {"rows": rows(spark), "job": job()}}
    (folder / "version").write_text("0.0.9")
    results["ours differs"] = {"rows": rows(spark), "job": job()}
    results["package"] = spark_estimator.__version__
    print("RESULT " + json.dumps(results), flush=True)
    spark.stop()


main()
