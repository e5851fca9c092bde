"""Two ranks exchange numbers until a test disturbs them: in a job, or in an elastic one that continues with fewer.

Or rank 1 takes more memory than its container has.
"""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession

from spark_estimator import HorovodRunner, spark
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


def train_elastic() -> list[int]:
    """Return the numbers of ranks in the order of the rounds, which must be 2, 1 and 2."""
    import time

    import torch

    import spark_estimator.torch as hvd

    hvd.init()
    state = hvd.elastic.TorchState(step=0, sizes=[])

    @hvd.elastic.run
    def loop(state: object) -> None:
        state.sizes.append(hvd.size())
        print(f"rank {hvd.rank()} steps, {hvd.size()} ranks", flush=True)
        while state.sizes[-3:] != [2, 1, 2] or state.step < 20:
            hvd.allreduce(torch.ones(4), name="ones")
            state.step += 1
            state.commit()
            time.sleep(0.1)

    loop(state)
    return state.sizes


if __name__ == "__main__":
    session = SparkSession.builder.master(os.environ["CLUSTER_MASTER"]).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    if sys.argv[1] == "elastic":
        print("result", spark.run_elastic(train_elastic, num_proc=2, min_num_proc=1, max_num_proc=2)[0], flush=True)
        sys.exit()
    try:
        print("result", HorovodRunner(np=2, driver_log_verbosity="all").run(train, kind=sys.argv[1]))
    except JobFailedError as error:
        print(f"== failed: {error}", flush=True)
