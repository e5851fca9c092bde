"""A user's driver program: jobs of two ranks, each of which loses an executor by a signal or by its use of memory.

Arguments: the master or remote address; the kinds of job, of "fixed", "elastic"; what ends the executor, of signals and
"memory"; settings of the session.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
from pyspark.sql import SparkSession

import spark_estimator.spark
import spark_estimator.torch as hvd
from spark_estimator import HorovodRunner
from spark_estimator.collectives import arrays, context


def executor():
    """The executor's process, above this one."""
    pid = os.getpid()
    while b"CoarseGrainedExecutorBackend" not in Path(f"/proc/{pid}/cmdline").read_bytes():
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid


def fail(name):
    context.init()
    for step in range(100_000):
        if step == 100 and context.rank() == 1:
            if name == "memory":
                blocks = [b"x" * (64 << 20) for _ in range(32)]  # 2 GiB, more than the container may use
                time.sleep(len(blocks))
            else:
                os.kill(executor(), signal.Signals[name])
            time.sleep(60)
        arrays.allreduce(np.ones(1000), name="x")


def fail_elastic(name):
    hvd.init()
    hvd.elastic.run(lambda state: fail(name))(hvd.elastic.TorchState())


def main(where, kinds, signals, *settings):
    builder = SparkSession.builder
    builder = builder.remote(where) if where.startswith("sc://") else builder.master(where)
    for setting in settings:
        builder = builder.config(*setting.split("=", 1))
    spark = builder.getOrCreate()
    results = {}
    for kind in kinds.split(","):
        for name in signals.split(","):
            while spark.range(0, 2, 1, 2).mapInArrow(lambda batches: batches, "id long").count() < 2:
                pass
            began = time.time()
            try:
                if kind == "elastic":
                    spark_estimator.spark.run_elastic(fail_elastic, (name,), num_proc=2, min_num_proc=2, reset_limit=1)
                else:
                    HorovodRunner(np=2).run(fail, name)
            except Exception as error:
                results[f"{kind} {name}"] = f"{type(error).__name__}: {error}"
            print(f"{kind} {name}: {time.time() - began:.1f} s", flush=True)
    print("RESULT " + json.dumps(results), flush=True)


main(*sys.argv[1:])
