"""A user's driver program that trains for ever, and after Ctrl-C runs another job in the same session.

Arguments: the number of ranks for HorovodRunner; for a positive one also the master or remote address.
"""

import json
import os
import subprocess
import sys
import time

import spark_estimator.torch as hvd
from spark_estimator import HorovodRunner
from spark_estimator.observe.driver_log import log_to_driver


def train():
    import torch

    hvd.init()
    subprocess.Popen(["sleep", "1000"])  # as a data loader's worker would be: it must not outlive the job either
    for step in range(100_000_000):
        hvd.allreduce(torch.ones(1000), name="x")
        if step == 200:
            log_to_driver(f"rank {hvd.rank()} trains")


def short():
    import torch

    hvd.init()
    return hvd.allreduce(torch.ones(1), op=hvd.Sum).item()


def left(marker):
    """Processes that belong to the job, without a server that waits for the next one."""
    count = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                environment = file.read()
                count += marker.encode() in environment and b"SPARK_ESTIMATOR_PROCESS=00" not in environment
        except OSError:
            pass
    return count


def main():
    np = int(sys.argv[1])
    if np > 0:
        from pyspark.sql import SparkSession

        where = sys.argv[2]
        builder = SparkSession.builder
        if where.startswith("sc://"):
            builder = builder.remote(where)
        else:
            builder = builder.master(where).config("spark.ui.enabled", "false").config("spark.driver.host", "127.0.0.1")
        builder.getOrCreate()
    marker = os.environ["SPARK_ESTIMATOR_TEST_MARKER"] = os.environ["MARKER"][::-1]
    results = {}
    try:
        HorovodRunner(np=np).run(train)
    except KeyboardInterrupt:
        results["interrupted"] = time.time()
        results["left"] = left(marker)
    results["next"] = HorovodRunner(np=np).run(short)
    print("RESULT " + json.dumps(results), flush=True)


main()
