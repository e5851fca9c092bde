"""A user's driver program on several hosts: jobs over links that are slow, lossy or cut while they run.

Arguments: the master; a folder. The test changes the links when a file ``NAME.ready`` is there, and makes the file
``NAME.done`` afterwards.
"""

import json
import os
import sys
import time
import traceback
from pathlib import Path

import numpy as np
from pyspark.sql import SparkSession

import spark_estimator.spark
from spark_estimator import HorovodRunner
from spark_estimator._native import ReduceOp
from spark_estimator.collectives import arrays, context, objects
from tests.launch.line_fit import fit_and_transform

SIZE = 6
FOLDER = Path(sys.argv[2])


def links_changed(name):
    """Waits until the links are as the step of that name needs them."""
    (FOLDER / f"{name}.ready").touch()
    while not (FOLDER / f"{name}.done").exists():
        time.sleep(0.05)


def places():
    """A sum over all ranks; then each rank's number, host, and local and cross ranks and sizes."""
    import socket

    context.init()
    total = float(arrays.allreduce(np.full(200_000, context.rank() + 1.0), op=ReduceOp.SUM)[-1])
    numbers = [context.local_rank(), context.local_size(), context.cross_rank(), context.cross_size()]
    return total, objects.allgather_object([context.rank(), socket.gethostname(), *numbers])


def endless(begun):
    """Reduces until a rank is lost."""
    context.init()
    for step in range(100_000_000):
        arrays.allreduce(np.ones(1000), name="x")
        if step == 20 and context.rank() == 0:
            Path(begun).touch()


def cut_at_work():
    """What becomes of a job one of whose hosts is cut off."""
    began = time.monotonic()
    try:
        HorovodRunner(np=SIZE).run(endless, str(FOLDER / "cut.ready"))
    except Exception as error:
        text = {"type": type(error).__name__, "text": str(error), "rank": getattr(error, "rank", None)}
        return {**text, "seconds": time.monotonic() - began}
    return {"type": None}


def elastic(begun):
    """Continues with the ranks of two hosts when the third is cut off."""
    import torch

    import spark_estimator.torch as hvd

    hvd.init()

    @hvd.elastic.run
    def loop(state):
        while state.step < 40 or state.sizes[-3:] != [4] * 3:
            hvd.allreduce(torch.ones(1000), name="x")
            state.step += 1
            state.sizes.append(hvd.size())
            if state.step == 20 and hvd.rank() == 0:
                Path(begun).touch()
            time.sleep(0.05)
            state.commit()
        return state.sizes

    return loop(hvd.elastic.TorchState(step=0, sizes=[]))


def session(master):
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": os.environ["SPARK_LOCAL_IP"],
        "spark.executor.cores": "2",
        "spark.executor.memory": "600m",
        # Spark takes a host that is cut off for lost after that time.
        "spark.network.timeout": "20s",
        "spark.network.timeoutInterval": "5s",
        "spark.executor.heartbeatInterval": "2s",
    }
    builder = SparkSession.builder.master(master)
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def main():
    spark = session(sys.argv[1])
    results = {"places": HorovodRunner(np=SIZE).run(places)}
    results["fit"] = fit_and_transform(spark, SIZE)
    for links in ("slow", "lossy"):
        links_changed(links)
        results[links] = [HorovodRunner(np=SIZE).run(places)[0], fit_and_transform(spark, SIZE)]
    links_changed("good")
    results["cut"] = cut_at_work()
    links_changed("mended")
    results["after cut"] = HorovodRunner(np=SIZE).run(places)[0]
    begun = str(FOLDER / "elastic.ready")
    results["elastic"] = spark_estimator.spark.run_elastic(elastic, (begun,), num_proc=SIZE, min_num_proc=4)
    print("RESULT " + json.dumps(results), flush=True)
    spark.stop()


try:
    main()
except BaseException:
    traceback.print_exc()
    raise
