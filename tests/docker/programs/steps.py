"""Two ranks exchange numbers until a test disturbs them; or rank 1 takes more memory than its container has."""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession

from spark_estimator import HorovodRunner
from spark_estimator.errors import JobFailedError


def train(kind: str) -> int:
    import time

    import torch

    import spark_estimator.torch as hvd

    hvd.init()
    for step in range(600):
        hvd.allreduce(torch.ones(4), name="ones")
        if step == 5:
            print(f"rank {hvd.rank()} steps", flush=True)
        if step == 10 and kind == "memory" and hvd.rank() == 1:
            print(len(bytes(8 << 30).replace(b"\0", b"\1")), flush=True)
        time.sleep(0.1)
    return hvd.size()


if __name__ == "__main__":
    session = SparkSession.builder.master(os.environ["CLUSTER_MASTER"]).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    try:
        print("result", HorovodRunner(np=2, driver_log_verbosity="all").run(train, kind=sys.argv[1]))
    except JobFailedError as error:
        print(f"== failed: {error}", flush=True)
