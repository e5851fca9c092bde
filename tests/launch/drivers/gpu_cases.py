"""A user's driver program on a cluster whose two workers, on one host, announce two GPUs each that are not there.

Arguments: the standalone master, or none for local-cluster; a folder with a program `nvidia-smi` that obeys the file
`mode` beside it, and with the discovery script `gpus.sh`.
"""

import json
import os
import sys
import traceback
from pathlib import Path

from pyspark.sql import SparkSession

import spark_estimator.spark

master, folder = sys.argv[1], Path(sys.argv[2])


def look():
    import os

    import spark_estimator.torch as hvd

    hvd.init()
    names = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "OMP_NUM_THREADS")
    return {name: os.environ.get(name) for name in names} | {"local": [hvd.local_rank(), hvd.local_size()]}


def session(master, **settings):
    builder = SparkSession.builder.master(master)
    common = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "1g",
        "spark.executorEnv.PATH": os.pathsep.join([str(folder), os.environ["PATH"]]),
        "spark.executor.resource.gpu.amount": "2",
        "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "1s",
        **settings,
    }
    for name, value in common.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def ranks(size, mode="none"):
    (folder / "mode").write_text(mode)
    try:
        return spark_estimator.spark.run(look, num_proc=size, verbose=0, start_timeout=100)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def on_standalone(results):
    spark = session(master, **{"spark.executor.cores": "2", "spark.cores.max": "4"})
    for size in (1, 2, 3, 4):
        results[f"{size} ranks"] = ranks(size)
    results["apart"] = ranks(4, "apart")
    results["same"] = ranks(4, "same")
    for each, size in (("2", 2), ("2", 3), ("0.5", 4), ("0", 2)):
        spark.conf.set("spark.spark_estimator.gpusPerRank", each)
        results[f"{each} for each of {size}"] = ranks(size, "same")
    spark.stop()


def on_local_cluster(results):
    settings = {
        "spark.worker.resource.gpu.amount": "2",
        "spark.worker.resource.gpu.discoveryScript": str(folder / "gpus.sh"),
        "spark.task.resource.gpu.amount": "1",
        "spark.task.cpus": "2",
        "spark.executorEnv.CUDA_VISIBLE_DEVICES": "6,7",
    }
    spark = session("local-cluster[1,4,1024]", **settings)
    results["per task"] = ranks(2)
    spark.stop()


def main():
    results = {}
    try:
        (on_local_cluster if master == "local-cluster" else on_standalone)(results)
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        print("RESULT " + json.dumps(results), flush=True)


main()
